"""Builders of vLLM's own cache specs and configurations."""

from types import SimpleNamespace
from typing import Any

import torch
from vllm.config import KVTransferConfig
from vllm.v1.kv_cache_interface import (
    CircularBufferSpec,
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheSpec,
    KVCacheTensor,
    MambaSpec,
    SlidingWindowSpec,
    UniformTypeKVCacheSpecs,
)


def full_spec(block: int = 16, *, heads: int = 1, head_size: int = 1, **more: Any):
    """Full attention; a page has ``block * heads * head_size * 4`` bytes (fp16, K and V)."""
    return FullAttentionSpec(
        block_size=block, num_kv_heads=heads, head_size=head_size, dtype=torch.float16, **more
    )


def window_spec(block: int, window: int, *, heads: int = 1, head_size: int = 1, **more: Any):
    """Sliding-window attention."""
    return SlidingWindowSpec(
        block_size=block,
        num_kv_heads=heads,
        head_size=head_size,
        dtype=torch.float16,
        sliding_window=window,
        **more,
    )


def ring_spec(block: int = 8):
    """A scratch ring: one block per request, not prefix-cacheable."""
    return CircularBufferSpec(
        block_size=block, num_kv_heads=1, head_size=1, dtype=torch.float16, dcp_sharded=False
    )


def state_spec(block: int = 16, *, state_bytes: int = 64, mode: str = "align", **more: Any):
    """Recurrent state of ``state_bytes`` bytes."""
    return MambaSpec(
        block_size=block,
        shapes=((state_bytes,),),
        dtypes=(torch.int8,),
        mamba_cache_mode=mode,
        **more,
    )


def wrapped(spec: KVCacheSpec, *layers: str) -> UniformTypeKVCacheSpecs:
    """The spec of every layer inside a uniform-type wrapper."""
    return UniformTypeKVCacheSpecs(
        block_size=spec.block_size, kv_cache_specs=dict.fromkeys(layers, spec)
    )


def cache_config(
    *specs: KVCacheSpec | KVCacheGroupSpec,
    num_blocks: int = 32,
    aliases: dict[int, tuple[str, ...]] | None = None,
    retention_interval: int | None = 0,
) -> KVCacheConfig:
    """One group per spec with a single layer ``layer.<id>``; a group spec is taken as it is.

    ``aliases``: group_id -> layers that share another layer's memory.
    """
    groups = []
    for group_id, spec in enumerate(specs):
        if isinstance(spec, KVCacheGroupSpec):
            groups.append(spec)
            continue
        layers = (
            list(spec.kv_cache_specs)
            if isinstance(spec, UniformTypeKVCacheSpecs)
            else [f"layer.{group_id}"]
        )
        groups.append(KVCacheGroupSpec(layers, spec))
    tensors = [
        KVCacheTensor(
            size=spec.page_size_bytes * num_blocks,
            layers=[layer],
            layer_stride=0,
            block_stride=spec.page_size_bytes,
        )
        for group in groups
        for layer, spec in _layer_specs(group)
    ]
    for group_id, layers in (aliases or {}).items():
        groups[group_id].layer_names.extend(layers)
    return KVCacheConfig(
        num_blocks=num_blocks,
        kv_cache_tensors=tensors,
        kv_cache_groups=groups,
        prefix_cache_retention_interval=retention_interval,
    )


def _layer_specs(group: KVCacheGroupSpec) -> list[tuple[str, KVCacheSpec]]:
    spec = group.kv_cache_spec
    if isinstance(spec, UniformTypeKVCacheSpecs):
        return list(spec.kv_cache_specs.items())
    return [(layer, spec) for layer in group.layer_names]


def engine_config(
    *,
    budget_bytes: int = 2**20,
    world_size: int = 1,
    block_size: int = 16,
    hash_block: int | None = None,
    role: str = "kv_both",
    extra: dict[str, Any] | None = None,
    speculative: Any = None,
    hybrid_manager_off: bool = False,
    context_parallel: int = 1,
    max_model_tokens: int = 1024,
    hash_algorithm: str = "sha256",
) -> Any:
    """The part of ``VllmConfig`` that a connector reads; the budget is exact."""
    budget = {"lmcache.max_local_cpu_size": budget_bytes / 2**30}
    return SimpleNamespace(
        kv_transfer_config=KVTransferConfig(
            kv_connector="LMCacheConnectorV1",
            kv_connector_module_path="lmc_grouped.connector",
            kv_role=role,
            kv_connector_extra_config=budget | (extra or {}),
        ),
        scheduler_config=SimpleNamespace(disable_hybrid_kv_cache_manager=hybrid_manager_off),
        parallel_config=SimpleNamespace(
            world_size=world_size,
            rank=0,
            data_parallel_rank=0,
            tensor_parallel_size=world_size,
            decode_context_parallel_size=context_parallel,
            pipeline_parallel_size=1,
        ),
        cache_config=SimpleNamespace(
            block_size=block_size,
            prefix_match_unit=hash_block,
            enable_prefix_caching=True,
            prefix_caching_hash_algo=hash_algorithm,
            cache_dtype="auto",
            mamba_cache_dtype="auto",
            mamba_ssm_cache_dtype="auto",
        ),
        speculative_config=speculative,
        model_config=SimpleNamespace(
            max_model_len=max_model_tokens,
            model="scripted",
            revision="1",
            quantization=None,
            dtype=torch.float16,
            hf_config=SimpleNamespace(to_json_string=lambda: "{}"),
        ),
        compilation_config=SimpleNamespace(static_forward_context={}),
    )
