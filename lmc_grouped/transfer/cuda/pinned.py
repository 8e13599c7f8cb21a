"""Host pools that a device may copy to and from by itself: page-locked ones, and no others."""

import ctypes
from collections.abc import Sequence

import numpy as np

from lmc_grouped.transfer.copies import TransferError
from lmc_grouped.transfer.cuda import abi
from lmc_grouped.transfer.cuda.driver import Driver
from lmc_grouped.transfer.cuda.merging import Addresses
from lmc_grouped.transfer.plan import HostPool

_STEP_BYTES = 4 * 2**20
"""Distance of the places asked about: far below the size of a pinned piece."""


def check_pinned(driver: Driver, group_id: int, pool: HostPool) -> None:
    """Refuse a pool that the driver does not know as page-locked.

    An asynchronous copy of pageable memory is one in name only, and its bytes may be read
    late. Every 4 MiB and the last byte are asked about.

    Raises:
        TransferError: with the first place that is not.
    """
    size_bytes = span_bytes(pool)
    for offset in [*range(0, size_bytes, _STEP_BYTES), size_bytes - 1]:
        if offset < 0:
            continue  # a pool without bytes: this rank has no layers of the group
        kind = ctypes.c_uint()
        code = driver.code(
            "cuPointerGetAttribute",
            ctypes.byref(kind),
            abi.POINTER_MEMORY_TYPE,
            pool.address + offset,
        )
        if code not in (abi.SUCCESS, abi.INVALID_VALUE):
            raise driver.error(code, "cuPointerGetAttribute", f"group {group_id}: its pool")
        if code or kind.value != abi.MEMORY_TYPE_HOST:
            raise TransferError(
                f"group {group_id}: byte {offset} of its pool of {size_bytes} bytes at "
                f"0x{pool.address:x} is not page-locked; copies of a CUDA device need the whole "
                "pool registered before (lmc_grouped.transfer: torch does without)"
            )


def check_borders(group_id: int, pool: HostPool, borders: Sequence[int]) -> Addresses:
    """The borders of pinned pieces that matter to a pool, ascending.

    Raises:
        TransferError: one lies inside a page, so that no copy of that page would be within
            one piece.
    """
    inside = sorted(b for b in borders if pool.address < b < pool.address + span_bytes(pool))
    for border in inside:
        place = (border - pool.address) % pool.extent_stride_bytes
        if place < pool.slots_per_extent * pool.page_bytes and place % pool.page_bytes:
            raise TransferError(
                f"group {group_id}: a pinned piece begins at 0x{border:x}, inside a page of "
                f"{pool.page_bytes} bytes; pieces have to be cut on the borders of pages"
            )
    return np.array(inside, dtype=np.int64)


def span_bytes(pool: HostPool) -> int:
    """From the first byte of the first slot to the last byte of the last one."""
    if not pool.num_slots:
        return 0
    extents = pool.num_slots // pool.slots_per_extent
    return (extents - 1) * pool.extent_stride_bytes + pool.slots_per_extent * pool.page_bytes
