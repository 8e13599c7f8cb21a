"""A process that pins memory with a driver in which tests can see who is inside.

`python -m tests.host.pin_worker LOCK LOG SECONDS`. It says "ready", waits for a line,
and pins two pieces. In each the driver stays until two processes have been inside at
once, or for SECONDS.
"""

import os
import sys
import time
from pathlib import Path

from lmc_grouped.host.layout import Piece
from lmc_grouped.host.pinning import PinnedMemory
from tests.host.fake_driver import FakeDriver


def most_inside(log: Path) -> int:
    """How many processes were inside the driver at once, at most, by the log."""
    inside, most = 0, 0
    for line in log.read_text().splitlines():
        inside += 1 if line == "enter" else -1
        most = max(most, inside)
    return most


class SeenDriver(FakeDriver):
    """Writes down when a process enters and leaves it."""

    def __init__(self, log: Path, seconds: float) -> None:
        super().__init__()
        self._log, self._seconds = log, seconds
        self._fd = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def register(self, address: int, size_bytes: int) -> int:
        os.write(self._fd, b"enter\n")
        deadline = time.monotonic() + self._seconds
        while most_inside(self._log) < 2 and time.monotonic() < deadline:
            time.sleep(0.005)
        os.write(self._fd, b"leave\n")
        return super().register(address, size_bytes)


def main() -> None:
    lock, log, seconds = Path(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3])
    driver = SeenDriver(log, seconds)
    os.write(1, b"ready\n")
    sys.stdin.readline()
    pieces = (Piece(0, 4_096), Piece(4_096, 4_096))
    PinnedMemory("memory", 0x10000, pieces, driver, rank=0, lock_path=lock)
    assert len(driver.locked) == 2


if __name__ == "__main__":
    main()
