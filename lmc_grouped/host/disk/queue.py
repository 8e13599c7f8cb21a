"""Background work with a bound: what does not fit is refused at once, nobody waits."""

import logging
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Generic, TypeVar

logger = logging.getLogger(__name__)

THREAD_NAME = "lmc-disk-write"
"""As `top -H` shows it, a number behind it."""

Piece = TypeVar("Piece")
Task = Callable[[], None]


class WorkQueue(Generic[Piece]):
    """Threads that take pieces of work in order, neighbours in the queue together.

    A thread's hold on the interpreter delays the model's thread, so one call has many
    pieces, as far as they are there. The threads have the priority of all others: one
    of a lower priority that is not run while it has the interpreter holds the model up.

    Args:
        run: does the pieces it is given.
        limit_bytes: of pieces that wait or run; one always fits an empty queue.
        batch_bytes: of pieces that ``run`` gets at once; one at least.
        threads: how many run at once.
        on_tick: called every ``tick_seconds`` between ``tick(on=...)``.
    """

    def __init__(
        self,
        run: Callable[[list[Piece]], None],
        *,
        limit_bytes: int,
        batch_bytes: int,
        threads: int,
        on_tick: Task,
        tick_seconds: float,
    ) -> None:
        self._do = run
        self._limit_bytes = limit_bytes
        self._batch_bytes = batch_bytes
        self._on_tick = on_tick
        self._tick_seconds = tick_seconds
        lock = threading.Lock()
        self._work = threading.Condition(lock)
        """Something to do. One thread is woken for one batch: all of them would crowd."""
        self._idle = threading.Condition(lock)
        """Nothing waits and nothing runs."""
        self._waiting: deque[tuple[int, Piece] | Task] = deque()
        self._running = 0
        self._closing = False
        self.pending_bytes = 0
        """Of pieces that wait or run."""
        self._ticking = False
        self._threads = [
            threading.Thread(target=self._run, name=f"{THREAD_NAME}-{number}", daemon=True)
            for number in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def offer(self, pieces: Sequence[tuple[int, Piece]]) -> list[bool]:
        """Queue pieces that hold ``(bytes, ...)`` of the caller's memory; which were taken."""
        taken = []
        taken_bytes = 0
        with self._work:
            for size_bytes, piece in pieces:
                fits = self.pending_bytes + size_bytes <= self._limit_bytes
                taken.append(fits or not self.pending_bytes)
                if taken[-1]:
                    self._waiting.append((size_bytes, piece))
                    self.pending_bytes += size_bytes
                    taken_bytes += size_bytes
            self._work.notify(-(-taken_bytes // self._batch_bytes))
        return taken

    def add(self, task: Task) -> None:
        """Queue work that holds none of the caller's memory."""
        with self._work:
            self._waiting.append(task)
            self._work.notify()

    def flush(self) -> None:
        """Wait until everything queued so far, and since, has run."""
        with self._idle:
            self._idle.wait_for(lambda: not self._waiting and not self._running)

    def tick(self, *, on: bool) -> None:
        """Begin or end to call ``on_tick`` while there is nothing else to do."""
        with self._work:
            self._ticking = on
            self._work.notify_all()

    def close(self) -> None:
        """Run what is queued, then end the threads."""
        with self._work:
            self._closing = True
            self._work.notify_all()
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        show_name()
        while True:
            with self._work:
                while not self._waiting and not self._closing:
                    timeout = self._tick_seconds if self._ticking else None
                    if not self._work.wait(timeout):
                        break
                if not self._waiting and self._closing:
                    return
                size_bytes, task = self._next()
                self._running += 1
            try:
                task()
            except Exception:
                # A thread that ended here would stop every later write in silence.
                logger.exception("disk tier: background work failed")
            with self._idle:
                self._running -= 1
                self.pending_bytes -= size_bytes
                if not self._waiting and not self._running:
                    self._idle.notify_all()

    def _next(self) -> tuple[int, Task]:
        """What to do now, and of how many bytes. Needs the lock."""
        if not self._waiting:
            return 0, self._on_tick
        first = self._waiting.popleft()
        if not isinstance(first, tuple):
            return 0, first
        size_bytes, batch = first[0], [first[1]]
        while self._waiting:
            following = self._waiting[0]
            if not isinstance(following, tuple) or size_bytes + following[0] > self._batch_bytes:
                break
            self._waiting.popleft()
            size_bytes += following[0]
            batch.append(following[1])
        return size_bytes, lambda: self._do(batch)


def show_name() -> None:
    """Tell Linux the calling thread's name, which Python does from 3.14 on."""
    if sys.platform == "linux":
        comm = Path(f"/proc/self/task/{threading.get_native_id()}/comm")
        with suppress(OSError):  # no /proc here: the name is for people who look
            comm.write_text(threading.current_thread().name)
