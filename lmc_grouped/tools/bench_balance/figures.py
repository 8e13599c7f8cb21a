"""What one engine is asked to run and what it answers."""

from collections.abc import Callable
from enum import Enum
from statistics import median

import msgspec


class Side(Enum):
    """How the host budget of the engine is cut."""

    AUTO = "auto"
    """Elastic, with the extents that the plan picks."""
    FORCED = "auto, forced extents"
    """Elastic, with extents of several of the largest page."""
    STATIC = "static"
    OFF = "off"

    @property
    def partition(self) -> str:
        """`cpu_group_partition` of the side."""
        return "auto" if self is Side.FORCED else self.value


class Phase(msgspec.Struct, frozen=True):
    """Prompts of one length."""

    tokens: int
    prompts: int


class Task(msgspec.Struct, frozen=True):
    """One engine."""

    model: str
    """Name of the tiny model."""
    model_dir: str
    side: Side
    budget_bytes: int
    reference_tokens: int
    """What pools are sized for: `mamba_state_slots_reference_tokens`."""
    short: Phase
    long: Phase
    rounds: int
    """Measured; one more comes before them."""
    forced_pages: int
    """Pages of the largest group in one extent of the side with forced extents."""


class Round(msgspec.Struct, frozen=True, kw_only=True):
    """Short prompts and long ones; both twice, the second time from host memory."""

    engine_seconds: float
    """In the engine's steps."""
    balance_seconds: float
    """In planning, ending and carrying out moves."""
    store_seconds: float
    """In planning stores: finding slots, and evicting for them."""
    longest_plan_seconds: float
    """Of all calls that plan moves."""
    moved_pages: int
    moved_bytes: int
    evicted_pages: int
    reservations: int
    """Those that got their slots, and the stalls."""
    stalls: int
    """Reservations that found no room, each time they were tried."""
    not_stored_pages: int
    """For want of room."""
    restorable_tokens: int
    """What the second runs could get from a host without limits."""
    restored_tokens: int

    @property
    def balance_share(self) -> float:
        """Of the engine's time."""
        return self.balance_seconds / self.engine_seconds

    @property
    def store_share(self) -> float:
        """Of the engine's time."""
        return self.store_seconds / self.engine_seconds

    @property
    def stall_share(self) -> float:
        """Of the reservations."""
        return self.stalls / self.reservations if self.reservations else 0.0

    @property
    def restored_share(self) -> float:
        """Of what a host without limits would give."""
        return self.restored_tokens / self.restorable_tokens


class Result(msgspec.Struct, frozen=True):
    """What one engine has answered."""

    task: Task
    rounds: tuple[Round, ...]
    extents: int
    """0 where pools are fixed."""
    extent_bytes: int
    pages_per_extent: tuple[int, ...]
    """By group."""

    def middle(self, figure: Callable[[Round], float]) -> float:
        """Median over the rounds."""
        return median(map(figure, self.rounds))

    @property
    def longest_plan_seconds(self) -> float:
        """Over all rounds."""
        return max(item.longest_plan_seconds for item in self.rounds)
