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
        tick_seconds: how often ``on_tick`` is called while ``ticking``.
    """

    def __init__(
        self, limit_bytes: int, threads: int, on_tick: Callable[[], None], tick_seconds: float
    ) -> None:
        self._limit_bytes = limit_bytes
        self._on_tick = on_tick
        self._tick_seconds = tick_seconds
        self._condition = threading.Condition()
        self._waiting: deque[tuple[int, Callable[[], None]]] = deque()
        self._running = 0
        self._closing = False
        self.pending_bytes = 0
        """Of work that waits or runs."""
        self.ticking = False
        self._threads = [
            threading.Thread(target=self._run, name=f"lmc-grouped-disk-{number}", daemon=True)
            for number in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def offer(self, size_bytes: int, work: Callable[[], None]) -> bool:
        """Queue work that holds ``size_bytes`` of the caller's memory, or refuse it."""
        with self._condition:
            if self.pending_bytes and self.pending_bytes + size_bytes > self._limit_bytes:
                return False
            self._add(size_bytes, work)
        return True

    def add(self, work: Callable[[], None]) -> None:
        """Queue work that holds none of the caller's memory."""
        with self._condition:
            self._add(0, work)

    def _add(self, size_bytes: int, work: Callable[[], None]) -> None:
        self.pending_bytes += size_bytes
        self._waiting.append((size_bytes, work))
        self._condition.notify_all()

    def flush(self) -> None:
        """Wait until everything queued so far, and since, has run."""
        with self._condition:
            self._condition.wait_for(lambda: not self._waiting and not self._running)

    def close(self) -> None:
        """Run what is queued, then end the threads."""
        with self._condition:
            self._closing = True
            self._condition.notify_all()
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        while True:
            with self._condition:
                while not self._waiting and not self._closing:
                    timeout = self._tick_seconds if self.ticking else None
                    if not self._condition.wait(timeout):
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
            with self._condition:
                self._running -= 1
                self.pending_bytes -= size_bytes
                self._condition.notify_all()
