"""Regular grids among the runs of a page: equal runs at equal distances, in any number of axes.

Layers of one raw buffer lie at one distance from each other, and so do the heads inside
a block: the whole page of a group is then one strided array.
"""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from lmc_grouped.transfer.plan import PagePlan


@dataclass(frozen=True, slots=True)
class RunGrid:
    """Runs of one size: run ``(i, j, ...)`` lies at ``address + i * strides[0] + j * ...``."""

    device_address: int
    """Of the first run in block 0."""
    page_offset_bytes: int
    """Of the first run in the page; the others follow without gaps, the last axis fastest."""
    shape: tuple[int, ...]
    strides_bytes: tuple[int, ...]
    run_bytes: int
    block_stride_bytes: int


def find_grids(plan: PagePlan, limit: int) -> list[RunGrid] | None:
    """Cut the runs of a page, in their order, into as few grids as a greedy search finds.

    Returns:
        ``None`` where more than ``limit`` would be needed.
    """
    changes = np.flatnonzero(np.diff(plan.run_bytes) | np.diff(plan.block_strides_bytes)) + 1
    borders = [0, *changes.tolist(), len(plan.run_bytes)]
    grids: list[RunGrid] = []
    for first, last in pairwise(borders):
        start = first
        while start < last:
            if len(grids) == limit:
                return None
            shape, strides = _leading_grid(plan.device_addresses[start:last])
            grids.append(
                RunGrid(
                    int(plan.device_addresses[start]),
                    int(plan.page_offsets_bytes[start]),
                    shape,
                    strides,
                    int(plan.run_bytes[start]),
                    int(plan.block_strides_bytes[start]),
                )
            )
            start += int(np.prod(shape))
    return grids


def _leading_grid(addresses: npt.NDArray[np.int64]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shape and strides of the grid that the first addresses make, the last axis fastest."""
    shape: list[int] = []
    strides: list[int] = []
    tile = np.zeros(1, dtype=np.int64)
    while True:
        # How often the tile found so far is repeated at one distance.
        whole = len(addresses) // len(tile)
        if whole < 2:
            break
        rows = addresses[: whole * len(tile)].reshape(whole, len(tile))
        distance = rows[1, 0] - rows[0, 0]
        expected = addresses[0] + np.add.outer(np.arange(whole) * distance, tile)
        differs = np.flatnonzero((rows != expected).any(axis=1))
        repeats = int(differs[0]) if len(differs) else whole
        if repeats < 2:
            break
        shape.insert(0, repeats)
        strides.insert(0, int(distance))
        tile = (expected[:repeats] - addresses[0]).ravel()
    return tuple(shape) or (1,), tuple(strides) or (0,)
