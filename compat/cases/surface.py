"""One way to ask every LMCache release the same question.

What differs between releases (argument lists, where a class lives) is here;
the cases do not know it. Nothing is corrected: a release that cannot be told
something is simply not told.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType, SimpleNamespace
from typing import Any

from patches.questions import engine_config, request_of, scheduler_half, tokens_to_load

__all__ = [
    "Conversion",
    "convert",
    "engine_config",
    "layout_hint",
    "scheduler_half",
    "slice_blocks",
    "store_plan",
    "tokens_to_load",
]

CONNECTOR = "lmcache.integration.vllm.lmcache_mp_connector"
CONVERTER = "lmcache.integration.vllm.kv_cache_groups"


@dataclass(frozen=True, slots=True)
class Conversion:
    """What a release made of vLLM's groups and tensors."""

    infos: list[Any]
    """``EngineGroupInfo`` of that release, in its order."""
    slots: list[int]
    """Per info the states per page that the release sees in the tensors."""


def convert(registered: Any, *, context_parallel: int = 1) -> Conversion:
    """What the connector's worker half does when tensors are registered."""
    edits = import_module("lmcache.integration.vllm.kv_cache_group_edits")
    converter = import_module(CONVERTER)
    hints = dict(registered.hints)
    config = registered.config
    caches = _call(
        edits.apply_kv_cache_group_edits,
        kv_cache_config=config,
        kv_caches=dict(registered.caches),
        layout_hints=hints,
    )
    with _identities() as seen:
        infos = _call(
            converter.create_engine_group_infos_from_vllm,
            kv_cache_config=config,
            kv_caches=caches,
            layout_hints=hints,
            dcp_size=context_parallel,
        )
    return Conversion(infos, [identity[3] for identity in seen])


def slice_blocks(
    block_ids: Mapping[int, Sequence[int]], spans: Sequence[int], start: int, end: int
) -> list[list[int]]:
    """Block ids of a token range, by the function the connector uses."""
    return connector_metadata().slice_block_ids_per_group(
        allocated_block_ids=block_ids,
        group_tokens_per_block=spans,
        start_token_idx=start,
        end_token_idx=end,
    )


def store_plan(
    *,
    spans: list[int],
    blocks: Mapping[int, Sequence[int]],
    chunk_tokens: int,
    prompt_tokens: int,
    computed_tokens: int,
) -> dict[str, Any] | None:
    """The range and block ids of the next store, ``None`` for nothing to store."""
    metadata = connector_metadata()
    tracker = metadata.LMCacheMPRequestTracker(request_of(prompt_tokens))
    tracker.allocated_block_ids.update({group: list(ids) for group, ids in blocks.items()})
    tracker.increase_num_scheduled_tokens(computed_tokens)
    planned = _call(
        metadata.LMCacheMPRequestMetadata.GetStoreMetadata,
        tracker=tracker,
        lmcache_tokens_per_chunk=chunk_tokens,
        group_tokens_per_block=spans,
    )
    if planned is None:
        return None
    start, end = planned.op.start, planned.op.end
    return {
        "range": [start, end],
        "chunks": (end - start) // chunk_tokens,
        "block_ids": [list(ids) for ids in planned.op.block_ids],
    }


def connector_metadata() -> ModuleType:
    """Where the request tracker and the store plan live."""
    try:
        return import_module("lmcache.integration.vllm.lmcache_mp_metadata")
    except ModuleNotFoundError:
        return import_module(CONNECTOR)


def layout_hint(resolved: str) -> str:
    """What the release tells itself about the layout that vLLM resolved."""
    from vllm.config import CacheConfig

    utils = import_module("lmcache.integration.vllm.utils")
    cache_config = CacheConfig()
    cache_config.kv_cache_layout = resolved
    hints = _call(utils.vllm_layout_hints, vllm_config=SimpleNamespace(cache_config=cache_config))
    return str(hints.get("kv_layout", "none"))


def _call(function: Callable[..., Any], **arguments: Any) -> Any:
    """Call with the arguments this release knows, in the order it declares them."""
    known = inspect.signature(function).parameters
    given = [value for name, value in arguments.items() if name.lstrip("_") in known]
    return function(*given)


@contextmanager
def _identities() -> Iterator[list[Any]]:
    """Collect the physical identities that a conversion finds, in its order."""
    groups: Any = import_module("lmcache.v1.kv_layer_groups")
    original = groups.group_layers_by_identity
    seen: list[Any] = []

    def recording(*args: Any, **kwargs: Any) -> Any:
        found = original(*args, **kwargs)
        seen.extend(identity for identity, _ in found)
        return found

    groups.group_layers_by_identity = recording
    try:
        yield seen
    finally:
        groups.group_layers_by_identity = original
