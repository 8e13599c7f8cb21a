"""Which way of copying a group takes, and why."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """What is known of the engine's device before any copy."""

    type: str
    """torch's name: ``cpu``, ``cuda``, ..."""
    capability: tuple[int, int] | None = None
    """Compute capability of a CUDA device."""
    driver_version: int | None = None
    """As ``cuDriverGetVersion`` has it: 12080 is 12.8."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The way chosen, and the reason a user reads at start and in ``lmc-grouped doctor``."""

    rung: str
    reason: str
