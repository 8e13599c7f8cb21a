"""The worker half: owns the bytes of one rank and copies what it is told."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec
import torch

from lmc_grouped.adapters import namespace, vllm_groups
from lmc_grouped.adapters.hooks import Receives
from lmc_grouped.adapters.lmcache_config import DiskSettings
from lmc_grouped.connector.messages import Operation, RankReport, StepMetadata, StepReport
from lmc_grouped.connector.rank_disk import RankDisk
from lmc_grouped.connector.setup import prepare
from lmc_grouped.core.pools import PoolPlan
from lmc_grouped.host.disk import DiskTier, Quota
from lmc_grouped.host.region import ExtentShape, HostRegion, PoolShape
from lmc_grouped.transfer.copies import TransferError
from lmc_grouped.transfer.pages import PageCopier

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig

_Copy = Callable[[PageCopier, Sequence[int], Sequence[int]], None]


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
        self._report = StepReport()
        self._receives = Receives()

    def register(self, kv_caches: Mapping[str, torch.Tensor]) -> None:
        """The engine's cache exists now: size the pools and map them.

        Raises:
            GroupTableError: a tensor does not hold what its spec says.
            BudgetError: the budget is below one page of every group.
            RegionError: the host memory was refused.
            DiskError: the directory of the file tier cannot be used, or is in use.
        """
        table = self.table
        views = {
            group.group_id: vllm_groups.layer_byte_views(self._kv_cache_config, group, kv_caches)
            for group in table.groups
        }
        self._plan = self._setup.cut()
        slots = self._plan.slots_by_group
        self.region = HostRegion(
            {g.group_id: PoolShape(slots[g.group_id], g.page_bytes) for g in table.groups},
            extents=_extent_shape(self._plan),
        )
        self.copiers = {
            group_id: PageCopier(
                group_id, layer_views, torch.from_numpy(self.region.pool(group_id))
            )
            for group_id, layer_views in views.items()
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

    def run_loads(self, step: StepMetadata) -> None:
        """Copy this step's loads into the engine's cache."""
        for operation in step.loads:
            failure = operation.refused or self._run(operation, PageCopier.load)
            self._report.loaded[operation.operation_id] = 1
            self._receives.requests.add(operation.request_id)
            if failure is not None:
                self._report.failures[operation.operation_id] = failure
                self._receives.failed.add(operation.request_id)
                for pages in operation.pages:
                    self._receives.failed_blocks.update(pages.block_ids)

    def run_moves(self, step: StepMetadata) -> None:
        """Copy this step's moves within the pools."""
        for operation in step.moves:
            self._report.moved[operation.operation_id] = 1
            try:
                for moves in operation.moves:
                    self.copiers[moves.group_id].move(moves.source_slots, moves.target_slots)
            except TransferError as error:
                self._report.failures[operation.operation_id] = str(error)

    def run_stores(self, step: StepMetadata) -> None:
        """Copy this step's stores into the pools; the forward pass has been run."""
        for operation in step.stores:
            failure = self._run(operation, PageCopier.store)
            self._report.stored[operation.operation_id] = 1
            if failure is not None:
                self._report.failures[operation.operation_id] = failure

    def run_disk(self, step: StepMetadata) -> None:
        """Begin this step's reads and writes of the disk; nothing waits for them."""
        if self.disk is not None:
            self.disk.run(step, self._report.failures.keys())

    def close(self) -> None:
        """The worker ends."""
        if self.disk is not None:
            self.disk.close()

    def take_receives(self) -> Receives:
        """Loads that are over since the last call."""
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

    def _run(self, operation: Operation, copy: _Copy) -> str | None:
        """Carry out one operation; why it failed, if it did."""
        try:
            for pages in operation.pages:
                copy(self.copiers[pages.group_id], pages.block_ids, pages.slots)
        except TransferError as error:
            return str(error)
        return None


def _extent_shape(plan: PoolPlan) -> ExtentShape | None:
    """How the groups share bytes; ``None`` where each has its own."""
    if plan.extents is not None:
        cut = plan.extents
        return ExtentShape(cut.extent_bytes, cut.extents, cut.slots_per_extent)
    if plan.row_bytes is not None:
        rows = min(plan.slots_by_group.values(), default=0)
        return ExtentShape(plan.row_bytes, rows, dict.fromkeys(plan.slots_by_group, 1))
    return None
