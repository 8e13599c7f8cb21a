"""The scheduler half: owns the index, answers lookups, plans every copy."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec

from lmc_grouped.adapters import engine
from lmc_grouped.connector.acknowledgements import Acknowledgements
from lmc_grouped.connector.balance import Balance
from lmc_grouped.connector.disk import DiskHalf
from lmc_grouped.connector.lookups import Lookups
from lmc_grouped.connector.messages import RankReport, StepMetadata, StepReport
from lmc_grouped.connector.metrics import GroupedStats
from lmc_grouped.connector.requests import Tier
from lmc_grouped.connector.setup import agree, log_pools, prepare
from lmc_grouped.connector.stores import StorePlanner
from lmc_grouped.core.groups import GroupTable
from lmc_grouped.core.pools import PoolPlan

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.request import Request

logger = logging.getLogger(__name__)


class SchedulerHalf:
    """One per engine, in the scheduler process."""

    def __init__(self, vllm_config: "VllmConfig", kv_cache_config: "KVCacheConfig") -> None:
        setup = prepare(vllm_config, kv_cache_config)
        transfer_config = vllm_config.kv_transfer_config
        assert transfer_config is not None
        self._stores_on = transfer_config.is_kv_producer
        self._loads_on = transfer_config.is_kv_consumer
        self._setup = setup
        self._vllm_config = vllm_config
        self._has_stepped = False
        self._evicted_pages: dict[int, int] = {}
        self.tier = Tier(setup.rule, vllm_config.parallel_config.world_size)
        self.lookups = Lookups(self.tier, writes_on=self._stores_on)
        self.stores: StorePlanner | None = None
        self.balance = Balance(self.tier)
        self._acknowledged = Acknowledgements(self.tier.world_size)
        self._failures: dict[int, str] = {}

    def bind_device_blocks(self, device_blocks: engine.DeviceBlocks) -> None:
        """The engine's block pool exists now."""
        self.stores = StorePlanner(self.tier, device_blocks)

    def accept_ranks(self, reports: Mapping[tuple[int, int], RankReport]) -> None:
        """All workers have registered their caches: open the pools.

        Raises:
            GroupTableError: the ranks and the scheduler do not see the same groups.
        """
        plan = agree(self.tier.table, reports)
        rank_tables = [GroupTable.from_json(report.table_json) for report in reports.values()]
        # Only a rank knows its page bytes: the scheduler's specs are unwrapped copies.
        # A drafter is marked where its layers are, with pipeline stages on the last rank.
        groups = tuple(
            msgspec.structs.replace(seen[1], is_drafter=any(group.is_drafter for group in seen))
            for seen in zip(
                self.tier.table.groups, *(table.groups for table in rank_tables), strict=True
            )
        )
        table = msgspec.structs.replace(self.tier.table, groups=groups)
        self.open_pools(table, plan)
        disks = [report.disk for report in reports.values() if report.disk]
        if disks:
            self.tier.disk = DiskHalf(
                self.tier,
                disks,
                pool_bytes=plan.used_bytes,
                moving_slots=lambda: self.balance.moving_slots,
            )
        log_pools(replace(self._setup, table=table), plan)

    def open_pools(self, table: GroupTable, plan: PoolPlan) -> None:
        """Start with empty pools."""
        self.tier.open(table, plan)
        self.balance = Balance(self.tier)

    def matched_tokens(self, request: "Request", local_tokens: int) -> int | None:
        """Tokens beyond ``local_tokens`` that can be restored; 0 where loads are off.

        ``None``: pages are being read from disk, ask again.

        Raises:
            EngineError: no worker has reported its pools.
        """
        if not self.tier.is_open:
            raise engine.EngineError(
                "no worker has reported its KV-cache groups: this engine never passed on "
                "get_handshake_metadata(); serve with vLLM 0.30 to 0.33"
            )
        if not self._loads_on or not self.tier.table.groups:
            return 0
        return self.lookups.matched_tokens(request, local_tokens)

    def after_allocation(
        self, request: "Request", block_ids: Sequence[Sequence[int]], external_tokens: int
    ) -> None:
        """The engine gave blocks; load only when ``external_tokens`` says so.

        Real blocks with 0 external tokens mean that another connector was
        chosen, that nothing matched, or that an earlier load is complete.
        """
        state = self.tier.state(request)
        if self.stores:
            self.stores.restart(state)
        if external_tokens:
            self.lookups.accept(request, block_ids, external_tokens)
        else:
            self.lookups.drop_promise(state)

    def build_step(self, scheduler_output: "SchedulerOutput") -> StepMetadata:
        """The operations of this step."""
        if not self._has_stepped:
            self._first_step()
        stores = []
        if self.stores and self._stores_on and self.tier.table.groups:
            stores = self.stores.plan_step(scheduler_output)
        step = StepMetadata(
            loads=self.lookups.take_loads(),
            stores=stores,
            is_idle=not scheduler_output.num_scheduled_tokens,
        )
        if self.tier.disk:
            # Before the moves: a page that is being written stays where it is.
            self.tier.disk.fill(step)
        step.moves = self.balance.plan_step()
        return step

    def accept_report(self, report: StepReport) -> None:
        """Count the ranks that finished each operation; all of them end it."""
        self._failures |= report.failures
        for done, finish in (
            (report.loaded, self.lookups.finish),
            (report.stored, self.stores.finish if self.stores else None),
            (report.moved, self.balance.finish),
        ):
            for operation_id in self._acknowledged.add(done):
                assert finish is not None
                finish(operation_id, self._failures.pop(operation_id, None))
        if self.tier.disk:
            self.tier.disk.accept(report.disk)

    def request_finished(self, request: "Request") -> None:
        """The request has ended, whatever it had come to."""
        state = self.tier.requests.pop(request.request_id, None)
        if state is None:
            return
        self.lookups.drop_promise(state)
        if self.stores:
            self.stores.forget(state)

    def reset(self) -> None:
        """Forget everything that is stored."""
        self.tier.index.clear()
        if self.tier.disk:
            self.tier.disk.reset()

    def take_stats(self) -> GroupedStats | None:
        """What happened since the last call; ``None`` when nothing did."""
        self.balance.take_stats()
        stats = self.tier.stats
        residency = self.tier.index.residency()
        for group_id, pool in residency.items():
            new = pool.evicted_pages - self._evicted_pages.get(group_id, 0)
            if new:
                stats.add("evicted_pages", new, group_id)
                self._evicted_pages[group_id] = pool.evicted_pages
        if stats.is_empty():
            return None
        for group_id, pool in residency.items():
            page_bytes = self.tier.table.group(group_id).page_bytes
            stats.set("resident_slots", pool.resident_pages, group_id)
            stats.set("resident_bytes", pool.resident_pages * page_bytes, group_id)
            if pool.owner_id == group_id:
                stats.set("useless_slots", pool.useless_slots, group_id)
                stats.set("useless_bytes", pool.useless_slots * page_bytes, group_id)
                stats.set("capacity_slots", pool.capacity_slots, group_id)
        for group_id, extents in self.balance.extents().items():
            stats.set("extents", extents, group_id)
        if self.tier.disk:
            self.tier.disk.set_gauges(stats)
        self.tier.stats = GroupedStats()
        return stats

    def _first_step(self) -> None:
        self._has_stepped = True
        if self.tier.disk:
            self.tier.disk.check_root()
        resized = engine.resized_block_size(self.tier.table, self._vllm_config)
        if resized:
            logger.error(
                "the engine's block size is %d but its recurrent states need %d: no state will "
                "be kept, by vLLM's own prefix cache either; pass --block-size %d",
                *resized,
                resized[1],
            )
