"""How much a store may hold, and how much leaves when it is too much."""

from dataclasses import dataclass

from lmc_grouped.host.disk.format import DiskError


@dataclass(frozen=True, slots=True)
class Quota:
    """How many bytes of pages a store may hold.

    Above ``watermark * cap_bytes`` the oldest pages leave, ``evict_ratio * cap_bytes``
    at a time; so the cap itself is never reached.
    """

    cap_bytes: int
    watermark: float = 0.8
    evict_ratio: float = 0.2

    def __post_init__(self) -> None:
        if self.cap_bytes <= 0:
            raise DiskError(f"the disk quota is {self.cap_bytes} bytes; it must be positive")
        for name in ("watermark", "evict_ratio"):
            value = getattr(self, name)
            if not 0 < value <= 1:
                raise DiskError(f"{name} is {value}; it must be above 0 and at most 1")

    @property
    def watermark_bytes(self) -> int:
        """What pages may take before some have to leave."""
        return int(self.watermark * self.cap_bytes)

    @property
    def evict_bytes(self) -> int:
        """What leaves at least when something has to."""
        return int(self.evict_ratio * self.cap_bytes)
