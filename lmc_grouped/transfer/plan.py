"""Where the bytes of a group's pages lie on both sides: worked out once, at registration.

An operation then adds only its block ids and slots, as arrays.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

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
    """The runs of one page: bytes that are contiguous in the engine's cache."""

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
        addresses: list[int] = []
        strides: list[int] = []
        sizes: list[int] = []
        for view in layer_views:
            for place in np.ndindex(tuple(view.shape[1:-1])):
                offset = sum(i * s for i, s in zip(place, view.stride()[1:-1], strict=True))
                addresses.append(view.data_ptr() + offset)
                strides.append(view.stride(0))
                sizes.append(view.shape[-1])
        run_bytes = np.array(sizes, dtype=np.int64)
        return cls(
            group_id=group_id,
            num_blocks=min((view.shape[0] for view in layer_views), default=0),
            page_bytes=sum(prod(view.shape[1:]) for view in layer_views),
            device_addresses=np.array(addresses, dtype=np.int64),
            block_strides_bytes=np.array(strides, dtype=np.int64),
            page_offsets_bytes=np.cumsum(run_bytes) - run_bytes,
            run_bytes=run_bytes,
        )

    @property
    def mean_run_bytes(self) -> int:
        """Bytes of one copy on average; what the ladder decides by."""
        return self.page_bytes // max(len(self.run_bytes), 1)

    def copies(self, pool: HostPool, block_ids: Ids, slots: Ids) -> Copies:
        """The copies that move these pages, page by page and run by run."""
        device = self.device_addresses + block_ids[:, None] * self.block_strides_bytes
        host = pool.addresses(slots)[:, None] + self.page_offsets_bytes
        sizes = np.broadcast_to(self.run_bytes, device.shape)
        return Copies(device.ravel(), host.ravel(), sizes.ravel())
