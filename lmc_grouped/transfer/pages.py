"""Copies of whole pages of one group: ids are checked here, a rung copies."""

from collections.abc import Sequence
from math import prod

import numpy as np
import torch

from lmc_grouped.transfer.copies import DONE, Ids, Rung, Ticket, TransferError
from lmc_grouped.transfer.cpu import copy_bytes, cpu_rung
from lmc_grouped.transfer.plan import HostPool, PagePlan
from lmc_grouped.transfer.synchronous import TorchRung


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
        rung: how to copy; default: the one of the device that needs nothing else.

    Raises:
        ValueError: the layers do not add up to the pool's page.
    """

    def __init__(
        self,
        group_id: int,
        layer_views: Sequence[torch.Tensor],
        pool: torch.Tensor,
        rung: Rung | None = None,
    ) -> None:
        sizes = [prod(view.shape[1:]) for view in layer_views]
        if sum(sizes) != pool.shape[2]:
            raise ValueError(
                f"group {group_id}: layers of {sizes} bytes do not make a page of "
                f"{pool.shape[2]} bytes"
            )
        self.group_id = group_id
        self._num_blocks = min((view.shape[0] for view in layer_views), default=0)
        self._pool = HostPool.of(pool.numpy())
        # The rungs know addresses only: their memory lives as long as this.
        self.layer_views = tuple(layer_views)
        self._pool_memory = pool
        if rung is None:
            is_on_host = all(view.device.type == "cpu" for view in layer_views)
            rung = (
                cpu_rung(PagePlan.of(group_id, layer_views), self._pool)
                if is_on_host
                else TorchRung(group_id, layer_views, pool)
            )
        self.rung = rung

    def store(self, block_ids: Sequence[int], slots: Sequence[int]) -> Ticket:
        """Begin to copy device block ``block_ids[i]`` into pool slot ``slots[i]``.

        Raises:
            TransferError: an id out of range or a slot twice, or the copies could not be begun.
        """
        blocks, places = self._checked(block_ids, slots)
        self._check_distinct(places, "slots")
        return self.rung.store(blocks, places) if self._has_bytes(places) else DONE

    def load(self, block_ids: Sequence[int], slots: Sequence[int]) -> Ticket:
        """Begin to copy pool slot ``slots[i]`` into device block ``block_ids[i]``.

        Raises:
            TransferError: an id out of range or a block twice, or the copies could not be
                begun.
        """
        blocks, places = self._checked(block_ids, slots)
        self._check_distinct(blocks, "block ids")
        return self.rung.load(blocks, places) if self._has_bytes(places) else DONE

    def move(self, source_slots: Sequence[int], target_slots: Sequence[int]) -> None:
        """Copy pool slot ``source_slots[i]`` into pool slot ``target_slots[i]``.

        Raises:
            TransferError: a slot out of range.
        """
        sources, targets = (np.asarray(s, dtype=np.int64) for s in (source_slots, target_slots))
        for slots in (sources, targets):
            self._check_range(slots, self._pool.num_slots, "slots")
        sizes = np.full(len(targets), self._pool.page_bytes)
        copy_bytes(self._pool.addresses(targets), self._pool.addresses(sources), sizes)

    def _has_bytes(self, slots: Ids) -> bool:
        """Whether there is something to copy: a pipeline rank may hold no layer of a group."""
        return bool(self._pool.page_bytes and len(slots))

    def _checked(self, block_ids: Sequence[int], slots: Sequence[int]) -> tuple[Ids, Ids]:
        blocks, places = (np.asarray(ids, dtype=np.int64) for ids in (block_ids, slots))
        if self._pool.page_bytes:
            self._check_range(blocks, self._num_blocks, "block ids")
        self._check_range(places, self._pool.num_slots, "slots")
        if len(blocks) != len(places):
            raise TransferError(
                f"group {self.group_id}: {len(blocks)} blocks for {len(places)} slots"
            )
        return blocks, places

    def _check_range(self, ids: Ids, limit: int, what: str) -> None:
        if len(ids) and (ids.min() < 0 or ids.max() >= limit):
            raise TransferError(
                f"group {self.group_id}: {what} {ids.min()}..{ids.max()} are outside 0..{limit - 1}"
            )

    def _check_distinct(self, ids: Ids, what: str) -> None:
        if len(np.unique(ids)) < len(ids):
            raise TransferError(
                f"group {self.group_id}: {what} {ids.tolist()} name a target of the copy twice"
            )
