"""Short runs: torch gathers pages on the device, and whole pages cross the bus.

A page with runs of 8 KB costs one copy for each of them otherwise. The gathered
pages go straight to their slots: the pool is page-locked, so a host buffer between
would only cost the host another copy.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod

import numpy as np
import torch

from lmc_grouped.transfer.copies import Copies, Ids
from lmc_grouped.transfer.cuda.merging import merge
from lmc_grouped.transfer.cuda.pinned import check_borders, check_pinned
from lmc_grouped.transfer.cuda.stream import EventTicket, operation_name
from lmc_grouped.transfer.cuda.submit import Directed, Submit
from lmc_grouped.transfer.cuda.torch_work import TorchLane
from lmc_grouped.transfer.ladder import STAGED
from lmc_grouped.transfer.plan import HostPool, PagePlan
from lmc_grouped.transfer.words import widest

STAGING_BYTES = 16 * 2**20
"""Of device memory, for all groups of a worker and one direction; one page of the largest group
where that is more. The engine has given its memory away by then, so it has to be little."""


@dataclass(frozen=True, slots=True)
class Staging:
    """Room on the device for pages of one direction.

    The groups of a worker share it: the stream lets one operation at a time use it.
    """

    buffer: torch.Tensor
    """``uint8`` ``[bytes]``, at least a page of the largest group."""
    lane: TorchLane
    """Where it is filled and emptied."""


class StagedRung:
    """The rung ``staged``.

    Args:
        plan: of the group's pages, which have bytes.
        layer_views: per layer ``uint8`` ``[num_blocks, *outer, run_bytes]``, those of the plan.
        pool: page-locked.
        stores: where pages are gathered.
        loads: where pages are scattered from.
        submit: how pages cross the bus.
        borders: host addresses at which separately pinned pieces begin.

    Raises:
        TransferError: the pool is not page-locked, or cut inside a page.
    """

    name = STAGED
    copies_inline = False

    def __init__(
        self,
        plan: PagePlan,
        layer_views: Sequence[torch.Tensor],
        pool: HostPool,
        stores: Staging,
        loads: Staging,
        submit: Submit,
        borders: Sequence[int] = (),
    ) -> None:
        self._group_id = plan.group_id
        self._pool = pool
        self._submit = submit
        check_pinned(stores.lane.stream.driver, plan.group_id, pool)
        self._borders = check_borders(plan.group_id, pool, borders)
        self._stores, self._loads = stores, loads
        self._gathered = _StagedPages.of(layer_views, stores, plan.page_bytes)
        self._arrived = _StagedPages.of(layer_views, loads, plan.page_bytes)

    def store(self, block_ids: Ids, slots: Ids) -> EventTicket:
        """Begin to copy device block ``block_ids[i]`` into pool slot ``slots[i]``.

        Raises:
            TransferError: the copies could not be begun.
        """
        where = operation_name(self._group_id, len(slots), to_host=True)
        lane, pages = self._stores.lane, self._gathered

        def submit() -> None:
            for blocks, places in pages.chunks(block_ids, slots):
                lane.run(partial(pages.gather, lane.ids.put(blocks)))
                self._submit(lane.stream, self._across(pages, places, to_host=True), where)

        return lane.stream.begin(where, submit)

    def load(self, block_ids: Ids, slots: Ids) -> EventTicket:
        """Begin to copy pool slot ``slots[i]`` into device block ``block_ids[i]``.

        Raises:
            TransferError: the copies could not be begun.
        """
        where = operation_name(self._group_id, len(slots), to_host=False)
        lane, pages = self._loads.lane, self._arrived

        def submit() -> None:
            for blocks, places in pages.chunks(block_ids, slots):
                self._submit(lane.stream, self._across(pages, places, to_host=False), where)
                lane.run(partial(pages.scatter, lane.ids.put(blocks)))

        return lane.stream.begin(where, submit)

    def _across(self, pages: "_StagedPages", slots: Ids, *, to_host: bool) -> Directed:
        """Whole pages between the buffer and their slots."""
        device = pages.address + np.arange(len(slots), dtype=np.int64) * self._pool.page_bytes
        sizes = np.full(len(slots), self._pool.page_bytes, dtype=np.int64)
        copies = Copies(device, self._pool.addresses(slots), sizes)
        return Directed.of(merge(copies, self._borders), to_host=to_host)


@dataclass(frozen=True, slots=True)
class _StagedPages:
    """A buffer, cut into pages of one group."""

    address: int
    capacity_pages: int
    pairs: tuple[tuple[torch.Tensor, torch.Tensor], ...]
    """Per layer its cache and its part of the pages, in the widest words that fit both."""

    @classmethod
    def of(
        cls, layer_views: Sequence[torch.Tensor], staging: Staging, page_bytes: int
    ) -> "_StagedPages":
        buffer = staging.buffer
        capacity = min(len(buffer) // page_bytes, staging.lane.ids.room)
        assert capacity, "the staging buffer is made for the largest page"
        rows = buffer[: capacity * page_bytes].view(capacity, page_bytes)
        pairs, start = [], 0
        for view in layer_views:
            size = prod(view.shape[1:])
            staged = rows[:, start : start + size].unflatten(1, tuple(view.shape[1:]))
            pairs.append(widest(view, staged))
            start += size
        return cls(buffer.data_ptr(), capacity, tuple(pairs))

    def chunks(self, block_ids: Ids, slots: Ids) -> Iterator[tuple[Ids, Ids]]:
        """As many pages at a time as the buffer holds; the stream keeps the chunks apart."""
        for first in range(0, len(slots), self.capacity_pages):
            part = slice(first, first + self.capacity_pages)
            yield block_ids[part], slots[part]

    def gather(self, block_ids: torch.Tensor) -> None:
        for cache, staged in self.pairs:
            torch.index_select(cache, 0, block_ids, out=staged[: len(block_ids)])

    def scatter(self, block_ids: torch.Tensor) -> None:
        for cache, staged in self.pairs:
            cache.index_copy_(0, block_ids, staged[: len(block_ids)])
