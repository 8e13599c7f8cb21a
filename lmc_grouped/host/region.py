"""One mapped buffer per worker, cut into a pool per group."""

import errno
import mmap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from lmc_grouped.core.pools import PoolPlan
from lmc_grouped.host.layout import MEMORY_PAGE_BYTES, PIECE_BYTES, RegionLayout, RowRun
from lmc_grouped.host.pinning import HostRegistrar, PinnedMemory

_MADV_POPULATE_WRITE = 23
"""Linux 5.14; Python's ``mmap`` has no name for it."""


class RegionError(ValueError):
    """The host buffer cannot be mapped: says how much was asked for."""


@dataclass(frozen=True, slots=True)
class PoolShape:
    """The pool of one group: ``slots`` rooms of ``page_bytes`` each."""

    slots: int
    page_bytes: int


@dataclass(frozen=True, slots=True)
class ExtentShape:
    """The budget in pieces of one size, each of which may hold pages of any group."""

    extent_bytes: int
    extents: int
    slots_per_extent: Mapping[int, int]
    """group_id -> whole pages in one extent; slot ``s`` lies in extent ``s // slots``."""

    @classmethod
    def of(cls, plan: PoolPlan) -> "ExtentShape | None":
        """How groups share the bytes of a plan; ``None`` where each has its own."""
        if plan.extents is not None:
            cut = plan.extents
            return cls(cut.extent_bytes, cut.extents, cut.slots_per_extent)
        if plan.row_bytes is not None:
            rows = min(plan.slots_by_group.values(), default=0)
            return cls(plan.row_bytes, rows, dict.fromkeys(plan.slots_by_group, 1))
        return None


def lay_out(shapes: Mapping[int, PoolShape], *, extents: ExtentShape | None = None) -> RegionLayout:
    """Where the pools lie in a region of these shapes; nothing is mapped.

    The rows between which it may be cut are the pages of each pool, or the extents.
    """
    if extents is not None:
        runs = [RowRun(0, extents.extents, extents.extent_bytes)]
        offsets = dict.fromkeys(shapes, 0)
        end = extents.extents * extents.extent_bytes
    else:
        runs, offsets, end = [], {}, 0
        for group_id, shape in shapes.items():
            offsets[group_id] = end
            runs.append(RowRun(end, shape.slots, shape.page_bytes))
            size = shape.slots * shape.page_bytes
            end += -(-size // MEMORY_PAGE_BYTES) * MEMORY_PAGE_BYTES
    filled = tuple(run for run in runs if run.rows and run.row_bytes)
    return RegionLayout(max(end, MEMORY_PAGE_BYTES), offsets, filled)


class HostRegion:
    """An anonymous private mapping that holds the pages of all groups.

    The kernel gives all of it at once, in huge pages where it can, and takes
    everything back when the process ends however it ends: no other process maps
    it, so it needs no name, and nothing is left behind in ``/dev/shm``.

    Args:
        shapes: group_id -> shape of its pool.
        extents: the groups share these instead; ``shapes`` give their page bytes.

    Raises:
        RegionError: the mapping was refused.
    """

    name = "anonymous host memory"

    def __init__(
        self, shapes: Mapping[int, PoolShape], *, extents: ExtentShape | None = None
    ) -> None:
        self.layout = lay_out(shapes, extents=extents)
        self.size_bytes = self.layout.size_bytes
        self.pinned: PinnedMemory | None = None
        try:
            self._map = mmap.mmap(-1, self.size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except (OSError, ValueError, OverflowError) as error:
            raise RegionError(
                f"mapping {self.size_bytes} bytes of host memory failed ({error}); "
                "lower max_local_cpu_size or raise the memory limit of this process"
            ) from error
        self._map.madvise(mmap.MADV_HUGEPAGE)
        self._populate()
        buffer = np.frombuffer(self._map, dtype=np.uint8)
        self.address = buffer.ctypes.data
        self._pools: dict[int, npt.NDArray[np.uint8]] = {}
        for group_id, shape in shapes.items():
            start, slots = self.layout.pool_offsets_bytes[group_id], shape.slots
            count, width = 1, slots * shape.page_bytes
            if extents is not None:
                count, slots = extents.extents, extents.slots_per_extent[group_id]
                width = extents.extent_bytes
            rows = buffer[start : start + count * width].reshape(count, width)
            pages = rows[:, : slots * shape.page_bytes]
            self._pools[group_id] = pages.reshape(count, slots, shape.page_bytes)

    def pin(
        self,
        registrar: HostRegistrar,
        rank: int,
        *,
        piece_bytes: int = PIECE_BYTES,
        lock_path: Path | None = None,
    ) -> list[int]:
        """Have the driver page-lock all of it, so that a device can copy by itself.

        Args:
            registrar: the driver.
            rank: whose region it is, for messages.
            piece_bytes: given to the driver in one call, at most 64 GiB.
            lock_path: where other processes wait meanwhile; default: one per user
                in the directory for temporary files.

        Returns:
            Where the pieces begin; a copy must not reach over one of these addresses.

        Raises:
            PinningError: the driver refused; nothing is pinned. Start-up has to end
                with it: ranks whose memory is pinned and ranks whose is not would copy
                in different ways.
            ValueError: pieces or rows larger than a piece may be.
        """
        self.pinned = PinnedMemory(
            self.name, self.address, self.layout.pieces(piece_bytes), registrar,
            rank=rank, lock_path=lock_path,
        )  # fmt: skip
        return [self.address + piece.offset_bytes for piece in self.pinned.pieces]

    def close(self) -> None:
        """Unpin what is pinned; the memory itself stays as long as its pools are in use."""
        if self.pinned is not None:
            self.pinned.close()
            self.pinned = None

    def _populate(self) -> None:
        """Have the kernel give the memory now: the first store would pay for it otherwise."""
        try:
            self._map.madvise(_MADV_POPULATE_WRITE)
        except OSError as error:
            if error.errno != errno.EINVAL:  # a kernel before 5.14 gives it page by page
                raise RegionError(
                    f"{self.size_bytes} bytes of host memory cannot be had ({error}); "
                    "lower max_local_cpu_size or raise the memory limit of this process"
                ) from error

    def pool(self, group_id: int) -> npt.NDArray[np.uint8]:
        """The bytes of the group, ``[extents, slots per extent, page_bytes]``.

        A group with a pool of its own has one extent.
        """
        return self._pools[group_id]

    def page(self, group_id: int, slot: int) -> npt.NDArray[np.uint8]:
        """The bytes of one slot, ``[page_bytes]``."""
        pool = self._pools[group_id]
        extent, position = divmod(slot, pool.shape[1])
        page: npt.NDArray[np.uint8] = pool[extent, position]
        return page
