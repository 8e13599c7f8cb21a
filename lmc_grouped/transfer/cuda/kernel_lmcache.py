"""LMCache's compiled block operation, told that each run of a page is a layer.

In its layout ``NL_X_NB_BS_HS`` an object is the layers' blocks one after the other,
rows of a block in order: with an object per page and a layer per run, our page. What
it is not: it takes four objects a call, and runs of one size and one stride only.
Not accepted on GPU.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import numpy as np
import torch

from lmc_grouped.transfer.copies import Ids
from lmc_grouped.transfer.cuda.kernel_block import Geometry
from lmc_grouped.transfer.cuda.pinned import check_pinned
from lmc_grouped.transfer.cuda.stream import EventTicket, operation_name
from lmc_grouped.transfer.cuda.torch_work import TorchLane
from lmc_grouped.transfer.ladder import LMCACHE
from lmc_grouped.transfer.plan import HostPool, PagePlan

PAGES_PER_CALL = 4
_LANES = 32
"""Threads that share a row."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Runs cut into rows, which the operation takes for tokens."""

    num_blocks: int
    runs: int
    rows: int
    """Of one run."""
    row_bytes: int
    block_stride_bytes: int

    @classmethod
    def of(cls, plan: PagePlan, pool: HostPool) -> "Rows":
        """Of a group's plan and pool.

        Raises:
            ValueError: runs that the operation cannot be told of.
        """
        sizes, strides = (set(x.tolist()) for x in (plan.run_bytes, plan.block_strides_bytes))
        if len(sizes) != 1 or len(strides) != 1:
            raise ValueError(
                f"group {plan.group_id}: LMCache's operation takes runs of one size and one "
                f"distance between blocks, this group has {sorted(sizes)} and {sorted(strides)} "
                "bytes: another way of copying serves it"
            )
        word = Geometry.of(plan, pool).word_bytes
        if word == 1:
            raise ValueError(
                f"group {plan.group_id}: LMCache's operation copies two bytes at least, and an "
                "address, size or stride of this group is odd: another way of copying serves it"
            )
        (run_bytes,), (stride,) = sizes, strides
        row_bytes = _row_bytes(run_bytes, word)
        runs = len(plan.run_bytes)
        return cls(plan.num_blocks, runs, run_bytes // row_bytes, row_bytes, stride)


def _row_bytes(run_bytes: int, word: int) -> int:
    """The longest row that divides a run and for which the operation picks a word that fits.

    It looks at the length of a row only: 16 bytes a word where that divides it, else 4, else 2.
    Where addresses allow less, the row must not be a multiple of more.
    """
    unit = word if word in (16, 2) else 4
    wider = {16: 0, 4: 16, 2: 4}[unit]
    rows = (lanes * unit for lanes in range(_LANES, 0, -1))
    return next(row for row in rows if not run_bytes % row and (not wider or row % wider))


class BlockOperation(Protocol):
    """LMCache's ``multi_layer_block_kv_transfer`` on torch's current stream."""

    def __call__(
        self,
        runs: torch.Tensor,
        pages: list[int],
        block_ids: torch.Tensor,
        *,
        rows: int,
        row_bytes: int,
        num_blocks: int,
        block_stride_bytes: int,
        to_host: bool,
    ) -> None:
        """Copy blocks of ``runs``, addresses in device memory, to or from ``pages``."""
        ...


class OpenOperation(Protocol):
    """Gives the operation."""

    def __call__(
        self, capability: tuple[int, int], *, device: torch.device
    ) -> BlockOperation | str:
        """The operation for a device, or why there is none."""
        ...


class LMCacheRung:
    """The rung ``lmcache``; it has to outlive its tickets.

    Args:
        plan: of the group's pages.
        pool: page-locked, and mapped for the device at the host's own addresses.
        operation: LMCache's.
        memory: gives ``uint8`` ``[bytes]`` on the device.
        stores: where it works on stores.
        loads: where it works on loads.

    Raises:
        TransferError: the pool is not page-locked.
        ValueError: the group's runs do not suit the operation.
    """

    name = LMCACHE
    copies_inline = False

    def __init__(
        self,
        plan: PagePlan,
        pool: HostPool,
        operation: BlockOperation,
        memory: Callable[[int], torch.Tensor],
        stores: TorchLane,
        loads: TorchLane,
    ) -> None:
        self._group_id = plan.group_id
        self._pool = pool
        self._operation = operation
        check_pinned(stores.stream.driver, plan.group_id, pool)
        self._rows = Rows.of(plan, pool)
        self._stores, self._loads = stores, loads
        self._runs = memory(plan.device_addresses.nbytes).view(torch.int64)
        self._runs.copy_(torch.from_numpy(np.ascontiguousarray(plan.device_addresses)))

    def store(self, block_ids: Ids, slots: Ids) -> EventTicket:
        """Begin to copy device block ``block_ids[i]`` into pool slot ``slots[i]``.

        Raises:
            TransferError: the copies could not be begun.
        """
        return self._begin(self._stores, block_ids, slots, to_host=True)

    def load(self, block_ids: Ids, slots: Ids) -> EventTicket:
        """Begin to copy pool slot ``slots[i]`` into device block ``block_ids[i]``.

        Raises:
            TransferError: the copies could not be begun.
        """
        return self._begin(self._loads, block_ids, slots, to_host=False)

    def _begin(self, lane: TorchLane, block_ids: Ids, slots: Ids, *, to_host: bool) -> EventTicket:
        where = operation_name(self._group_id, len(slots), to_host=to_host)
        addresses, room = self._pool.addresses(slots).tolist(), lane.ids.room

        def submit() -> None:
            for first in range(0, len(slots), room):
                part = slice(first, first + room)
                blocks = lane.ids.put(block_ids[part])
                lane.run(partial(self._copy, blocks, addresses[part], to_host=to_host))

        return lane.stream.begin(where, submit)

    def _copy(self, block_ids: torch.Tensor, pages: list[int], *, to_host: bool) -> None:
        for first in range(0, len(pages), PAGES_PER_CALL):
            part = slice(first, first + PAGES_PER_CALL)
            self._operation(
                self._runs,
                pages[part],
                block_ids[part],
                rows=self._rows.rows,
                row_bytes=self._rows.row_bytes,
                num_blocks=self._rows.num_blocks,
                block_stride_bytes=self._rows.block_stride_bytes,
                to_host=to_host,
            )
