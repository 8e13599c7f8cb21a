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


class HostRegion:
    """An anonymous private mapping that holds the pools of all groups.

    The kernel gives all of it at once, in huge pages where it can, and takes
    everything back when the process ends however it ends: nothing is left
    behind in ``/dev/shm``.

    Args:
        shapes: group_id -> shape of its pool.
        row_bytes: the pools share the same rows of that many bytes, and a page
            lies at the start of its row; ``None``: each pool has its own bytes.

    Raises:
        RegionError: the mapping was refused.
    """

    def __init__(self, shapes: Mapping[int, PoolShape], *, row_bytes: int | None = None) -> None:
        offsets: dict[int, int] = {}
        end = 0
        for group_id, shape in shapes.items():
            if row_bytes is not None:
                offsets[group_id] = 0
                end = max(end, shape.slots * row_bytes)
                continue
            offsets[group_id] = end
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
        self._pools = {}
        for group_id, shape in shapes.items():
            width = shape.page_bytes if row_bytes is None else row_bytes
            start = offsets[group_id]
            rows = buffer[start : start + shape.slots * width].reshape(shape.slots, width)
            self._pools[group_id] = rows[:, : shape.page_bytes]

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
        """The group's pool, bytes of shape ``[slots, page_bytes]``, one row per slot."""
        return self._pools[group_id]
