"""What model runners register with a connector; of ReVolta's, by their own code on CPU tensors.

A runner of ReVolta as a whole wants a GPU and a model. The functions of both that allocate and
reshape caches want neither; they are called here with the attention backends of a V100.
"""

import os
from collections.abc import Callable
from dataclasses import fields
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

Caches = tuple[dict[str, torch.Tensor], dict[str, Any]]
"""By layer: its allocation as plain bytes, and what is registered for it."""


def first(config: Any, cache_dtype: str = "auto") -> Caches:
    """Of ``v1/worker/gpu_model_runner.py``, the runner of most models."""
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    groups = _attention_groups(config)
    runner = object.__new__(GPUModelRunner)
    runner.device = torch.device("cpu")
    runner.kv_cache_config = config
    runner.attn_groups = groups
    runner.runner_only_attn_layers = set()
    runner.cache_config = SimpleNamespace(cache_dtype=cache_dtype)
    raw = runner._allocate_kv_cache_tensors(config)
    return raw, runner._reshape_kv_cache_tensors(raw, _kernel_tokens(config, groups))


def second(config: Any, cache_dtype: str = "auto") -> Caches:
    """Of ``v1/worker/gpu``, the runner of models with rings, and the one that packs."""
    from vllm.v1.worker.gpu import attn_utils

    groups = _attention_groups(config)
    raw = attn_utils._allocate_kv_cache(config, {}, torch.device("cpu"))
    caches = attn_utils._reshape_kv_cache(
        [each for group in groups for each in group],
        raw,
        cache_dtype,
        _kernel_tokens(config, groups),
        {},
        attn_utils._packed_attention_members(config),
    )
    return raw, caches


def one_allocation(config: Any) -> tuple[np.ndarray, dict[str, Any]]:
    """Of a configuration whose layers all overlay each other.

    Returns:
        The memory as bytes ``[num_blocks, bytes of a block]``, and what is registered by
        layer: under ReVolta what its runner makes of it, else content as plain bytes.
    """
    if any("packed_members" in _names(tensor) for tensor in config.kv_cache_tensors):
        configure("NHD", has_small_kernel_blocks=True)
        raw, caches = second(config)
        (memory,) = {id(tensor): tensor for tensor in raw.values()}.values()
        return memory.view(torch.uint8).numpy().reshape(config.num_blocks, -1), caches
    stride = config.kv_cache_tensors[0].block_stride
    memory = torch.zeros(config.num_blocks, stride, dtype=torch.uint8)
    caches = {
        name: memory[:, : group.kv_cache_spec.page_size_bytes]
        for group in config.kv_cache_groups
        for name in group.layer_names
    }
    return memory.numpy(), caches


def _names(value: Any) -> set[str]:
    return {field.name for field in fields(value)}


RUNNERS: dict[str, Callable[..., Caches]] = {"first": first, "second": second}


def configure(layout: str, *, has_small_kernel_blocks: bool) -> None:
    """What the engine takes from its settings: ``NHD`` or ``HND``, kernel blocks of 16 tokens."""
    from vllm.v1.attention.backends.utils import get_kv_cache_layout, set_kv_cache_layout

    get_kv_cache_layout.cache_clear()
    set_kv_cache_layout(layout)
    os.environ["VLLM_FLASH_V100_KERNEL_BLOCK_SIZE16"] = str(int(has_small_kernel_blocks))


def _attention_groups(config: Any) -> list[list[Any]]:
    """Per group of the engine, its layers by their specs."""
    from vllm.v1.worker.utils import AttentionGroup

    found = []
    for group_id, group in enumerate(config.kv_cache_groups):
        specs = getattr(group.kv_cache_spec, "kv_cache_specs", {})
        by_spec: dict[Any, list[str]] = {}
        for name in group.layer_names:
            by_spec.setdefault(specs.get(name, group.kv_cache_spec), []).append(name)
        found.append([AttentionGroup(_backend(s), n, s, group_id) for s, n in by_spec.items()])
    return found


def _backend(spec: Any) -> Any:
    """The one of a V100 for the kind of layer."""
    from vllm.model_executor.layers.attention.mla_attention import MLACommonBackend
    from vllm.models.qwen4_exp.common.qsa_cache import QSAStateBackend
    from vllm.v1.attention.backends.flash_attn_v100 import FlashAttnV100Backend
    from vllm.v1.attention.backends.gdn_attn import GDNAttentionBackend
    from vllm.v1.attention.backends.mla.flashmla_sparse import FlashMLASparseBackend

    if hasattr(spec, "mamba_type"):
        return GDNAttentionBackend
    if type(spec).__name__ == "CircularBufferSpec" or getattr(spec, "compress_ratio", 1) > 1:
        return QSAStateBackend
    if hasattr(spec, "compress_ratio"):
        is_packed = spec.cache_dtype_str == "fp8_ds_mla"
        return FlashMLASparseBackend if is_packed else MLACommonBackend
    return FlashAttnV100Backend


def _kernel_tokens(config: Any, groups: list[list[Any]]) -> list[int]:
    from vllm.v1.worker.utils import prepare_kernel_block_sizes

    return prepare_kernel_block_sizes(config, groups)
