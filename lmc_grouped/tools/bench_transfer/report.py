"""Medians and ratios of the transfer benchmark, as text."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from lmc_grouped.tools.bench_transfer.memory import Order
from lmc_grouped.tools.bench_transfer.sides import Side
from lmc_grouped.tools.tables import Align, format_table

_ALIGNS = (Align.LEFT, Align.LEFT, Align.RIGHT, Align.RIGHT)


@dataclass(frozen=True, slots=True)
class Sample:
    """One side in one round; gigabytes (10^9 bytes) a second."""

    side: Side
    order: Order
    round_index: int
    out_gb_s: float
    in_gb_s: float


def format_samples(samples: Sequence[Sample], pages: int, page_bytes: int) -> str:
    """A table of rates, then one of ratios, each paired within a round."""
    rates = format_table(
        ["ids", "side", "out GB/s", "in GB/s"],
        [
            [order, side, _spread(s.out_gb_s for s in chosen), _spread(s.in_gb_s for s in chosen)]
            for order in Order
            for side in Side
            if (chosen := [s for s in samples if (s.side, s.order) == (side, order)])
        ],
        _ALIGNS,
    )
    ratios = format_table(
        ["ids", "ratio", "out", "in"],
        [row for order in Order for row in _ratios(samples, order)],
        _ALIGNS,
    )
    heading = f"{pages} pages of {page_bytes:,} bytes; median (smallest..largest) of the rounds"
    return f"{heading}\n\n{rates}\n\n{ratios}"


def _ratios(samples: Sequence[Sample], order: Order) -> list[list[str]]:
    ours = _by_round(samples, Side.OURS, order)
    rows = []
    for side in Side:
        theirs = _by_round(samples, side, order)
        rounds = ours.keys() & theirs.keys()
        if side is not Side.OURS and rounds:
            outs = [ours[r].out_gb_s / theirs[r].out_gb_s for r in rounds]
            ins = [ours[r].in_gb_s / theirs[r].in_gb_s for r in rounds]
            rows.append([order, f"{Side.OURS} / {side}", _spread(outs), _spread(ins)])
    return rows


def _by_round(samples: Sequence[Sample], side: Side, order: Order) -> dict[int, Sample]:
    return {s.round_index: s for s in samples if (s.side, s.order) == (side, order)}


def _spread(values: Iterable[float]) -> str:
    """Median, smallest and largest."""
    ordered = sorted(values)
    return f"{median(ordered):.2f} ({ordered[0]:.2f}..{ordered[-1]:.2f})"
