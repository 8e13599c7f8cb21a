"""One mapped buffer per worker, cut into a pool per group."""

import errno
import mmap
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

_POOL_ALIGNMENT_BYTES = 4096
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


class HostRegion:
    """An anonymous private mapping that holds the pages of all groups.

    The kernel gives all of it at once, in huge pages where it can, and takes
    everything back when the process ends however it ends: nothing is left
    behind in ``/dev/shm``.

    Args:
        shapes: group_id -> shape of its pool.
        extents: the groups share these instead; ``shapes`` give their page bytes.

    Raises:
        RegionError: the mapping was refused.
    """

    def __init__(
        self, shapes: Mapping[int, PoolShape], *, extents: ExtentShape | None = None
    ) -> None:
        offsets: dict[int, int] = {}
        end = 0 if extents is None else extents.extents * extents.extent_bytes
        for group_id, shape in shapes.items():
            offsets[group_id] = 0 if extents else end
            if extents is None:
                size = shape.slots * shape.page_bytes
                end += -(-size // _POOL_ALIGNMENT_BYTES) * _POOL_ALIGNMENT_BYTES
        self.size_bytes = max(end, _POOL_ALIGNMENT_BYTES)
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
        self._pools: dict[int, npt.NDArray[np.uint8]] = {}
        for group_id, shape in shapes.items():
            if extents is None:
                start, count, slots = offsets[group_id], 1, shape.slots
                width = slots * shape.page_bytes
            else:
                start, count = 0, extents.extents
                slots, width = extents.slots_per_extent[group_id], extents.extent_bytes
            rows = buffer[start : start + count * width].reshape(count, width)
            pages = rows[:, : slots * shape.page_bytes]
            self._pools[group_id] = pages.reshape(count, slots, shape.page_bytes)

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
