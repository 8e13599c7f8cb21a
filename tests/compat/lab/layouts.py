"""Groups and configurations, in the words of whatever engine is first on the path."""

import dataclasses
from types import SimpleNamespace
from typing import Any

import torch
from vllm.config import CacheConfig, KVTransferConfig, ObservabilityConfig, SchedulerConfig
from vllm.v1.kv_cache_interface import (
    CircularBufferSpec,
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheTensor,
    MambaSpec,
    SlidingWindowSpec,
)

SPAN_TOKENS = 32
"""Of attention, window and state: with a finer one vLLM ends hits inside a state's span,
which takes a worker that copies states, and which ReVolta does not do."""
RING_TOKENS = 8
WINDOW_TOKENS = 48
ROW_BYTES = 4
"""Of one token in attention, window and ring: one head of one fp16 value, K and V."""
STATE_BYTES = 64
"""Of two parts, ``float16`` before ``float32``, half of the bytes each."""
PAGE_BYTES = 128
"""The largest page: the groups overlay each other in blocks of this size."""
MAX_MODEL_TOKENS = 1024

HYBRID = ("attention", "ring", "state")
WINDOWED = ("attention", "ring", "state", "window")


def spec(kind: str) -> Any:
    """The engine's spec of one layer of the kind."""
    attention: dict[str, Any] = {"num_kv_heads": 1, "head_size": 1, "dtype": torch.float16}
    match kind:
        case "attention":
            return FullAttentionSpec(block_size=SPAN_TOKENS, **attention)
        case "window":
            return SlidingWindowSpec(
                block_size=SPAN_TOKENS, sliding_window=WINDOW_TOKENS, **attention
            )
        case "ring":
            ring = {"dcp_sharded": False} if "dcp_sharded" in _fields(CircularBufferSpec) else {}
            return CircularBufferSpec(block_size=RING_TOKENS, **ring, **attention, **_padding())
        case "state":
            return MambaSpec(
                block_size=SPAN_TOKENS,
                shapes=((STATE_BYTES // 4,), (STATE_BYTES // 8,)),
                dtypes=(torch.float16, torch.float32),
                mamba_cache_mode="align",
                **_padding(),
            )
    raise ValueError(f"no layer of kind {kind!r}")


def cache_config(kinds: tuple[str, ...], num_blocks: int, retention: int | None) -> Any:
    """One group of one layer ``layer.<id>`` per kind; all groups overlay each other."""
    layers = [f"layer.{group_id}" for group_id in range(len(kinds))]
    groups = [
        KVCacheGroupSpec([name], spec(kind)) for name, kind in zip(layers, kinds, strict=True)
    ]
    size = PAGE_BYTES * num_blocks
    more: dict[str, Any] = {}
    if "layers" in _fields(KVCacheTensor):
        tensors = [
            KVCacheTensor(size=size, layers=[name], layer_stride=0, block_stride=PAGE_BYTES)
            for name in layers
        ]
        more["prefix_cache_retention_interval"] = retention
    else:
        tensors = [KVCacheTensor(size=size, shared_by=layers)]
    return KVCacheConfig(
        num_blocks=num_blocks, kv_cache_tensors=tensors, kv_cache_groups=groups, **more
    )


def engine_config(
    *, num_blocks: int, retention: int | None, chunk_tokens: int, policy: str, extra: dict[str, Any]
) -> Any:
    """What a scheduler and a connector read of ``VllmConfig``.

    Cache, scheduler and transfer settings are the engine's own classes; a model
    and a device, which it would want to inspect, are not there.
    """
    cache = CacheConfig(
        block_size=SPAN_TOKENS, enable_prefix_caching=True, mamba_cache_mode="align"
    )
    cache.num_gpu_blocks = num_blocks
    cache.mamba_cache_dtype = cache.mamba_ssm_cache_dtype = "auto"
    cache.prefix_cache_retention_interval = retention
    return SimpleNamespace(
        scheduler_config=SchedulerConfig(
            max_num_seqs=8,
            max_num_batched_tokens=chunk_tokens,
            max_model_len=MAX_MODEL_TOKENS,
            is_encoder_decoder=False,
            enable_chunked_prefill=True,
            async_scheduling=False,
            disable_hybrid_kv_cache_manager=False,
        ),
        cache_config=cache,
        kv_transfer_config=KVTransferConfig(
            kv_connector="LMCacheConnectorV1",
            kv_connector_module_path="lmc_grouped.connector",
            kv_role="kv_both",
            kv_load_failure_policy=policy,
            kv_connector_extra_config=extra,
        ),
        observability_config=ObservabilityConfig(),
        parallel_config=SimpleNamespace(
            world_size=1,
            rank=0,
            data_parallel_rank=0,
            data_parallel_index=0,
            data_parallel_size=1,
            use_sequence_parallel_moe=False,
            is_moe_model=False,
            tensor_parallel_size=1,
            decode_context_parallel_size=1,
            prefill_context_parallel_size=1,
            pipeline_parallel_size=1,
        ),
        model_config=_model(),
        **dict.fromkeys(
            ("lora_config", "kv_events_config", "ec_transfer_config", "speculative_config")
        ),
        compilation_config=SimpleNamespace(
            static_forward_context={}, fast_moe_cold_start=False, static_all_moe_layers=[]
        ),
        aux_output_config=SimpleNamespace(enabled=False),
        ec_manager_config=SimpleNamespace(get_encoder_cache_manager_obj=lambda: None),
        is_mm_encoder_only=False,
        use_v2_model_runner=False,
        num_speculative_tokens=0,
        num_lookahead_tokens=0,
        num_prefill_lookahead_tokens=0,
        max_in_flight_tokens=chunk_tokens,
        max_concurrent_batches=1,
    )


def _model() -> SimpleNamespace:
    return SimpleNamespace(
        max_model_len=MAX_MODEL_TOKENS,
        model="lab",
        revision="1",
        quantization=None,
        dtype=torch.float16,
        hf_config=SimpleNamespace(to_json_string=lambda: "{}"),
        is_encoder_decoder=False,
        is_hybrid=True,
        is_diffusion=False,
        is_multimodal_model=False,
        runner_type="generate",
        uses_mrope=False,
        supports_multimodal_inputs=False,
        return_sampling_mask=False,
        enable_return_routed_experts=False,
    )


def _padding() -> dict[str, int]:
    """Layers that overlay each other have equal pages where their places are not described."""
    return {} if "layers" in _fields(KVCacheTensor) else {"page_size_padded": PAGE_BYTES}


def _fields(kind: Any) -> set[str]:
    return {field.name for field in dataclasses.fields(kind)}
