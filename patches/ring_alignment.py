"""P6: a hit ends where a scratch ring can be rebuilt.

A ring is not stored; the engine rebuilds it from tokens, from a multiple of its
own block on. A hit in between gives wrong output without any error (case A24).
"""

import math
from types import SimpleNamespace
from typing import Any

from patches.base import Function, Patch, Site

CONNECTOR = "lmcache.integration.vllm.lmcache_mp_connector"
_FREED = "_lmc_grouped_freed_tokens"


def _has_defect() -> bool:
    from lmcache.integration.vllm import lmcache_mp_connector as connector

    # Before 0.5.5 there is no such function: the constructor counts every group.
    if not hasattr(connector, "get_vllm_scheduler_block_size"):
        return False

    def group(block: int, cacheable: bool) -> Any:
        spec = SimpleNamespace(block_size=block, prefix_cacheable=cacheable)
        return SimpleNamespace(kv_cache_spec=spec)

    engine = SimpleNamespace(
        parallel_config=SimpleNamespace(decode_context_parallel_size=1),
        cache_config=SimpleNamespace(block_size=4),
    )
    config = SimpleNamespace(kv_cache_groups=[group(4, True), group(16, False)])
    return connector.get_vllm_scheduler_block_size(engine, config) != 16


def _constructor(original: Function) -> Function:
    def __init__(self: Any, vllm_config: Any, *args: Any, **kwargs: Any) -> None:
        original(self, vllm_config, *args, **kwargs)
        from vllm.v1.core.kv_cache_utils import resolve_dcp_kv_block_size

        config = getattr(self, "_kv_cache_config", None)
        ranks = vllm_config.parallel_config.decode_context_parallel_size
        every_span = [
            resolve_dcp_kv_block_size(group.kv_cache_spec, ranks)
            for group in getattr(config, "kv_cache_groups", None) or ()
        ]
        self._hit_alignment_tokens = math.lcm(self._hit_alignment_tokens, *every_span)

    return __init__


def _matched_tokens(original: Function) -> Function:
    def get_num_new_matched_tokens(self: Any, request: Any, num_computed_tokens: int) -> Any:
        promised, is_async = original(self, request, num_computed_tokens)
        if not promised:
            return promised, is_async
        tracker = self.request_trackers[request.request_id]
        found = tracker.num_lmcache_hit_tokens
        usable = found - found % self._hit_alignment_tokens
        if usable == found:
            return promised, is_async
        # What is stored stays stored (`num_stored_tokens`); less of it is loaded.
        tracker.num_lmcache_hit_tokens = usable
        if getattr(tracker, _FREED, None) != (usable, found):
            _free(self.scheduler_adapter, tracker, usable, found)
            setattr(tracker, _FREED, (usable, found))
        promised = max(0, usable - num_computed_tokens)
        return promised, promised > 0

    return get_num_new_matched_tokens


def _free(adapter: Any, tracker: Any, start_tokens: int, end_tokens: int) -> None:
    """Give back the read locks of chunks that the lookup took and nobody will load."""
    adapter.free_lookup_locks(
        token_ids=tracker.get_token_ids(),
        start=start_tokens,
        end=end_tokens,
        request_id=tracker.request_id,
        cache_salt=tracker.cache_salt,
        request_configs=tracker.request_configs,
    )


PATCH = Patch(
    name="P6",
    summary="hits are aligned to scratch rings too",
    upstream="",
    retire_when="get_vllm_scheduler_block_size counts scratch groups in",
    has_defect=_has_defect,
    sites=(
        Site((CONNECTOR,), "LMCacheMPConnector.__init__", _constructor),
        Site((CONNECTOR,), "LMCacheMPConnector.get_num_new_matched_tokens", _matched_tokens),
    ),
)
