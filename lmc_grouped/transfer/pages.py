"""Copies of whole pages between the engine's cache and a host pool.

The path for CPU tensors and, through torch's own synchronous copies, for any
device torch knows. Every copy has finished when a method returns.
"""

from collections.abc import Sequence
from math import prod

import torch

from lmc_grouped.transfer.copies import TransferError

_WORDS = (torch.int64, torch.int32, torch.int16)


class PageCopier:
    """Moves pages of one group.

    Args:
        group_id: for messages.
        layer_views: per layer, the engine's bytes as ``uint8`` of shape
            ``[num_blocks, *outer, run_bytes]``, any strides outside the run.
        pool: host bytes ``uint8`` of shape ``[extents, slots per extent,
            page_bytes]``; slot ``s`` is the page ``divmod(s, slots per extent)``.
            A page is the layers' pages one after the other, in the order of
            the views.

    Raises:
        ValueError: the layers do not add up to the pool's page.
    """

    def __init__(
        self, group_id: int, layer_views: Sequence[torch.Tensor], pool: torch.Tensor
    ) -> None:
        self.group_id = group_id
        self.num_blocks = min((view.shape[0] for view in layer_views), default=0)
        extents, self.slots_per_extent, page_bytes = pool.shape
        self.num_slots = extents * self.slots_per_extent
        self._pool = pool
        sizes = [prod(view.shape[1:]) for view in layer_views]
        if sum(sizes) != page_bytes:
            raise ValueError(
                f"group {group_id}: layers of {sizes} bytes do not make a page of "
                f"{page_bytes} bytes"
            )
        self._pairs: list[tuple[torch.Tensor, torch.Tensor]] = []
        start = 0
        for view, size in zip(layer_views, sizes, strict=True):
            host = pool[..., start : start + size].unflatten(2, tuple(view.shape[1:]))
            self._pairs.append(_widest(view, host))
            start += size

    def store(self, block_ids: Sequence[int], slots: Sequence[int]) -> None:
        """Copy device block ``block_ids[i]`` into pool slot ``slots[i]``.

        Raises:
            TransferError: an id out of range, or the copy failed.
        """
        self._copy(block_ids, slots, to_host=True)

    def load(self, block_ids: Sequence[int], slots: Sequence[int]) -> None:
        """Copy pool slot ``slots[i]`` into device block ``block_ids[i]``.

        Raises:
            TransferError: an id out of range, or the copy failed.
        """
        self._copy(block_ids, slots, to_host=False)

    def move(self, source_slots: Sequence[int], target_slots: Sequence[int]) -> None:
        """Copy pool slot ``source_slots[i]`` into pool slot ``target_slots[i]``.

        Raises:
            TransferError: a slot out of range, or the copy failed.
        """
        for slots in (source_slots, target_slots):
            self._check(slots, self.num_slots, "slots")
        for source, target in zip(source_slots, target_slots, strict=True):
            self._pool[divmod(target, self.slots_per_extent)].copy_(
                self._pool[divmod(source, self.slots_per_extent)]
            )

    def _copy(self, block_ids: Sequence[int], slots: Sequence[int], *, to_host: bool) -> None:
        if self._pairs:  # a pipeline rank may hold no layer of the group
            self._check(block_ids, self.num_blocks, "block ids")
        self._check(slots, self.num_slots, "slots")
        if len(block_ids) != len(slots):
            raise TransferError(
                f"group {self.group_id}: {len(block_ids)} blocks for {len(slots)} slots"
            )
        if not block_ids:
            return
        try:
            for first, last in _runs(block_ids, slots, self.slots_per_extent):
                block, count = block_ids[first], last - first
                extent, slot = divmod(slots[first], self.slots_per_extent)
                for device, host in self._pairs:
                    source = device[block : block + count]
                    target = host[extent, slot : slot + count]
                    if not to_host:
                        source, target = target, source
                    target.copy_(source)
        except RuntimeError as error:
            raise TransferError(
                f"group {self.group_id}: copying {len(slots)} pages failed: {error}"
            ) from error

    def _check(self, ids: Sequence[int], limit: int, what: str) -> None:
        if ids and (min(ids) < 0 or max(ids) >= limit):
            raise TransferError(
                f"group {self.group_id}: {what} {min(ids)}..{max(ids)} are outside 0..{limit - 1}"
            )


def _runs(
    block_ids: Sequence[int], slots: Sequence[int], slots_per_extent: int
) -> list[tuple[int, int]]:
    """Index ranges in which blocks and slots both count up by one, within one extent."""
    runs: list[tuple[int, int]] = []
    first = 0
    for i in range(1, len(slots) + 1):
        if (
            i == len(slots)
            or block_ids[i] != block_ids[i - 1] + 1
            or slots[i] != slots[i - 1] + 1
            or slots[i] % slots_per_extent == 0
        ):
            runs.append((first, i))
            first = i
    return runs


def _widest(device: torch.Tensor, host: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The same bytes as the widest integers that size, strides and offsets allow."""
    for word in _WORDS:
        numbers = [device.shape[-1]]
        for view in (device, host):
            numbers += [view.storage_offset(), *view.stride()[:-1]]
        if all(number % word.itemsize == 0 for number in numbers):
            return device.view(word), host.view(word)
    return device, host
