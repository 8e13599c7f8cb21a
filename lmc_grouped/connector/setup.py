"""What both halves work out at start, from the same inputs by the same rules."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lmc_grouped.adapters import engine, lmcache_config, vllm_groups
from lmc_grouped.connector.messages import RankReport
from lmc_grouped.core.groups import GroupTable, GroupTableError

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Setup:
    """The group table and the settings of one half."""

    table: GroupTable
    settings: lmcache_config.Settings


def prepare(vllm_config: "VllmConfig", kv_cache_config: "KVCacheConfig") -> Setup:
    """Read the configuration and convert the engine's groups.

    Raises:
        ConfigError, GroupTableError, EngineError: one clear reason not to serve.
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
    is_sparse = kv_cache_config.prefix_cache_retention_interval is not None
    table = lmcache_config.with_chunks(table, settings.chunk_tokens, is_sparse=is_sparse)
    return Setup(table, settings)


def agree(table: GroupTable, reports: Mapping[tuple[int, int], RankReport]) -> dict[int, int]:
    """Slots per group that every rank can hold, after all have named the same table.

    Raises:
        GroupTableError: a rank's table differs from the scheduler's.
    """
    for rank, report in reports.items():
        if report.fingerprint != table.fingerprint():
            raise GroupTableError(
                f"rank {rank} and the scheduler see different KV-cache groups; "
                f"scheduler: {table.to_json().decode()}; rank: {report.table_json.decode()}"
            )
    return {
        group_id: min(report.slots_by_group[group_id] for report in reports.values())
        for group_id in table.group_ids
    }


def log_pools(table: GroupTable, slots_by_group: Mapping[int, int], budget_bytes: int) -> None:
    """One line per group and one for the total, as one rank sees them."""
    used_bytes = 0
    for group in table.groups:
        slots = slots_by_group[group.group_id]
        used_bytes += slots * group.page_bytes
        logger.info(
            "lmc_grouped group %d: %s, %d layers, page %d bytes, %d slots of %d tokens, %d tokens",
            group.group_id,
            group.kind,
            len(group.layers),
            group.page_bytes,
            slots,
            group.span_tokens,
            slots * group.span_tokens,
        )
    for left_out in table.excluded:
        logger.info("lmc_grouped group %d: not stored (%s)", left_out.group_id, left_out.reason)
    if not table.groups:
        logger.warning("lmc_grouped: no group of this model can be stored; every lookup will miss")
    logger.info(
        "lmc_grouped: %d of %d bytes per worker, hits end every %d tokens",
        used_bytes,
        budget_bytes,
        table.alignment_tokens,
    )
