"""The copies of one rank that are under way: begun in order, ended in any order."""

from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field

from lmc_grouped.transfer.copies import Ticket, TransferError


@dataclass(slots=True)
class Begun:
    """What beginning an operation came to."""

    tickets: list[Ticket] = field(default_factory=list)
    failure: str | None = None
    """Why the rest of it could not be begun."""

    def is_over(self) -> bool:
        """Whether none of its copies is under way any more, well or badly ended."""
        self.tickets = [ticket for ticket in self.tickets if not self._has_ended(ticket.is_done)]
        return not self.tickets

    def wait(self) -> None:
        """Return when it is over."""
        for ticket in self.tickets:
            self._has_ended(ticket.wait)
        self.tickets = []

    def _has_ended(self, ask: Callable[[], bool | None]) -> bool:
        try:
            return ask() is not False
        except TransferError as error:
            self.failure = self.failure or str(error)
            return True


@dataclass(frozen=True, slots=True)
class Ended:
    """An operation of which no copy is under way any more."""

    operation_id: int
    failure: str | None


class CopyLine:
    """Begins operations in the caller's thread, or one after the other in a thread of its own.

    An operation that fails is ended only when its other copies are over too: the blocks and
    slots they use are the next owner's from then on.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="lmc_grouped-copy")
        self._under_way: dict[int, Future[Begun]] = {}

    def begin(self, operation_id: int, begin: Callable[[], Begun], *, on_thread: bool) -> None:
        """Begin an operation: behind the others on the thread, or now."""
        if on_thread:
            self._under_way[operation_id] = self._thread.submit(begin)
            return
        begun: Future[Begun] = Future()
        begun.set_result(begin())
        self._under_way[operation_id] = begun

    def is_under_way(self, operation_id: int | None) -> bool:
        """Whether the operation has begun and has not been taken as ended."""
        return operation_id in self._under_way

    def take_ended(self) -> list[Ended]:
        """Operations that have ended since the last call.

        Raises whatever was raised on the thread: only a ``TransferError`` is a failure.
        """
        ended = [
            Ended(operation_id, future.result().failure)
            for operation_id, future in self._under_way.items()
            if future.done() and future.result().is_over()
        ]
        for operation in ended:
            del self._under_way[operation.operation_id]
        return ended

    def wait_for_thread(self, seconds: float) -> None:
        """Return when the thread has ended an operation, has nothing to do, or time is up."""
        wait(self.running, timeout=seconds, return_when=FIRST_COMPLETED)

    @property
    def running(self) -> list[Future[Begun]]:
        """What the thread has not ended yet."""
        return [future for future in self._under_way.values() if not future.done()]

    def close(self) -> None:
        """Return when everything that was begun is over; begin nothing more."""
        self._thread.shutdown(wait=True)
        for future in self._under_way.values():
            future.result().wait()
