"""How far long work is, on stderr."""

import sys
import time
from typing import TextIO

from lmc_grouped.tools.plan.sizes import format_size

_BAR_WIDTH = 30
_TERMINAL_SECONDS = 0.2
_FILE_SECONDS = 10.0
"""Between lines where nobody watches: a log needs few."""


class Progress:
    """A bar on a terminal, a line now and then elsewhere; nothing for short work.

    Args:
        total_bytes: of all the work; more may come, the bar then stays full.
    """

    def __init__(self, label: str, total_bytes: int, stream: TextIO | None = None) -> None:
        self._label = label
        self._total_bytes = max(1, total_bytes)
        self._stream = sys.stderr if stream is None else stream
        self._is_terminal = self._stream.isatty()
        self._interval = _TERMINAL_SECONDS if self._is_terminal else _FILE_SECONDS
        self._next = time.monotonic() + self._interval
        self._done_bytes = 0
        self._is_shown = False

    def advance(self, size_bytes: int) -> None:
        """That much more is done."""
        self._done_bytes += size_bytes
        now = time.monotonic()
        if now >= self._next:
            self._next = now + self._interval
            self._show()

    def _show(self) -> None:
        share = min(1.0, self._done_bytes / self._total_bytes)
        bar = "#" * round(share * _BAR_WIDTH)
        text = (
            f"{self._label} [{bar:<{_BAR_WIDTH}}] {share:4.0%} "
            f"{format_size(self._done_bytes)} of {format_size(self._total_bytes)}"
        )
        self._is_shown = True
        print(f"\r{text}" if self._is_terminal else text, end="", file=self._stream, flush=True)
        if not self._is_terminal:
            print(file=self._stream)

    def finish(self) -> None:
        """Leave the cursor on a line of its own."""
        if self._is_shown and self._is_terminal:
            self._show()
            print(file=self._stream)
