"""A rung whose copies run beside the engine: made late, and acknowledged later still."""

from collections.abc import Callable

from lmc_grouped.transfer.copies import Ids, Rung, Ticket, TransferError
from tests.connector.scripted import ScriptedEngine


class LateCopies:
    """A device's copy stream: copies wait in it until the engine's work waits for them, or
    until they are flushed. Tickets end one step after ``polls`` questions.

    Attributes:
        calls: what the worker has asked for, in order.
        is_ordered: whether ``before_compute`` does what it promises.
        failure: what every ticket raises.
    """

    def __init__(self, polls: int = 3) -> None:
        self.polls = polls
        self.calls: list[str] = []
        self.is_ordered = True
        self.failure: str | None = None
        self._queue: list[Callable[[], object]] = []

    def after_compute(self) -> None:
        self.calls.append("after_compute")

    def before_compute(self) -> None:
        self.calls.append("before_compute")
        if self.is_ordered:
            self.flush()

    def flush(self) -> None:
        """The stream runs dry."""
        queue, self._queue = self._queue, []
        for copy in queue:
            copy()

    def submit(self, name: str, copy: Callable[[], object]) -> "LateTicket":
        self.calls.append(name)
        self._queue.append(copy)
        return LateTicket(self)


class LateTicket:
    """Done when it has been asked often enough; the bytes are there by then."""

    def __init__(self, stream: LateCopies) -> None:
        self._stream = stream
        self._polls = stream.polls

    def is_done(self) -> bool:
        self._polls -= 1
        if self._polls > 0:
            return False
        self.wait()
        return True

    def wait(self) -> None:
        self._stream.flush()
        if self._stream.failure is not None:
            raise TransferError(self._stream.failure)


class LateRung:
    """Copies as another rung does, but in the stream."""

    name = "late"
    copies_inline = False

    def __init__(self, inner: Rung, stream: LateCopies) -> None:
        self._inner = inner
        self._stream = stream

    def store(self, block_ids: Ids, slots: Ids) -> Ticket:
        return self._stream.submit("store", lambda: self._inner.store(block_ids, slots))

    def load(self, block_ids: Ids, slots: Ids) -> Ticket:
        return self._stream.submit("load", lambda: self._inner.load(block_ids, slots))


def copy_late(engine: ScriptedEngine) -> list[LateCopies]:
    """Let every rank's groups be copied in a stream of the rank's own."""
    streams = []
    for worker in engine.workers:
        stream = LateCopies()
        worker.worker_half.stream = stream
        for copier in worker.worker_half.copiers.values():
            copier.rung = LateRung(copier.rung, stream)
        streams.append(stream)
    return streams
