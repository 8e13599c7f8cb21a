"""Writes of several pages at once: neighbours in one call, each page with its own end."""

import errno
import os
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from lmc_grouped.host.disk import PutAnswer, WriteEnd
from lmc_grouped.host.disk.groupfile import GroupFile
from lmc_grouped.host.disk.queue import THREAD_NAME, WorkQueue
from tests.factories import disk_key, page_of
from tests.host.conftest import KB, Disk

CAP_BYTES = 4_000 * KB
"""A batch is a sixteenth of it: 250 pages of a kilobyte."""
Calls = list[tuple[str, int, int]]
"""(what was written, first slot, how many)."""


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    """Every write to a group's files, in order."""
    seen: Calls = []

    def note(name: str) -> None:
        write = getattr(GroupFile, name)

        def noted(file: GroupFile, slot: int, items: Sequence[object]) -> None:
            seen.append((name, slot, len(items)))
            write(file, slot, items)

        monkeypatch.setattr(GroupFile, name, noted)

    note("write_pages")
    note("write_records")
    return seen


def put_all(disk: Disk, keys: Sequence[tuple[int, bytes]]) -> dict[tuple[int, bytes], WriteEnd]:
    """Offer pages at once, all taken; the end of each."""
    ends: dict[tuple[int, bytes], WriteEnd] = {}
    sizes = disk.tier.stats().groups
    pages = [page_of(key, sizes[key[0]].page_bytes) for key in keys]
    answers = disk.tier.put_all(keys, pages, ends.__setitem__)
    assert answers == [PutAnswer.ACCEPTED] * len(keys)
    disk.tier.flush()
    return ends


def small(*numbers: int) -> list[tuple[int, bytes]]:
    """Keys of the group with pages of a kilobyte."""
    return [disk_key(1, number) for number in numbers]


def stored_order(disk: Disk) -> list[tuple[int, bytes]]:
    return [(page.group_id, page.block_hash) for page in disk.tier.stored_pages()]


def test_neighbours_go_in_one_call_and_records_follow_their_pages(open_disk, calls):
    disk = open_disk(CAP_BYTES, threads=1)
    keys = [disk_key(number % 2, number) for number in range(20)]
    assert set(put_all(disk, keys).values()) == {WriteEnd.STORED}
    assert calls == [("write_pages", 0, 10), ("write_records", 0, 10)] * 2
    assert disk.hits(keys) == keys


def test_the_order_of_a_batch_is_kept_though_its_slots_are_out_of_order(open_disk, calls):
    disk = open_disk(CAP_BYTES, threads=1)
    put_all(disk, small(*range(8)))
    for number in (2, 5, 3, 6):  # freed one by one: the last freed is the first taken
        disk.tier.drop(small(number))
        disk.tier.flush()
    calls.clear()
    put_all(disk, small(*range(20, 24)))
    assert [slots for name, *slots in calls if name == "write_pages"] == [[2, 2], [5, 2]]
    order = small(0, 1, 4, 7, 20, 21, 22, 23)
    assert stored_order(disk) == order
    disk.tier.close()
    again = open_disk(CAP_BYTES)
    assert stored_order(again) == order
    assert again.hits(order) == order


@pytest.mark.parametrize("what", ["write_pages", "write_records"])
@pytest.mark.parametrize(
    ("code", "end"), [(errno.EIO, WriteEnd.IO_ERROR), (errno.ENOSPC, WriteEnd.NO_SPACE)]
)
def test_a_page_that_cannot_be_written_costs_no_neighbour(open_disk, monkeypatch, what, code, end):
    real = getattr(GroupFile, what)

    def fail_at_slot_3(file: GroupFile, first_slot: int, items: Sequence[object]) -> None:
        if first_slot <= 3 < first_slot + len(items):
            raise OSError(code, os.strerror(code))
        real(file, first_slot, items)

    monkeypatch.setattr(GroupFile, what, fail_at_slot_3)
    disk = open_disk(CAP_BYTES, threads=1)
    keys = small(*range(8))
    assert put_all(disk, keys) == dict.fromkeys(keys, WriteEnd.STORED) | {keys[3]: end}
    others = [*keys[:3], *keys[4:]]
    assert disk.hits(keys) == others
    stats = disk.tier.stats()
    assert (stats.used_bytes, stats.groups[1].pages) == (7 * KB, 7)
    disk.tier.close()
    assert open_disk(CAP_BYTES).hits(keys) == others


def test_a_page_dropped_out_of_a_batch_leaves_the_others(open_disk, monkeypatch):
    writing, go_on = threading.Event(), threading.Event()
    write_pages = GroupFile.write_pages

    def wait_and_write(*arguments) -> None:
        writing.set()
        go_on.wait()
        write_pages(*arguments)

    monkeypatch.setattr(GroupFile, "write_pages", wait_and_write)
    disk = open_disk(CAP_BYTES, threads=1)
    keys = small(1, 2, 3)
    ends: dict[tuple[int, bytes], WriteEnd] = {}
    disk.tier.put_all(keys, [page_of(key, KB) for key in keys], ends.__setitem__)
    writing.wait()
    assert disk.tier.drop(keys[1:2]) == 1
    go_on.set()
    disk.tier.flush()
    assert [ends[key] for key in keys] == [WriteEnd.STORED, WriteEnd.DROPPED, WriteEnd.STORED]
    assert disk.hits(keys) == [keys[0], keys[2]]
    assert disk.tier.stats().used_bytes == 2 * KB


def test_one_answer_for_each_page_of_an_offer(open_disk, monkeypatch):
    go_on = threading.Event()
    monkeypatch.setattr(GroupFile, "write_records", lambda *_: go_on.wait())
    disk = open_disk(CAP_BYTES, queue_bytes=3 * KB, threads=1)
    keys = small(1, 2, 1, 3, 4)
    answers = disk.tier.put_all(keys, [bytes(KB)] * 5)
    go_on.set()
    assert answers == ["accepted", "accepted", "present", "accepted", "queue_full"]
    disk.tier.flush()
    refused = disk.tier.stats().refused_by_answer
    assert refused == {PutAnswer.PRESENT: 1, PutAnswer.QUEUE_FULL: 1}


def test_a_page_whose_end_cannot_be_told_keeps_no_other_from_its_end(open_disk, caplog):
    told: list[tuple[int, bytes]] = []

    def fail_once(key: tuple[int, bytes], _: WriteEnd) -> None:
        told.append(key)
        if len(told) == 1:
            raise RuntimeError("the caller's own fault")

    disk = open_disk(CAP_BYTES, threads=1)
    disk.tier.put_all(small(1, 2, 3), [bytes(KB)] * 3, fail_once)
    disk.tier.flush()
    assert told == small(1, 2, 3)
    assert "the caller's own fault" in caplog.text


@pytest.mark.skipif(sys.platform != "linux", reason="names of threads are read from /proc")
def test_the_threads_that_write_can_be_told_from_others(open_disk):
    seen: list[str] = []

    def look(*_) -> None:
        seen.append(Path(f"/proc/self/task/{threading.get_native_id()}/comm").read_text())

    disk = open_disk()
    disk.tier.put(disk_key(1, 1), bytes(KB), look)
    disk.tier.flush()
    assert [name.startswith(THREAD_NAME) for name in seen] == [True]


@pytest.fixture
def run_held() -> Callable[[Sequence[object]], list[list[object]]]:
    """Queues things while the one thread is busy; what it then got at once."""

    def run(things: Sequence[object]) -> list[list[object]]:
        batches: list[list[object]] = []
        go_on = threading.Event()
        queue: WorkQueue[int] = WorkQueue(
            lambda batch: batches.append(list(batch)),
            limit_bytes=1_000, batch_bytes=10, threads=1,
            on_tick=lambda: None, tick_seconds=1,
        )  # fmt: skip
        queue.add(go_on.wait)
        for thing in things:
            if isinstance(thing, str):
                queue.add(lambda name=thing: batches.append([name]))
            else:
                assert queue.offer([(thing, thing)]) == [True]
        go_on.set()
        queue.close()
        return batches

    return run


@pytest.mark.parametrize(
    ("things", "batches"),
    [
        ([3, 3, 3, 3], [[3, 3, 3], [3]]),
        ([11, 1, 9, 1], [[11], [1, 9], [1]]),
        ([1, "clear", 1, 1], [[1], ["clear"], [1, 1]]),
    ],
)
def test_a_thread_gets_neighbours_in_the_queue_up_to_a_batch(run_held, things, batches):
    assert run_held(things) == batches
