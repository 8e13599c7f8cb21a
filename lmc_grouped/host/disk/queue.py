"""Background work with a bound: what does not fit is refused at once, nobody waits."""

import logging
import threading
from collections import deque
from collections.abc import Callable

logger = logging.getLogger(__name__)


class WorkQueue:
    """Threads that run what they are given, in order.

    Args:
        limit_bytes: of work that waits or runs; one piece always fits an empty queue.
        threads: how many run at once.
        tick_seconds: how often ``on_tick`` is called between ``tick(on=...)``.
    """

    def __init__(
        self, limit_bytes: int, threads: int, on_tick: Callable[[], None], tick_seconds: float
    ) -> None:
        self._limit_bytes = limit_bytes
        self._on_tick = on_tick
        self._tick_seconds = tick_seconds
        lock = threading.Lock()
        self._work = threading.Condition(lock)
        """Something to do. One thread is woken for one piece: all of them would crowd."""
        self._idle = threading.Condition(lock)
        """Nothing waits and nothing runs."""
        self._waiting: deque[tuple[int, Callable[[], None]]] = deque()
        self._running = 0
        self._closing = False
        self.pending_bytes = 0
        """Of work that waits or runs."""
        self._ticking = False
        self._threads = [
            threading.Thread(target=self._run, name=f"lmc-grouped-disk-{number}", daemon=True)
            for number in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def offer(self, size_bytes: int, work: Callable[[], None]) -> bool:
        """Queue work that holds ``size_bytes`` of the caller's memory, or refuse it."""
        with self._work:
            if self.pending_bytes and self.pending_bytes + size_bytes > self._limit_bytes:
                return False
            self._add(size_bytes, work)
        return True

    def add(self, work: Callable[[], None]) -> None:
        """Queue work that holds none of the caller's memory."""
        with self._work:
            self._add(0, work)

    def _add(self, size_bytes: int, work: Callable[[], None]) -> None:
        self.pending_bytes += size_bytes
        self._waiting.append((size_bytes, work))
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
        while True:
            with self._work:
                while not self._waiting and not self._closing:
                    timeout = self._tick_seconds if self._ticking else None
                    if not self._work.wait(timeout):
                        break
                if self._waiting:
                    size_bytes, work = self._waiting.popleft()
                    self._running += 1
                elif self._closing:
                    return
                else:
                    size_bytes, work = 0, self._on_tick
                    self._running += 1
            try:
                work()
            except Exception:
                # A thread that ended here would stop every later write in silence.
                logger.exception("disk tier: background work failed")
            with self._idle:
                self._running -= 1
                self.pending_bytes -= size_bytes
                if not self._waiting and not self._running:
                    self._idle.notify_all()
