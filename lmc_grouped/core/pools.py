"""Pools: how the host budget of a worker is cut, and what came of it."""

from dataclasses import dataclass
from enum import StrEnum

from lmc_grouped.core.extents import ExtentPlan


class Partition(StrEnum):
    """The ways to cut it (``cpu_group_partition``)."""

    AUTO = "auto"
    """Extents that move between the groups as the requests need them."""
    STATIC = "static"
    """A pool per group, fixed at start."""
    OFF = "off"
    """Rows of one size that every group takes from."""


@dataclass(frozen=True, slots=True)
class PoolPlan:
    """Slots per group for one worker."""

    slots_by_group: dict[int, int]
    """With rows or extents: the most that each group can have, not all at once."""
    used_bytes: int
    budget_bytes: int
    token_capacity: int
    """Tokens that every group covers."""
    row_bytes: int | None = None
    """Bytes of one row, where all groups share the same slots."""
    extents: ExtentPlan | None = None
    """Where slots lie in extents that move between groups."""

    @property
    def partition(self) -> Partition:
        """How the budget was cut."""
        if self.extents is not None:
            return Partition.AUTO
        return Partition.STATIC if self.row_bytes is None else Partition.OFF
