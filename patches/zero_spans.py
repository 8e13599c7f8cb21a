"""P2: a scratch group has span 0: no block ids, and no say in how much can be stored."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from patches.base import LOGGER, Function, Patch, Site
from patches.vllm_groups import scratch_ids

logger = logging.getLogger(LOGGER)

GROUP_VIEW = "lmcache.v1.multiprocess.group_view"
METADATA = "lmcache.integration.vllm.lmcache_mp_metadata"
CONNECTOR = "lmcache.integration.vllm.lmcache_mp_connector"


def _has_defect() -> bool:
    from lmcache.v1.multiprocess.group_view import slice_block_ids_per_group

    try:
        return slice_block_ids_per_group({0: [1], 1: [2]}, [4, 0], 0, 4) != [[1], []]
    except ZeroDivisionError:
        return True


def _slice(original: Function) -> Function:
    def slice_block_ids_per_group(
        allocated_block_ids: Mapping[int, Sequence[int]],
        group_tokens_per_block: Sequence[int],
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        if 0 not in group_tokens_per_block:
            return original(allocated_block_ids, group_tokens_per_block, *args, **kwargs)
        spans = list(group_tokens_per_block)
        stored = {group: ids for group, ids in allocated_block_ids.items() if spans[group]}
        # A group that is not in the mapping gets no ids; 1 divides every range.
        return original(stored, [span or 1 for span in spans], *args, **kwargs)

    return slice_block_ids_per_group


class _Unlimited:
    """A request's tracker whose scratch groups seem to hold everything and own no ids."""

    def __init__(self, tracker: Any, scratch: Sequence[int]) -> None:
        self._tracker = tracker
        self._scratch = scratch

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tracker, name)

    @property
    def allocated_block_ids(self) -> dict[int, list[int]]:
        """Block ids of the stored groups only."""
        every = self._tracker.allocated_block_ids
        return {group: ids for group, ids in every.items() if group not in self._scratch}

    def num_allocated_blocks(self) -> dict[int, int]:
        """Blocks per group; a scratch group never limits."""
        plenty = len(self._tracker.all_token_ids)
        return self._tracker.num_allocated_blocks() | dict.fromkeys(self._scratch, plenty)


def _store_plan(original: Function) -> Function:
    def plan(
        tracker: Any, tokens_per_chunk: int, spans: Sequence[int], *args: Any, **kwargs: Any
    ) -> Any:
        scratch = [group for group, span in enumerate(spans) if span == 0]
        if not scratch:
            return original(tracker, tokens_per_chunk, spans, *args, **kwargs)
        if len(scratch) == len(spans):
            return None
        positive = [span or 1 for span in spans]
        return original(_Unlimited(tracker, scratch), tokens_per_chunk, positive, *args, **kwargs)

    return plan


def _constructor(original: Function) -> Function:
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        # Only now: the constructor itself insists on positive spans, and its
        # alignment has to count a ring in.
        scratch = scratch_ids(getattr(self, "_kv_cache_config", None))
        spans = self._group_tokens_per_block
        if len(scratch) == len(spans):
            logger.warning("every KV-cache group is scratch: LMCache can store nothing")
            return
        for group_id in scratch:
            spans[group_id] = 0

    return __init__


PATCH = Patch(
    name="P2",
    summary="scratch groups have span 0 in block lists and store plans",
    upstream="https://github.com/LMCache/LMCache/pull/5042",
    retire_when="LMCache 0.5.5 is no longer supported",
    has_defect=_has_defect,
    sites=(
        Site((GROUP_VIEW,), "slice_block_ids_per_group", _slice),
        Site((METADATA, CONNECTOR), "LMCacheMPRequestMetadata.GetStoreMetadata", _store_plan),
        Site((CONNECTOR,), "LMCacheMPConnector.__init__", _constructor),
    ),
)
