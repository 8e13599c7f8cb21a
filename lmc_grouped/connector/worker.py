"""The worker half: owns the bytes of one rank and copies what it is told."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

import msgspec
import torch

from lmc_grouped.adapters import lmcache_transfer, namespace, vllm_groups
from lmc_grouped.adapters.hooks import Receives
from lmc_grouped.adapters.lmcache_config import DiskSettings
from lmc_grouped.connector.copy_line import Begun, CopyLine
from lmc_grouped.connector.messages import (
    GroupPages,
    MoveOperation,
    Operation,
    RankReport,
    StepMetadata,
    StepReport,
)
from lmc_grouped.connector.rank_disk import RankDisk
from lmc_grouped.connector.setup import prepare
from lmc_grouped.core.pools import PoolPlan
from lmc_grouped.host.disk import DiskTier, Quota
from lmc_grouped.host.region import ExtentShape, HostRegion, PoolShape
from lmc_grouped.transfer.build import Transfers
from lmc_grouped.transfer.copies import DeviceStream, Ticket, TransferError
from lmc_grouped.transfer.pages import PageCopier

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig

IDLE_WAIT_SECONDS = 0.01
"""How long a step without computation waits for loads. The engine would only ask again at
once, and its asking keeps the copying thread from the interpreter; new requests wait as long."""


class WorkerHalf:
    """One per rank, in its worker process."""

    def __init__(self, vllm_config: "VllmConfig", kv_cache_config: "KVCacheConfig") -> None:
        self._setup = prepare(vllm_config, kv_cache_config)
        self.table = self._setup.table
        self._vllm_config = vllm_config
        self._kv_cache_config = kv_cache_config
        self._plan: PoolPlan | None = None
        self.region: HostRegion | None = None
        self.copiers: dict[int, PageCopier] = {}
        self.disk: RankDisk | None = None
        self.stream: DeviceStream | None = None
        """Where copies are submitted to a device beside the engine's work."""
        self.line = CopyLine()
        self._loads: dict[int, Operation] = {}
        """By operation id: those under way."""
        self._moves: set[int] = set()
        self._report = StepReport()
        self._receives = Receives()

    def register(self, kv_caches: Mapping[str, torch.Tensor]) -> None:
        """The engine's cache exists now: size the pools and map them.

        Raises:
            GroupTableError: a tensor does not hold what its spec says.
            BudgetError: the budget is below one page of every group.
            LadderError: the way of copying that was asked for cannot be had here.
            RegionError, PinningError: the host memory was refused, by the system or the device.
            TransferError: the device refused what copies need.
            DiskError: the directory of the file tier cannot be used, or is in use.
        """
        table = self.table
        views = {
            group.group_id: vllm_groups.layer_byte_views(self._kv_cache_config, group, kv_caches)
            for group in table.groups
        }
        transfers = Transfers.of(views, self._setup.transfer, lmcache_transfer.open_operation)
        self._plan = self._setup.cut()
        slots = self._plan.slots_by_group
        self.region = HostRegion(
            {g.group_id: PoolShape(slots[g.group_id], g.page_bytes) for g in table.groups},
            extents=ExtentShape.of(self._plan),
        )
        pools = {group_id: self.region.pool(group_id) for group_id in views}
        borders: list[int] = []
        if transfers.registrar is not None:
            rank = namespace.store_rank(self._vllm_config)
            borders = self.region.pin(transfers.registrar, rank)
        rungs = transfers.rungs(pools, borders)
        self.stream = transfers.stream
        self.copiers = {
            i: PageCopier(i, layers, torch.from_numpy(pools[i]), rungs[i])
            for i, layers in views.items()
        }
        if self._setup.disk is not None:
            self.disk = self._open_disk(self._setup.disk, self.region, self._plan)

    def rank_report(self) -> RankReport | None:
        """What this rank made of the table; ``None`` before its caches are registered."""
        if self._plan is None:
            return None
        return RankReport(
            self.table.fingerprint(),
            self.table.to_json(),
            self._plan,
            self.disk.report if self.disk else None,
        )

    def begin_loads(self, step: StepMetadata) -> None:
        """Begin to copy this step's loads into the engine's cache.

        Nothing computes on their blocks until they are acknowledged, and no slot they read
        is given away, so they run beside forward passes and stores.
        """
        if self.stream is not None and step.loads:
            self.stream.after_compute()
        for operation in step.loads:
            self._loads[operation.operation_id] = operation
            self.line.begin(
                operation.operation_id,
                partial(self._begin_pages, operation, self._load),
                on_thread=self._copies_inline(operation.pages),
            )

    def begin_moves(self, step: StepMetadata) -> None:
        """Begin this step's moves within the pools, behind the loads planned before them."""
        for operation in step.moves:
            self._moves.add(operation.operation_id)
            self.line.begin(
                operation.operation_id, partial(self.move_pages, operation), on_thread=True
            )

    def move_pages(self, operation: MoveOperation) -> Begun:
        """Carry out one operation of moves; called by the thread that copies."""
        try:
            for moves in operation.moves:
                self.copiers[moves.group_id].move(moves.source_slots, moves.target_slots)
        except TransferError as error:
            return Begun(failure=str(error))
        return Begun()

    def run_stores(self, step: StepMetadata) -> None:
        """Copy this step's stores into the pools; the forward pass has been run.

        Their source blocks may be another request's in the next step, so the copies are over
        when this returns, or the engine's next work on the device waits for them.
        """
        if self.stream is not None and step.stores:
            self.stream.after_compute()
        for operation in step.stores:
            begin = partial(self._begin_pages, operation, self._store)
            self.line.begin(operation.operation_id, begin, on_thread=False)
        if self.stream is not None and step.stores:
            self.stream.before_compute()
        self._collect()

    def run_disk(self, step: StepMetadata) -> None:
        """Begin this step's reads and writes of the disk; nothing waits for them."""
        if self.disk is not None:
            self.disk.run(step, self._report.failures.keys(), self.line.is_under_way)

    def close(self) -> None:
        """The worker ends: finish what was begun, and what was accepted for the disk."""
        self.line.close()
        self._collect()
        if self.disk is not None:
            self.disk.close()
        if self.region is not None:
            self.region.close()

    def take_receives(self, step: StepMetadata) -> Receives:
        """Loads that are over since the last call."""
        if self._loads and not step.has_forward:
            self.line.wait_for_thread(IDLE_WAIT_SECONDS)
        self._collect()
        receives, self._receives = self._receives, Receives()
        return receives

    def take_report(self) -> StepReport | None:
        """This rank's acknowledgements since the last call."""
        report, self._report = self._report, StepReport()
        if self.disk is not None:
            report.disk = self.disk.take_report()
        return None if report.is_empty() else report

    def _open_disk(self, settings: DiskSettings, region: HostRegion, plan: PoolPlan) -> RankDisk:
        """This rank's store; groups of which it has no layers take no part."""
        groups = tuple(group for group in self.table.groups if group.page_bytes)
        name = namespace.build_namespace(
            self._vllm_config,
            self._kv_cache_config,
            msgspec.structs.replace(self.table, groups=groups),
            shared_rows=plan.row_bytes is not None,
        )
        rank = namespace.store_rank(self._vllm_config)
        return RankDisk(
            DiskTier.open(settings.root, name, rank, Quota(settings.cap_bytes)),
            region,
            rank=rank,
            group_ids=[group.group_id for group in groups],
            root_hash=name.root_hash,
        )

    def _collect(self) -> None:
        """Acknowledge the operations that have ended."""
        for ended in self.line.take_ended():
            operation_id, failure = ended.operation_id, ended.failure
            if failure is not None:
                self._report.failures[operation_id] = failure
            if operation_id in self._loads:
                self._report.loaded[operation_id] = 1
                load = self._loads.pop(operation_id)
                self._receives.requests.add(load.request_id)
                if failure is not None:
                    self._receives.failed.add(load.request_id)
                    for pages in load.pages:
                        self._receives.failed_blocks.update(pages.block_ids)
            elif operation_id in self._moves:
                self._moves.remove(operation_id)
                self._report.moved[operation_id] = 1
            else:
                self._report.stored[operation_id] = 1
                if self.disk is not None:
                    self.disk.store_ended(operation_id, is_failed=failure is not None)

    def _copies_inline(self, pages: tuple[GroupPages, ...]) -> bool:
        """Whether the copies keep the thread busy that begins them."""
        return all(self.copiers[each.group_id].rung.copies_inline for each in pages)

    def _begin_pages(self, operation: Operation, begin: Callable[[GroupPages], Ticket]) -> Begun:
        """Begin the copies of one operation, group by group."""
        begun = Begun(failure=operation.refused)
        if operation.refused is not None:
            return begun
        try:
            for pages in operation.pages:
                begun.tickets.append(begin(pages))
        except TransferError as error:
            begun.failure = str(error)
        return begun

    def _load(self, pages: GroupPages) -> Ticket:
        return self.copiers[pages.group_id].load(pages.block_ids, pages.slots)

    def _store(self, pages: GroupPages) -> Ticket:
        return self.copiers[pages.group_id].store(pages.block_ids, pages.slots)
