"""Copies under way: a thread that begins in order, tickets that end late, and failures."""

from threading import Event
from typing import Any

import pytest

from lmc_grouped.connector.copy_line import Begun, CopyLine, Ended
from lmc_grouped.transfer.copies import DONE, TransferError


class LateTicket:
    """A ticket that ends when it is told to."""

    def __init__(self, failure: str | None = None) -> None:
        self.is_over = False
        self._failure = failure

    def is_done(self) -> bool:
        if self._failure is not None:
            raise TransferError(self._failure)
        return self.is_over

    def wait(self) -> None:
        self.is_over = True
        self.is_done()


def settle(line: CopyLine) -> None:
    while line.running:
        line.wait_for_thread(60)


def test_the_thread_begins_one_after_the_other_and_the_caller_at_once():
    line, order, gate = CopyLine(), [], Event()

    def work(name: str, gate: Event | None = None) -> Any:
        def begin() -> Begun:
            if gate:
                assert gate.wait(60)
            order.append(name)
            return Begun([DONE])

        return begin

    line.begin(1, work("load", gate), on_thread=True)
    line.begin(2, work("move"), on_thread=True)
    line.begin(3, work("store"), on_thread=False)
    assert line.take_ended() == [Ended(3, None)]
    assert line.is_under_way(1)
    line.wait_for_thread(0)
    assert order == ["store"]
    gate.set()
    settle(line)
    assert order == ["store", "load", "move"]
    assert line.take_ended() == [Ended(1, None), Ended(2, None)]
    assert not line.is_under_way(1)
    assert line.take_ended() == []
    line.close()


def test_an_operation_ends_when_its_last_ticket_does():
    line, tickets = CopyLine(), [LateTicket(), LateTicket()]
    line.begin(1, lambda: Begun(list(tickets)), on_thread=False)
    tickets[0].is_over = True
    assert line.take_ended() == []
    tickets[1].is_over = True
    assert line.take_ended() == [Ended(1, None)]


def test_a_failed_operation_ends_when_its_other_copies_are_over():
    """Its blocks and slots belong to others from then on."""
    line, slow = CopyLine(), LateTicket()
    line.begin(1, lambda: Begun([LateTicket("the device said no"), slow]), on_thread=False)
    line.begin(2, lambda: Begun([slow], "group 4 could not begin"), on_thread=False)
    assert line.take_ended() == []
    slow.is_over = True
    assert line.take_ended() == [
        Ended(1, "the device said no"),
        Ended(2, "group 4 could not begin"),
    ]


def test_what_is_no_failure_of_a_copy_is_raised_where_it_is_taken():
    line = CopyLine()
    line.begin(1, lambda: 1 // 0, on_thread=True)
    settle(line)
    with pytest.raises(ZeroDivisionError):
        line.take_ended()


def test_closing_ends_what_was_begun():
    line, slow, done = CopyLine(), LateTicket(), []
    bad = LateTicket("the device said no")
    line.begin(1, lambda: done.append(1) or Begun(), on_thread=True)
    line.begin(2, lambda: Begun([slow, bad]), on_thread=False)
    line.close()
    assert done == [1]
    assert slow.is_over
    assert line.take_ended() == [Ended(1, None), Ended(2, "the device said no")]
