"""The rung of any device torch knows: torch's own copies, over when they return."""

from collections.abc import Sequence
from math import prod

import numpy as np
import torch

from lmc_grouped.transfer.copies import DONE, Ids, Ticket, TransferError
from lmc_grouped.transfer.plan import neighbours

_WORDS = (torch.int64, torch.int32, torch.int16)


class TorchRung:
    """One ``copy_`` per layer and range of pages that count up on both sides.

    Args:
        group_id: for messages.
        layer_views: per layer, the engine's bytes as ``uint8`` of shape
            ``[num_blocks, *outer, run_bytes]``, any strides outside the run.
        pool: host bytes ``uint8`` of shape ``[extents, slots per extent, page_bytes]``.
    """

    name = "torch"
    copies_inline = True

    def __init__(
        self, group_id: int, layer_views: Sequence[torch.Tensor], pool: torch.Tensor
    ) -> None:
        self._group_id = group_id
        self._slots_per_extent = pool.shape[1]
        self._pairs: list[tuple[torch.Tensor, torch.Tensor]] = []
        start = 0
        for view in layer_views:
            size = prod(view.shape[1:])
            host = pool[..., start : start + size].unflatten(2, tuple(view.shape[1:]))
            self._pairs.append(_widest(view, host))
            start += size

    def store(self, block_ids: Ids, slots: Ids) -> Ticket:
        """Copy device block ``block_ids[i]`` into pool slot ``slots[i]``.

        Raises:
            TransferError: torch could not.
        """
        return self._copy(block_ids, slots, to_host=True)

    def load(self, block_ids: Ids, slots: Ids) -> Ticket:
        """Copy pool slot ``slots[i]`` into device block ``block_ids[i]``.

        Raises:
            TransferError: torch could not.
        """
        return self._copy(block_ids, slots, to_host=False)

    def _copy(self, block_ids: Ids, slots: Ids, *, to_host: bool) -> Ticket:
        firsts, pages = neighbours(block_ids, slots, self._slots_per_extent)
        extents, positions = np.divmod(slots[firsts], self._slots_per_extent)
        ranges = zip(block_ids[firsts], extents, positions, pages, strict=True)
        try:
            for block, extent, slot, count in ranges:
                for device, host in self._pairs:
                    source = device[block : block + count]
                    target = host[extent, slot : slot + count]
                    if not to_host:
                        source, target = target, source
                    target.copy_(source)
        except RuntimeError as error:
            raise TransferError(
                f"group {self._group_id}: copying {len(slots)} pages failed: {error}"
            ) from error
        return DONE


def _widest(device: torch.Tensor, host: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The same bytes as the widest integers that size, strides and offsets allow."""
    for word in _WORDS:
        numbers = [device.shape[-1]]
        for view in (device, host):
            numbers += [view.storage_offset(), *view.stride()[:-1]]
        if all(number % word.itemsize == 0 for number in numbers):
            return device.view(word), host.view(word)
    return device, host
