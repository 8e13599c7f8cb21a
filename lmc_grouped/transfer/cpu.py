"""The rung of CPU tensors: the calling thread copies, and has copied when it returns."""

import ctypes
from collections import deque
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from lmc_grouped.transfer.copies import DONE, Ids, Ticket
from lmc_grouped.transfer.grids import RunGrid, find_grids
from lmc_grouped.transfer.plan import HostPool, PagePlan

DIRECT_RUN_BYTES = 16 * 2**10
"""From this run size on each run is a copy of its own. Below, the page's runs are copied by
one strided assignment per grid: a call costs about a microsecond, which is what copying
8 KiB takes. Measured in ``docs/transfer.md``."""


class CpuRung:
    """Copies with ``memmove`` per run, or per page where the runs are small and regular.

    Neither holds the interpreter's lock while it copies.

    Args:
        plan: where the pages lie in the engine's cache, which must outlive this.
        pool: where they lie in host memory, which must outlive this.
    """

    name = "cpu"
    copies_inline = True

    def __init__(self, plan: PagePlan, pool: HostPool) -> None:
        self._plan = plan
        self._pool = pool
        self._grids: list[tuple[npt.NDArray[Any], npt.NDArray[Any]]] = []
        runs = len(plan.run_bytes)
        if plan.page_bytes < runs * DIRECT_RUN_BYTES:
            # Half the calls at least, or merging neighbours is worth more.
            grids = find_grids(plan, runs // 2) or []
            self._grids = [_sides(grid, plan, pool) for grid in grids]

    @property
    def is_strided(self) -> bool:
        """Whether pages are copied as strided arrays, not run by run."""
        return bool(self._grids)

    def store(self, block_ids: Ids, slots: Ids) -> Ticket:
        """Copy device block ``block_ids[i]`` into pool slot ``slots[i]``."""
        if self._grids:
            blocks, places = block_ids.tolist(), self._places(slots)
            for device, host in self._grids:
                _run(map(host.__setitem__, places, map(device.__getitem__, blocks)))
            return DONE
        copies = self._plan.copies(self._pool, block_ids, slots)
        copy_bytes(copies.host_addresses, copies.device_addresses, copies.sizes_bytes)
        return DONE

    def load(self, block_ids: Ids, slots: Ids) -> Ticket:
        """Copy pool slot ``slots[i]`` into device block ``block_ids[i]``."""
        if self._grids:
            blocks, places = block_ids.tolist(), self._places(slots)
            for device, host in self._grids:
                _run(map(device.__setitem__, blocks, map(host.__getitem__, places)))
            return DONE
        copies = self._plan.copies(self._pool, block_ids, slots)
        copy_bytes(copies.device_addresses, copies.host_addresses, copies.sizes_bytes)
        return DONE

    def _places(self, slots: Ids) -> list[tuple[int, int]]:
        """``(extent, position)`` of each slot."""
        extents, positions = np.divmod(slots, self._pool.slots_per_extent)
        return list(zip(extents.tolist(), positions.tolist(), strict=True))


def copy_bytes(
    targets: npt.NDArray[np.int64], sources: npt.NDArray[np.int64], sizes: npt.NDArray[np.int64]
) -> None:
    """Copy ``sizes[i]`` bytes from address ``sources[i]`` to address ``targets[i]``."""
    _run(map(ctypes.memmove, targets.tolist(), sources.tolist(), sizes.tolist()))


def _run(calls: Iterable[object]) -> None:
    """Make all calls of a ``map`` without a loop in the interpreter."""
    deque(calls, maxlen=0)


def _sides(
    grid: RunGrid, plan: PagePlan, pool: HostPool
) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """The grid in the engine's cache, ``[blocks, *shape]``, and in the pool,
    ``[extents, slots per extent, *shape]``. An element is a whole run, so that no run need
    be aligned to anything."""
    device = _Memory(
        grid.device_address,
        grid.run_bytes,
        (plan.num_blocks, *grid.shape),
        (grid.block_stride_bytes, *grid.strides_bytes),
    )
    inner = grid.run_bytes * np.cumprod([1, *grid.shape[:0:-1]])[::-1]
    host = _Memory(
        pool.address + grid.page_offset_bytes,
        grid.run_bytes,
        (pool.num_slots // pool.slots_per_extent, pool.slots_per_extent, *grid.shape),
        (pool.extent_stride_bytes, pool.page_bytes, *inner.tolist()),
    )
    return np.asarray(device), np.asarray(host)


class _Memory:
    """Bytes at an address, as numpy takes them: elements of ``item_bytes`` each."""

    def __init__(
        self, address: int, item_bytes: int, shape: tuple[int, ...], strides: tuple[int, ...]
    ) -> None:
        self.__array_interface__ = {
            "version": 3,
            "typestr": f"|V{item_bytes}",
            "data": (address, False),
            "shape": shape,
            "strides": strides,
        }
