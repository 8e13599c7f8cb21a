"""What both halves work out at start, from the same inputs by the same rules."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from lmc_grouped.adapters import engine, lmcache_config, namespace, vllm_groups
from lmc_grouped.connector.messages import RankReport
from lmc_grouped.core.capacity import (
    ContextPages,
    context_pages,
    largest_page_bytes,
    least_budget_bytes,
    starvations,
)
from lmc_grouped.core.groups import GroupSpec, GroupTable, GroupTableError
from lmc_grouped.core.partition import cut, held_contexts
from lmc_grouped.core.pools import Partition, PoolPlan
from lmc_grouped.core.retention import RetentionError
from lmc_grouped.core.rule import RetentionRule
from lmc_grouped.core.sizing import Sizer, check_recurrent, gigabytes_up
from lmc_grouped.transfer import ladder

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Setup:
    """The groups, and how one half is to keep them."""

    table: GroupTable
    budget_bytes: int
    """Host bytes of one worker."""
    partition: Partition
    retention_tokens: int | None
    reference_tokens: int
    disk: lmcache_config.DiskSettings | None = None
    transfer: str = ladder.AUTO
    """How pages are copied; whether the device can is found out where it is."""

    @property
    def rule(self) -> RetentionRule:
        """What is kept of requests."""
        return RetentionRule(self.table, self.retention_tokens)

    def cut(self) -> PoolPlan:
        """The pools of this worker.

        Raises:
            BudgetError: the budget is below one page of every group.
        """
        return cut(
            self.table,
            self.budget_bytes,
            partition=self.partition,
            retention_tokens=self.retention_tokens,
            reference_tokens=self.reference_tokens,
        )


def prepare(vllm_config: "VllmConfig", kv_cache_config: "KVCacheConfig") -> Setup:
    """Read the configuration and convert the engine's groups.

    Raises:
        ConfigError, GroupTableError, EngineError, NamespaceError: one clear reason not
            to serve.
    """
    transfer_config = vllm_config.kv_transfer_config
    assert transfer_config is not None
    settings = lmcache_config.read_settings(transfer_config.kv_connector_extra_config)
    engine.check_hybrid_manager(kv_cache_config, vllm_config)
    alignment_tokens, hash_block_tokens = engine.block_sizes(kv_cache_config, vllm_config)
    table = vllm_groups.build_group_table(
        kv_cache_config,
        alignment_tokens=alignment_tokens,
        hash_block_tokens=hash_block_tokens,
        context_parallel=engine.context_parallel(vllm_config),
        drafter_groups=engine.drafter_groups(kv_cache_config, vllm_config),
    )
    lmcache_config.check_scratch(table, settings)
    engine_retention = engine.retention_tokens(kv_cache_config, vllm_config)
    is_sparse = engine_retention is not None
    table = lmcache_config.with_chunks(table, settings.chunk_tokens, is_sparse=is_sparse)
    check_recurrent(table)
    partition = settings.partition
    if partition is Partition.AUTO and engine.pipeline_parallel(vllm_config) > 1:
        logger.info("lmc_grouped: pipeline stages hold different layers, so pools are static")
        partition = Partition.STATIC
    setup = Setup(
        table,
        settings.budget_bytes,
        partition,
        settings.retention_tokens if settings.has_retention else engine_retention,
        settings.reference_tokens or engine.max_model_tokens(vllm_config),
        settings.disk,
        settings.transfer,
    )
    if settings.disk is not None:
        namespace.check_hashes(vllm_config)
    _check_transfer(settings.transfer)
    try:
        _ = setup.rule
    except RetentionError as error:
        key = (
            lmcache_config.RETENTION_KEY
            if settings.has_retention
            else "prefix_cache_retention_interval"
        )
        raise lmcache_config.ConfigError(f"{key}: {error}") from error
    return setup


def _check_transfer(name: object) -> None:
    try:
        ladder.check_name(name)
    except ladder.LadderError as error:
        raise lmcache_config.ConfigError(str(error)) from error


def agree(table: GroupTable, reports: Mapping[tuple[int, int], RankReport]) -> PoolPlan:
    """Pools that every rank can hold, after all have named the same table.

    Raises:
        GroupTableError: a rank's table, or its extents, differ from the others'.
    """
    for rank, report in reports.items():
        if report.fingerprint != table.fingerprint():
            raise GroupTableError(
                f"rank {rank} and the scheduler see different KV-cache groups; "
                f"scheduler: {table.to_json().decode()}; rank: {report.table_json.decode()}"
            )
    plans = [report.plan for report in reports.values()]
    slots = {
        group_id: min(plan.slots_by_group[group_id] for plan in plans)
        for group_id in table.group_ids
    }
    agreed = replace(min(plans, key=lambda plan: plan.token_capacity), slots_by_group=slots)
    cuts = [plan.extents for plan in plans if plan.extents is not None]
    if not cuts:
        return agreed
    if len(cuts) < len(plans) or any(
        (each.slots_per_extent, each.shares) != (cuts[0].slots_per_extent, cuts[0].shares)
        for each in cuts
    ):
        raise GroupTableError(
            "the ranks cut their budgets into different extents; set cpu_group_partition: static"
        )
    return replace(agreed, extents=min(cuts, key=lambda each: each.extents))


def log_pools(setup: Setup, plan: PoolPlan) -> None:
    """One line per group and one for the total, as one rank sees them."""
    table = setup.table
    for left_out in table.excluded:
        logger.info("lmc_grouped group %d: not stored (%s)", left_out.group_id, left_out.reason)
    if not table.groups:
        logger.warning("lmc_grouped: no group of this model can be stored; every lookup will miss")
        return
    for group in table.groups:
        logger.info(
            "lmc_grouped group %d: %s, %d layers, page %d bytes, %s",
            group.group_id,
            group.kind,
            len(group.layers),
            group.page_bytes,
            _slots_line(setup, plan, group),
        )
    context = context_pages(table, setup.reference_tokens, setup.retention_tokens)
    contexts = held_contexts(context, plan)
    logger.info(
        "lmc_grouped: %d of %d bytes per worker, partition %s, retention %s, "
        "%d contexts of %d tokens, hits end every %d tokens",
        plan.used_bytes,
        setup.budget_bytes,
        plan.partition,
        "none" if setup.retention_tokens is None else setup.retention_tokens,
        contexts,
        setup.reference_tokens,
        table.alignment_tokens,
    )
    if contexts == 0:
        _warn_too_small(setup, plan, context)
    elif plan.partition is Partition.STATIC:
        for starved in starvations(
            table, plan.slots_by_group, setup.retention_tokens, setup.reference_tokens
        ):
            logger.info("lmc_grouped: %s", starved)


def _slots_line(setup: Setup, plan: PoolPlan, group: GroupSpec) -> str:
    """What the group can have."""
    if plan.extents is not None:
        cut = plan.extents
        owner_id = cut.owner_of(group.group_id)
        extents = (
            f"{cut.floor_extents[owner_id]} to {cut.extents} extents"
            if owner_id == group.group_id
            else f"extents shared with group {owner_id}"
        )
        return (
            f"{cut.slots_per_extent[group.group_id]} to an extent, {extents}, "
            f"spans of {group.span_tokens} tokens"
        )
    slots = plan.slots_by_group[group.group_id]
    sizer = Sizer(setup.table, setup.retention_tokens, setup.reference_tokens)
    covered = sizer.tokens_covered(plan.slots_by_group)[group.group_id]
    return f"{slots} slots of {group.span_tokens} tokens, {covered} tokens"


def _warn_too_small(setup: Setup, plan: PoolPlan, context: ContextPages) -> None:
    """Not one context of the reference length fits: say what would."""
    if not context.is_restorable:
        logger.warning(
            "lmc_grouped: no context of %d tokens can be restored: hits end every %d tokens",
            setup.reference_tokens,
            setup.table.alignment_tokens,
        )
        return
    if plan.partition is Partition.OFF:
        needed = sum(context.pages_by_group.values()) * largest_page_bytes(setup.table.groups)
    else:
        sizer = Sizer(setup.table, setup.retention_tokens, setup.reference_tokens)
        needed = least_budget_bytes(sizer, context)
    logger.warning(
        "lmc_grouped: not one context of %d tokens fits; set max_local_cpu_size to at least "
        "%.6f GB, or size for shorter ones with mamba_state_slots_reference_tokens",
        setup.reference_tokens,
        gigabytes_up(needed),
    )
