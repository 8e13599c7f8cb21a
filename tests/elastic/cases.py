"""What is measured: layouts and budgets, workloads, right and wrong reference lengths, switches."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from lmc_grouped.tools.plan.layout import read_layout
from lmc_grouped.tools.simulate.contexts import (
    LONGEST_TOKENS,
    asked,
    mixed_lengths,
    uniform_lengths,
)
from lmc_grouped.tools.simulate.pools import Scheme
from tests.elastic.measure import Meter, Setting, mean_share

LAYOUTS = Path(__file__).parents[1] / "layouts"
SCHEMES = (Scheme.SHARED, Scheme.SIZED, Scheme.ELASTIC)

BUDGET_FACTORS = {
    "flash_next": 16.0,
    "dflash2_like": 16.0,
    "glm53_flash_like": 1.0,
    "gemma3_27b_like": 3.0,
    "gpt_oss_120b_like": 2.0,
    "deepseek_v41": 0.128,
}
"""Times the layout's own budget: whole contexts are coarse, and more pages take longer."""

WARM_UP_BUDGETS = 1.1
"""Bytes written before anything counts, in budgets."""
MEASURED_BUDGETS = 0.75
REFERENCE_FACTORS = (1.0, 4.0, 0.25)
STEP_TOKENS = 8_192
MIX_MEAN_TOKENS = 26_000
"""The mean length of 1K to 128K, short ones as likely as long ones by their logarithms."""


@dataclass(frozen=True, slots=True)
class Steady:
    """Shares of the ceiling that are held of one workload."""

    layout: str
    retention_tokens: int
    workload: str
    reference_tokens: int
    reference_factor: float
    shares: dict[str, float]
    """By scheme, means over the checks after the warm-up."""
    cut_as: str
    """What came of the elastic cut."""
    moved_pages: int

    @property
    def ahead(self) -> float:
        """Elastic over the better of the others; below 0 it is behind."""
        return self.shares["elastic"] - max(self.shares["shared"], self.shares["sized"])


@dataclass(frozen=True, slots=True)
class Switched:
    """What elastic pools hold of a new workload, beside pools that never had another."""

    layout: str
    retention_tokens: int
    direction: str
    ratio: float
    """Held tokens after one budget of the new workload, per token that fresh pools hold then."""


def setting(name: str, factor: float, *, periodic: bool) -> Setting:
    """One layout at so many times its budget, with retention 0 or about every 8K tokens.

    Steps end at the interval, or its states would hardly exist.
    """
    layout = read_layout(LAYOUTS / f"{name}.json")
    assert layout.budget_bytes is not None
    align = layout.table.alignment_tokens
    interval = -(-STEP_TOKENS // align) * align if periodic else 0
    budget = int(layout.budget_bytes * factor) // (layout.workers or 1)
    return Setting(layout, budget, interval, interval or STEP_TOKENS)


def steady(name: str, factor: float, *, periodic: bool) -> Iterator[Steady]:
    """Uniform lengths and the mix, each with three reference lengths."""
    some = setting(name, factor, periodic=periodic)
    # Off the grid: a length on it keeps a second resume point, which the ceiling leaves out.
    length = some.layout.max_model_tokens // 4 - 1
    workloads: dict[str, tuple[int, Callable[[], Iterator[int]]]] = {
        f"{length + 1:,}": (length, lambda: uniform_lengths(length)),
        "1K to 128K": (MIX_MEAN_TOKENS, lambda: mixed_lengths(LONGEST_TOKENS, 0)),
    }
    for workload, (right_tokens, lengths) in workloads.items():
        shared: float | None = None
        for reference_factor in REFERENCE_FACTORS:
            reference = int(right_tokens * reference_factor)
            shares, meter = {}, None
            for scheme in SCHEMES:
                if scheme is Scheme.SHARED and shared is not None:
                    shares[str(scheme)] = shared  # rows know no reference length
                    continue
                meter = Meter(some, scheme, reference)
                meter.ask(asked(lengths()), WARM_UP_BUDGETS + MEASURED_BUDGETS)
                shares[str(scheme)] = mean_share(meter.checks, WARM_UP_BUDGETS)
                shared = shares[str(Scheme.SHARED)]
            assert meter is not None
            yield Steady(
                name, some.retention_tokens, workload, reference, reference_factor, shares,
                str(meter.plan.partition), meter.replay.tally.moved_pages,
            )  # fmt: skip


def switched(name: str, factor: float, *, periodic: bool) -> Iterator[Switched]:
    """From short contexts to long ones and back; the reference is the length before."""
    some = setting(name, factor, periodic=periodic)
    long = some.layout.max_model_tokens - 1
    short = long // 16
    for direction, before, after in (
        ("short to long", short, long),
        ("long to short", long, short),
    ):
        meter = Meter(some, Scheme.ELASTIC, before)
        fresh = Meter(some, Scheme.ELASTIC, before)
        meter.ask(asked(uniform_lengths(before), "before"), WARM_UP_BUDGETS)
        meter.start_over()
        meter.ask(asked(uniform_lengths(after)), 1.0)
        fresh.ask(asked(uniform_lengths(after)), 1.0)
        ratio = meter.checks[-1].held_tokens / fresh.checks[-1].held_tokens
        yield Switched(name, some.retention_tokens, direction, ratio)
