"""The same conversions, by our converter with the types of the release in use."""

from types import SimpleNamespace
from typing import Any

from compat.cases import surface
from compat.cases.model import Answer, Conversion, Row

UNSEEN = 0
"""Slots: what a release sees in the tensors, which our converter does not look at."""


def answer(case: Conversion) -> Answer:
    """What our converter makes of the case's input.

    Where the release's own converter is right, the answer says so when ours
    differs from it in any field.
    """
    registered = case.build()
    infos = convert(registered, case.context_parallel)
    rows = [Row.of(info, UNSEEN).text_of_info() for info in infos]
    try:
        theirs = surface.convert(registered, context_parallel=case.context_parallel)
    except (ValueError, RuntimeError):
        return rows
    pairs = zip(theirs.infos, theirs.slots, strict=True)
    if [Row.of(info, slots) for info, slots in pairs] == list(case.rows) and infos != theirs.infos:
        return [*rows, f"differs from the release's own {theirs.infos}"]
    return rows


def convert(registered: Any, context_parallel: int) -> list[Any]:
    """``EngineGroupInfo`` objects by way of our group table."""
    from vllm.v1.core.kv_cache_utils import resolve_kv_cache_block_sizes

    from lmc_grouped.adapters.lmcache_groups import engine_group_infos
    from lmc_grouped.adapters.vllm_groups import build_group_table

    engine = surface.engine_config(registered.config)
    engine.parallel_config = SimpleNamespace(decode_context_parallel_size=context_parallel)
    alignment, hash_block = resolve_kv_cache_block_sizes(registered.config, engine)
    table = build_group_table(
        registered.config,
        alignment_tokens=alignment,
        hash_block_tokens=hash_block,
        context_parallel=context_parallel,
    )
    return engine_group_infos(table, registered.config, list(registered.caches))
