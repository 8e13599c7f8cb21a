"""Direct and strided copies for each size of run: what the CPU rung decides by."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np

from lmc_grouped.tools.tables import Align, format_table

RUN_BYTES = tuple(2**n for n in range(6, 18))


@dataclass(frozen=True, slots=True)
class RunFigures:
    """Gigabytes (10^9 bytes) a second of each round, store and load together."""

    run_bytes: int
    direct_gb_s: tuple[float, ...]
    strided_gb_s: tuple[float, ...]

    @property
    def ratio(self) -> float:
        """Strided to direct, paired by round."""
        pairs = zip(self.strided_gb_s, self.direct_gb_s, strict=True)
        return median(strided / direct for strided, direct in pairs)


def measure_runs(page_bytes: int, total_bytes: int, rounds: int) -> list[RunFigures]:
    """Pages of equal runs at equal distances, blocks and slots in random order."""
    return [
        _measure(run_bytes, page_bytes, total_bytes, rounds)
        for run_bytes in RUN_BYTES
        if 2 * run_bytes <= page_bytes
    ]


def format_runs(figures: Sequence[RunFigures]) -> str:
    """One line per size of run."""
    rows = [
        [
            f"{each.run_bytes:,}",
            f"{median(each.direct_gb_s):.2f}",
            f"{median(each.strided_gb_s):.2f}",
            f"{each.ratio:.2f}",
        ]
        for each in figures
    ]
    headers = ["run bytes", "direct GB/s", "strided GB/s", "strided / direct"]
    return format_table(headers, rows, [Align.RIGHT] * 4)


def _measure(run_bytes: int, page_bytes: int, total_bytes: int, rounds: int) -> RunFigures:
    import torch

    from lmc_grouped.host.region import HostRegion, PoolShape
    from lmc_grouped.transfer.cpu import DirectRung, StridedRung
    from lmc_grouped.transfer.grids import find_grids
    from lmc_grouped.transfer.plan import HostPool, PagePlan

    pages, runs = total_bytes // page_bytes, page_bytes // run_bytes
    cache = torch.ones(runs, pages, run_bytes, dtype=torch.uint8)
    region = HostRegion({0: PoolShape(pages, page_bytes)})
    pool, plan = HostPool.of(region.pool(0)), PagePlan.of(0, [cache.transpose(0, 1)])
    grids = find_grids(plan, 1)
    assert grids, "equal runs at equal distances are one grid"
    rng = np.random.default_rng(0)
    blocks, slots = rng.permutation(pages), rng.permutation(pages)
    ways: dict[str, Any] = {
        "direct": DirectRung(plan, pool), "strided": StridedRung(plan, pool, grids),
    }  # fmt: skip
    rates: dict[str, list[float]] = {name: [] for name in ways}
    for round_index in range(-1, rounds):
        for name, rung in ways.items():
            seconds = _seconds(rung.store, blocks, slots) + _seconds(rung.load, blocks, slots)
            if round_index >= 0:
                rates[name].append(2 * pages * page_bytes / seconds / 1e9)
    return RunFigures(run_bytes, tuple(rates["direct"]), tuple(rates["strided"]))


def _seconds(copy: Callable[..., object], *arguments: object) -> float:
    start = time.perf_counter()
    copy(*arguments)
    return time.perf_counter() - start
