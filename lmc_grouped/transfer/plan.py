"""Where the bytes of a group's pages lie on both sides: worked out once, at registration.

An operation then adds only its block ids and slots, as arrays.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from lmc_grouped.transfer.copies import Copies, Ids


@dataclass(frozen=True, slots=True)
class HostPool:
    """The pool of one group in host memory.

    Slot ``s`` begins at ``address + extent * extent_stride_bytes + position * page_bytes``
    with ``extent, position = divmod(s, slots_per_extent)``.
    """

    address: int
    num_slots: int
    slots_per_extent: int
    extent_stride_bytes: int
    page_bytes: int

    @classmethod
    def of(cls, pool: npt.NDArray[np.uint8]) -> "HostPool":
        """Of bytes ``[extents, slots per extent, page_bytes]``, pages contiguous."""
        extents, slots, page_bytes = pool.shape
        return cls(pool.ctypes.data, extents * slots, slots, pool.strides[0], page_bytes)

    def addresses(self, slots: Ids) -> npt.NDArray[np.int64]:
        """Where each slot begins, ``[slots]``."""
        extent, position = np.divmod(slots, self.slots_per_extent)
        return self.address + extent * self.extent_stride_bytes + position * self.page_bytes


@dataclass(frozen=True, slots=True)
class PagePlan:
    """The runs of one page: bytes that are contiguous in the engine's cache.

    Runs that follow each other in every block are one run, across layers too. Layers in
    different allocations stay apart, even where these are neighbours by chance: a device
    need not copy across them.
    """

    group_id: int
    num_blocks: int
    page_bytes: int
    device_addresses: npt.NDArray[np.int64]
    """``[runs]``: of the run in block 0."""
    block_strides_bytes: npt.NDArray[np.int64]
    """``[runs]``: from one block to the next."""
    page_offsets_bytes: npt.NDArray[np.int64]
    """``[runs]``: of the run in the page; a page has no gaps."""
    run_bytes: npt.NDArray[np.int64]
    """``[runs]``."""

    @classmethod
    def of(cls, group_id: int, layer_views: Sequence[torch.Tensor]) -> "PagePlan":
        """Of a group's layers.

        Args:
            group_id: for messages.
            layer_views: per layer, the engine's bytes as ``uint8`` of shape
                ``[num_blocks, *outer, run_bytes]``, any strides outside the run. A page
                is the layers' pages one after the other, in this order.
        """
        runs = [_layer_runs(view) for view in layer_views]
        if not runs:
            nothing = np.zeros(0, dtype=np.int64)
            return cls(group_id, 0, 0, nothing, nothing, nothing, nothing)
        addresses, strides, sizes, storages = (
            np.concatenate(column) for column in zip(*runs, strict=True)
        )
        follows = (
            (addresses[1:] == addresses[:-1] + sizes[:-1])
            & (strides[1:] == strides[:-1])
            & (storages[1:] == storages[:-1])
        )
        firsts = np.flatnonzero(np.concatenate([[True], ~follows]))
        run_bytes = np.add.reduceat(sizes, firsts)
        return cls(
            group_id=group_id,
            num_blocks=min(view.shape[0] for view in layer_views),
            page_bytes=int(run_bytes.sum()),
            device_addresses=addresses[firsts],
            block_strides_bytes=strides[firsts],
            page_offsets_bytes=np.cumsum(run_bytes) - run_bytes,
            run_bytes=run_bytes,
        )

    @property
    def mean_run_bytes(self) -> int:
        """Bytes of one copy on average; what the ladder decides by."""
        return self.page_bytes // max(len(self.run_bytes), 1)

    def copies(self, pool: HostPool, block_ids: Ids, slots: Ids) -> Copies:
        """The copies that move these pages, page by page and run by run.

        Pages of one run whose blocks and slots both count up by one within an extent
        become one copy. With more runs to a page the runs of the next page are not
        adjacent in the pool.
        """
        device = self.device_addresses + block_ids[:, None] * self.block_strides_bytes
        host = pool.addresses(slots)[:, None] + self.page_offsets_bytes
        if len(self.run_bytes) == 1 and self.block_strides_bytes[0] == self.run_bytes[0]:
            firsts, pages = neighbours(block_ids, slots, pool.slots_per_extent)
            return Copies(device[firsts, 0], host[firsts, 0], pages * self.run_bytes[0])
        sizes = np.broadcast_to(self.run_bytes, device.shape)
        return Copies(device.ravel(), host.ravel(), sizes.ravel())


def _layer_runs(view: torch.Tensor) -> tuple[npt.NDArray[np.int64], ...]:
    """Address in block 0, block stride, size and storage of each run of one layer, ``[runs]``."""
    offsets = np.zeros(1, dtype=np.int64)
    for size, stride in zip(view.shape[1:-1], view.stride()[1:-1], strict=True):
        offsets = np.add.outer(offsets, np.arange(size, dtype=np.int64) * stride).ravel()
    of_layer = (view.stride(0), view.shape[-1], view.untyped_storage().data_ptr())
    return (
        view.data_ptr() + offsets,
        *(np.full(len(offsets), value, dtype=np.int64) for value in of_layer),
    )


def neighbours(
    block_ids: Ids, slots: Ids, slots_per_extent: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Where pages begin that do not follow the page before them, and how many follow each."""
    follows = (np.diff(block_ids) == 1) & (np.diff(slots) == 1) & (slots[1:] % slots_per_extent > 0)
    firsts = np.flatnonzero(np.concatenate([np.ones(min(1, len(slots)), dtype=bool), ~follows]))
    return firsts, np.diff(firsts, append=len(slots))
