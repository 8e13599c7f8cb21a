"""A driver that page-locks nothing and remembers what it was asked."""

from bisect import bisect, insort
from dataclasses import dataclass, field

INVALID_VALUE, OUT_OF_MEMORY, NOT_REGISTERED = 1, 2, 713
ONE_CALL_LIMIT_BYTES = 512 * 2**30


@dataclass
class FakeDriver:
    """Refuses what CUDA refuses, and the piece it is told to."""

    refused_piece: int | None = None
    code: int = OUT_OF_MEMORY
    asked: int = 0
    locked: list[tuple[int, int]] = field(default_factory=list)
    """(address, size_bytes) of what is registered, ascending."""
    calls: list[str] = field(default_factory=list)
    released: list[int] = field(default_factory=list)
    pending_error: int = 0
    blamed: list[str] = field(default_factory=list)
    """Calls made while the error of an earlier one was still pending."""

    def register(self, address: int, size_bytes: int) -> int:
        self._call("register")
        self.asked += 1
        if self.asked - 1 == self.refused_piece:
            self.pending_error = self.code
        elif size_bytes >= ONE_CALL_LIMIT_BYTES or size_bytes <= 0 or self._overlaps(
            address, size_bytes
        ):  # fmt: skip
            self.pending_error = INVALID_VALUE
        else:
            insort(self.locked, (address, size_bytes))
        return self.pending_error

    def unregister(self, address: int) -> int:
        self._call("unregister")
        place = bisect(self.locked, (address, 0))
        if place == len(self.locked) or self.locked[place][0] != address:
            self.pending_error = NOT_REGISTERED
        else:
            del self.locked[place]
            self.released.append(address)
        return self.pending_error

    def clear_error(self) -> None:
        self.calls.append("clear")
        self.pending_error = 0

    def _call(self, name: str) -> None:
        self.calls.append(name)
        if self.pending_error:
            self.blamed.append(name)

    def _overlaps(self, address: int, size_bytes: int) -> bool:
        place = bisect(self.locked, (address, 0))
        before, after = self.locked[max(place - 1, 0) : place], self.locked[place : place + 1]
        return any(a < address + size_bytes and address < a + s for a, s in before + after)
