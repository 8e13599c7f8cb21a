"""The rung of any device torch knows: torch's own copies, over when they return."""

from collections.abc import Sequence
from math import prod

import numpy as np
import torch

from lmc_grouped.transfer.copies import DONE, Ids, Ticket, TransferError
from lmc_grouped.transfer.plan import neighbours
from lmc_grouped.transfer.words import widest


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
            self._pairs.append(widest(view, host))
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
