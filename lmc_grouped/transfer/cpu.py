"""The rung of CPU tensors: the calling thread copies, and has copied when it returns.

Neither way holds the interpreter's lock while it copies, or runs Python for a page.
"""

import ctypes
from collections import deque
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from lmc_grouped.transfer.copies import DONE, Ids, Ticket
from lmc_grouped.transfer.grids import RunGrid, find_grids
from lmc_grouped.transfer.plan import HostPool, PagePlan


def cpu_rung(plan: PagePlan, pool: HostPool) -> "DirectRung | StridedRung":
    """The faster way for this plan: strided where that at least halves the calls.

    A call costs about a microsecond, and bytes the same either way: measured from 64 B to
    32 KiB a run in ``docs/transfer.md``.
    """
    grids = find_grids(plan, len(plan.run_bytes) // 2)
    return StridedRung(plan, pool, grids) if grids else DirectRung(plan, pool)


class DirectRung:
    """One ``memmove`` per run, or per stretch of merged pages.

    Args:
        plan: where the pages lie in the engine's cache, which must outlive this.
        pool: where they lie in host memory, which must outlive this.
    """

    name = "cpu"
    copies_inline = True

    def __init__(self, plan: PagePlan, pool: HostPool) -> None:
        self._plan = plan
        self._pool = pool

    def store(self, block_ids: Ids, slots: Ids) -> Ticket:
        """Copy device block ``block_ids[i]`` into pool slot ``slots[i]``."""
        copies = self._plan.copies(self._pool, block_ids, slots)
        copy_bytes(copies.host_addresses, copies.device_addresses, copies.sizes_bytes)
        return DONE

    def load(self, block_ids: Ids, slots: Ids) -> Ticket:
        """Copy pool slot ``slots[i]`` into device block ``block_ids[i]``."""
        copies = self._plan.copies(self._pool, block_ids, slots)
        copy_bytes(copies.device_addresses, copies.host_addresses, copies.sizes_bytes)
        return DONE


class StridedRung:
    """One strided assignment per page and grid of runs.

    Args:
        plan: where the pages lie in the engine's cache, which must outlive this.
        pool: where they lie in host memory, which must outlive this.
        grids: of all runs of the plan.
    """

    name = "cpu"
    copies_inline = True

    def __init__(self, plan: PagePlan, pool: HostPool, grids: Sequence[RunGrid]) -> None:
        self._slots_per_extent = pool.slots_per_extent
        self._sides = [_sides(grid, plan, pool) for grid in grids]

    def store(self, block_ids: Ids, slots: Ids) -> Ticket:
        """Copy device block ``block_ids[i]`` into pool slot ``slots[i]``."""
        blocks, places = block_ids.tolist(), self._places(slots)
        for device, host in self._sides:
            _make(map(host.__setitem__, places, map(device.__getitem__, blocks)))
        return DONE

    def load(self, block_ids: Ids, slots: Ids) -> Ticket:
        """Copy pool slot ``slots[i]`` into device block ``block_ids[i]``."""
        blocks, places = block_ids.tolist(), self._places(slots)
        for device, host in self._sides:
            _make(map(device.__setitem__, blocks, map(host.__getitem__, places)))
        return DONE

    def _places(self, slots: Ids) -> list[tuple[int, int]]:
        """``(extent, position)`` of each slot."""
        extents, positions = np.divmod(slots, self._slots_per_extent)
        return list(zip(extents.tolist(), positions.tolist(), strict=True))


def copy_bytes(
    targets: npt.NDArray[np.int64], sources: npt.NDArray[np.int64], sizes: npt.NDArray[np.int64]
) -> None:
    """Copy ``sizes[i]`` bytes from address ``sources[i]`` to address ``targets[i]``."""
    _make(map(ctypes.memmove, targets.tolist(), sources.tolist(), sizes.tolist()))


def _make(calls: Iterable[object]) -> None:
    """Make all calls of a ``map`` without a loop in the interpreter."""
    deque(calls, maxlen=0)


def _sides(
    grid: RunGrid, plan: PagePlan, pool: HostPool
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
    """The grid in the engine's cache, ``[blocks, *shape, run_bytes]``, and in the pool,
    ``[extents, slots per extent, *shape, run_bytes]``.

    Elements are bytes, though runs could be elements: numpy lets go of the interpreter's lock
    only for more than 500 elements, and a load must not stop the thread that computes.
    """
    device = _Memory(
        grid.device_address,
        (plan.num_blocks, *grid.shape, grid.run_bytes),
        (grid.block_stride_bytes, *grid.strides_bytes, 1),
    )
    extents = pool.num_slots // pool.slots_per_extent
    inner = grid.run_bytes * np.cumprod([1, *grid.shape[:0:-1]])[::-1]
    host = _Memory(
        pool.address + grid.page_offset_bytes,
        (extents, pool.slots_per_extent, *grid.shape, grid.run_bytes),
        (pool.extent_stride_bytes, pool.page_bytes, *inner.tolist(), 1),
    )
    return np.asarray(device), np.asarray(host)


class _Memory:
    """Bytes at an address, as numpy takes them."""

    def __init__(self, address: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> None:
        self.__array_interface__ = {
            "version": 3,
            "typestr": "|u1",
            "data": (address, False),
            "shape": shape,
            "strides": strides,
        }
