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
    tracker = metadata.LMCacheMPRequestTracker(_request(prompt_tokens))
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


def scheduler_half(config: Any, *, chunk_tokens: int, batched_tokens: int = 8192) -> Any:
    """LMCache's own connector in its scheduler role, without a server.

    The adapter that talks to the server is replaced by one that knows the
    chunk size and checks it against the block size, as the real one does.
    ``batched_tokens`` is the engine's step: old releases allow it one
    recurrent block.
    """
    from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole

    module: Any = import_module(CONNECTOR)
    original = module.LMCacheMPSchedulerAdapter
    module.LMCacheMPSchedulerAdapter = _adapter_of(chunk_tokens)
    try:
        return module.LMCacheMPConnector(
            engine_config(config, batched_tokens), KVConnectorRole.SCHEDULER, config
        )
    finally:
        module.LMCacheMPSchedulerAdapter = original


def tokens_to_load(half: Any, *, prompt_tokens: int, stored_tokens: int) -> int:
    """What the half promises of a prompt whose first tokens the server holds."""
    half.scheduler_adapter.stored_tokens = stored_tokens
    promised, _ = half.get_num_new_matched_tokens(_request(prompt_tokens), 0)
    return int(promised)


def layout_hint(resolved: str) -> str:
    """What the release tells itself about the layout that vLLM resolved."""
    from vllm.config import CacheConfig

    utils = import_module("lmcache.integration.vllm.utils")
    cache_config = CacheConfig()
    cache_config.kv_cache_layout = resolved
    hints = _call(utils.vllm_layout_hints, vllm_config=SimpleNamespace(cache_config=cache_config))
    return str(hints.get("kv_layout", "none"))


def engine_config(kv_cache_config: Any, batched_tokens: int = 8192) -> Any:
    """The part of ``VllmConfig`` that LMCache's connector and ours read."""
    from vllm.config import KVTransferConfig

    return SimpleNamespace(
        kv_transfer_config=KVTransferConfig(kv_connector="LMCacheMPConnector", kv_role="kv_both"),
        kv_events_config=None,
        speculative_config=None,
        model_config=SimpleNamespace(model="tiny", use_mla=False, hf_config=None),
        cache_config=SimpleNamespace(
            block_size=kv_cache_config.kv_cache_groups[0].kv_cache_spec.block_size,
            mamba_cache_mode="align" if kv_cache_config.has_mamba_layers else "none",
            enable_prefix_caching=True,
            prefix_match_unit=None,
        ),
        scheduler_config=SimpleNamespace(max_num_batched_tokens=batched_tokens),
        parallel_config=SimpleNamespace(
            world_size=1,
            rank=0,
            tensor_parallel_size=1,
            pipeline_parallel_size=1,
            data_parallel_size=1,
            decode_context_parallel_size=1,
            prefill_context_parallel_size=1,
            cp_kv_cache_interleave_size=1,
        ),
    )


def _adapter_of(chunk_tokens: int) -> type:
    class Adapter:
        def __init__(self, **arguments: Any) -> None:
            block_tokens = arguments["vllm_block_size"]
            if chunk_tokens % block_tokens:
                raise ValueError(f"chunk {chunk_tokens} is no multiple of block {block_tokens}")
            self.lmcache_tokens_per_chunk = chunk_tokens
            self.stored_tokens = 0
            self.freed: list[tuple[int, int]] = []

        def maybe_submit_lookup_request(self, *args: Any, **kwargs: Any) -> None:
            """The answer is known already."""

        def check_lookup_result(self, request_id: str) -> int:
            return self.stored_tokens

        def free_lookup_locks(self, *, start: int, end: int, **more: Any) -> None:
            self.freed.append((start, end))

    return Adapter


def _request(prompt_tokens: int) -> Any:
    from vllm import SamplingParams
    from vllm.v1.request import Request

    return Request(
        request_id="request",
        prompt_token_ids=list(range(prompt_tokens)),
        sampling_params=SamplingParams(max_tokens=1),
        pooling_params=None,
    )


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
