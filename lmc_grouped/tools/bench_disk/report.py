"""Medians and ratios of a disk benchmark, as text."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from lmc_grouped.tools.bench_disk.shape_figures import ShapeFigures
from lmc_grouped.tools.bench_disk.sides import Mode, Side
from lmc_grouped.tools.tables import Align, format_table

_ALIGNS = (Align.LEFT, Align.LEFT, Align.RIGHT, Align.RIGHT, Align.RIGHT)


@dataclass(frozen=True, slots=True)
class Sample:
    """One side in one round; megabytes (10^6 bytes) a second."""

    side: Side
    mode: Mode
    round_index: int
    put_mb_s: float
    get_mb_s: float

    @property
    def both_mb_s(self) -> float:
        """Of a put and a get one after the other."""
        return 2 / (1 / self.put_mb_s + 1 / self.get_mb_s)


def spread(values: Iterable[float], decimals: int = 0) -> str:
    """Median, smallest and largest."""
    ordered = sorted(values)
    low, high = ordered[0], ordered[-1]
    return f"{median(ordered):,.{decimals}f} ({low:,.{decimals}f}..{high:,.{decimals}f})"


def format_samples(samples: Sequence[Sample], pages: int, page_bytes: int) -> str:
    """A table of rates, then one of ratios, each paired within a round."""
    rows = [
        [
            mode,
            side,
            spread(s.put_mb_s for s in chosen),
            spread(s.get_mb_s for s in chosen),
            spread(s.both_mb_s for s in chosen),
        ]
        for mode in Mode
        for side in Side
        if (chosen := [s for s in samples if (s.side, s.mode) == (side, mode)])
    ]
    rates = format_table(
        ["I/O", "side", "put MB/s", "get MB/s", "put and get MB/s"],
        rows,
        _ALIGNS,
    )
    ratios = format_table(
        ["I/O", "ratio", "put", "get", "put and get"],
        [row for mode in Mode for row in _ratios(samples, mode)],
        _ALIGNS,
    )
    heading = f"{pages} pages of {page_bytes:,} bytes; median (smallest..largest) of the rounds"
    return f"{heading}\n\n{rates}\n\n{ratios}"


def format_crc32(rounds: Sequence[Mapping[str, float]]) -> str:
    """Rates of the checksum, by library; the last one is what the tier uses."""
    rates = {library: spread(rates[library] for rates in rounds) for library in rounds[0]}
    listed = ", ".join(f"{library} {rate} MB/s" for library, rate in rates.items())
    return f"CRC32 of the pages, one thread: {listed}; the tier uses {list(rates)[-1]}"


def _ratios(samples: Sequence[Sample], mode: Mode) -> list[list[str]]:
    rows = []
    ours = _by_round(samples, Side.OURS, mode)
    for side in (Side.PLAIN, Side.LMCACHE):
        theirs = _by_round(samples, side, mode)
        rounds = ours.keys() & theirs.keys()
        if rounds:
            puts = [ours[r].put_mb_s / theirs[r].put_mb_s for r in rounds]
            gets = [ours[r].get_mb_s / theirs[r].get_mb_s for r in rounds]
            both = [ours[r].both_mb_s / theirs[r].both_mb_s for r in rounds]
            cells = [spread(ratios, 2) for ratios in (puts, gets, both)]
            rows.append([mode, f"{Side.OURS} / {side}", *cells])
    return rows


def _by_round(samples: Sequence[Sample], side: Side, mode: Mode) -> dict[int, Sample]:
    return {s.round_index: s for s in samples if (s.side, s.mode) == (side, mode)}


def format_shapes(rounds: Sequence[Sequence[ShapeFigures]]) -> str:
    """One line per shape."""
    rows = [
        [
            shape[0].name,
            spread(f.put_mb_s for f in shape),
            spread(f.get_mb_s for f in shape),
            spread((f.small_put_us for f in shape), 1),
            spread((f.recover_seconds * 1e3 for f in shape), 0),
            spread((f.overhead_bytes_per_record for f in shape), 0),
        ]
        for shape in zip(*rounds, strict=True)
    ]
    headers = [
        "shape", "put MB/s", "get MB/s", "us per small put", "recovery ms", "bytes beyond the page",
    ]  # fmt: skip
    return format_table(headers, rows, [Align.LEFT, *[Align.RIGHT] * 5])
