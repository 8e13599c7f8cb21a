"""Questions to LMCache's connector without a cache server or an engine.

A connector is made with the little of vLLM's configuration that it reads; what
would talk to a server is replaced by something that knows the answers.
"""

from collections.abc import Sequence
from importlib import import_module
from types import SimpleNamespace
from typing import Any

CONNECTOR = "lmcache.integration.vllm.lmcache_mp_connector"
MANY_CALLS = 10


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
    request = request_of(prompt_tokens)
    for _ in range(MANY_CALLS):
        promised, _ = half.get_num_new_matched_tokens(request, 0)
        if promised is not None:
            return int(promised)
    raise RuntimeError(f"no promise after {MANY_CALLS} calls")


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
        """Holds the first ``stored_tokens`` of every prompt."""

        lmcache_tokens_per_chunk = chunk_tokens

        def __init__(self, **arguments: Any) -> None:
            block_tokens = arguments["vllm_block_size"]
            if chunk_tokens % block_tokens:
                raise ValueError(f"chunk {chunk_tokens} is no multiple of block {block_tokens}")
            self.stored_tokens = 0
            self.freed: list[tuple[int, int]] = []
            self._found: dict[str, int] = {}

        def maybe_submit_lookup_request(
            self,
            request_id: str,
            token_ids: Sequence[int],
            *,
            reserve_last_token: bool = False,
            **more: Any,
        ) -> None:
            found = min(self.stored_tokens, len(token_ids) - int(reserve_last_token))
            self._found.setdefault(request_id, found - found % chunk_tokens)

        def check_lookup_result(self, request_id: str) -> int:
            return self._found.get(request_id, 0)

        def cleanup_lookup_result(self, request_id: str) -> None:
            self._found.pop(request_id, None)

        def free_lookup_locks(self, *, start: int, end: int, **more: Any) -> None:
            self.freed.append((start, end))

        def end_session(self, request_id: str) -> None:
            self.cleanup_lookup_result(request_id)

    return Adapter


def request_of(prompt_tokens: int) -> Any:
    """A request of vLLM's own kind."""
    from vllm import SamplingParams
    from vllm.v1.request import Request

    return Request(
        request_id="request",
        prompt_token_ids=list(range(prompt_tokens)),
        sampling_params=SamplingParams(max_tokens=1),
        pooling_params=None,
    )
