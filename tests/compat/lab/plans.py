"""Cache configurations of models on ReVolta, put together by its own planning functions."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from vllm.v1 import kv_cache_interface as interface
from vllm.v1.core import kv_cache_utils
from vllm.v1.kv_cache_interface import (
    CircularBufferSpec,
    FullAttentionSpec,
    KVCacheGroupSpec,
    MambaSpec,
    MLAAttentionSpec,
    SlidingWindowSpec,
)

NUM_BLOCKS = 5
SPAN_TOKENS = 64
HEADS, HEAD_SIZE = 2, 16
BOTH = ("first", "second")


@dataclass(frozen=True, slots=True)
class Plan:
    """A cache configuration, how its attention is laid out, and the runners that take it."""

    config: Any
    cache_dtype: str = "auto"
    layout: str = "NHD"
    runners: Sequence[str] = BOTH
    has_small_kernel_blocks: bool = False
    """Attention kernels see blocks of 16 tokens; else a whole block of the engine."""


def attention(kind: Any = FullAttentionSpec, dtype: str = "auto", **more: Any) -> Any:
    """``SPAN_TOKENS * HEADS * HEAD_SIZE`` elements of K and as many of V."""
    return kind(
        **{"block_size": SPAN_TOKENS, "num_kv_heads": HEADS, "head_size": HEAD_SIZE}
        | {"dtype": _storage(dtype), "kv_quant_mode": _mode(dtype)}
        | more
    )


def gated_delta_net(heads: int = 2, **more: Any) -> Any:
    """Convolution and state, of two types; ``576 + heads * 1024`` bytes."""
    return _state(((3, 96), (heads, 16, 16)), (torch.float16, torch.float32), **more)


def kimi_delta(**more: Any) -> Any:
    """Three convolutions and a state; 5,008 bytes."""
    shapes = ((3, 40), (3, 40), (3, 72), (4, 16, 16))
    return _state(shapes, (*(torch.float16,) * 3, torch.float32), **more)


def _window(dtype: str = "auto") -> Any:
    return attention(SlidingWindowSpec, dtype, sliding_window=SPAN_TOKENS)


def _state(shapes: Any, dtypes: Any, **more: Any) -> Any:
    return MambaSpec(SPAN_TOKENS, shapes, dtypes, mamba_cache_mode="align", **more)


def _mode(dtype: str) -> Any:
    return interface.get_kv_quant_mode(dtype)


def _storage(dtype: str) -> torch.dtype:
    from vllm.utils.torch_utils import STR_DTYPE_TO_TORCH_DTYPE

    return torch.float16 if dtype == "auto" else STR_DTYPE_TO_TORCH_DTYPE[dtype]


def hybrid(*groups: Any, dtype: str = "auto", layout: str = "NHD", **more: Any) -> Plan:
    """Groups of two layers whose pages the engine makes one size."""
    names = {f"layers.{2 * i + j}.{i}": spec for i, spec in enumerate(groups) for j in range(2)}
    specs = kv_cache_utils.unify_kv_cache_spec_page_size(names)
    layers = [[name for name in specs if name.endswith(f".{i}")] for i in range(len(groups))]
    groups = [KVCacheGroupSpec(each, specs[each[0]]) for each in layers]
    return Plan(_config(groups), dtype, layout, **more)


def compressed_sparse(state: Any, dtype: str = "auto", layers: int = 4, **more: Any) -> Plan:
    """Qwen4Exp: attention beside a compressed side cache, rings, states; small pages packed."""
    side = {"block_size": SPAN_TOKENS, "num_kv_heads": 1, "head_size": 64, "dtype": torch.float16}
    ring = {"block_size": 8, "num_kv_heads": 1, "head_size": 64, "head_size_v": 0}
    specs: dict[str, Any] = {}
    for i in range(layers):
        specs[f"layers.{i}.attn"] = attention(dtype=dtype)
        specs[f"layers.{i}.attn.compressed"] = MLAAttentionSpec(
            compress_ratio=4, dcp_sharded=True, **side
        )
        specs[f"layers.{i}.attn.ring"] = CircularBufferSpec(
            dtype=torch.float16, dcp_sharded=False, **ring
        )
        specs[f"layers.{layers + i}.state"] = state
    groups = kv_cache_utils._get_kv_cache_groups_csa_linear(_ENGINE, specs)
    return Plan(_config(groups), dtype, runners=("second",), **more)


def latent() -> Plan:
    """Multi-head latent attention of three kinds, each layer with pages of its own size."""
    side = {"block_size": SPAN_TOKENS, "num_kv_heads": 1, "dtype": torch.float16}
    packed = {"dtype": torch.uint8, "cache_dtype_str": "fp8_ds_mla", "head_size": 576}
    packed["kv_quant_mode"] = _mode("fp8_ds_mla")
    specs = {
        "layers.0": MLAAttentionSpec(head_size=576, **side),
        "layers.1": MLAAttentionSpec(**side | packed),
        "layers.2": MLAAttentionSpec(head_size=40, compress_ratio=4, alignment=576, **side),
    }
    spec = interface.UniformTypeKVCacheSpecs.from_specs(specs)
    return Plan(_config([KVCacheGroupSpec(list(specs), spec)]), "fp8_ds_mla")


def _config(groups: Any) -> Any:
    per_block = kv_cache_utils.get_kv_cache_config_from_groups(_ENGINE, groups, 2**20)
    block_bytes = sum(tensor.size for tensor in per_block.kv_cache_tensors) // per_block.num_blocks
    return kv_cache_utils.get_kv_cache_config_from_groups(_ENGINE, groups, NUM_BLOCKS * block_bytes)


_ENGINE: Any = SimpleNamespace(
    cache_config=SimpleNamespace(num_gpu_blocks_override=None),
    parallel_config=SimpleNamespace(decode_context_parallel_size=1, pipeline_parallel_size=1),
    model_config=SimpleNamespace(get_num_kv_heads=lambda parallel: HEADS),
)

SMALL: dict[str, Any] = {"has_small_kernel_blocks": True}

PLANS: dict[str, Callable[[], Plan]] = {
    "attention and states": lambda: hybrid(attention(), gated_delta_net(page_size_padded=8192)),
    "heads before tokens": lambda: hybrid(
        attention(), kimi_delta(page_size_padded=8192), layout="HND"
    ),
    "attention, window, states": lambda: hybrid(
        attention(), _window(), kimi_delta(page_size_padded=8192), **SMALL
    ),
    "padded attention": lambda: hybrid(
        attention(page_size_padded=9216), gated_delta_net(8, page_size_padded=9216)
    ),
    "padded kernel blocks": lambda: hybrid(
        attention(page_size_padded=9216),
        gated_delta_net(8, page_size_padded=9216),
        layout="HND",
        **SMALL,
    ),
    "compressed sparse": lambda: compressed_sparse(gated_delta_net()),
    "two layers packed": lambda: compressed_sparse(gated_delta_net(8)),
    "three layers packed": lambda: compressed_sparse(gated_delta_net(17), layers=6, **SMALL),
    "fp8": lambda: hybrid(attention(dtype="fp8"), dtype="fp8"),
    "fp8, scales beside heads, padded": lambda: hybrid(
        attention(dtype="fp8_per_token_head", page_size_padded=6144),
        gated_delta_net(page_size_padded=6144),
        dtype="fp8_per_token_head",
        **SMALL,
    ),
    "int8, scales beside heads": lambda: hybrid(
        attention(dtype="int8_per_token_head"), dtype="int8_per_token_head"
    ),
    "int8": lambda: hybrid(attention(dtype="int8"), dtype="int8", **SMALL),
    "int8, window, states": lambda: hybrid(
        attention(dtype="int8"), _window("int8"), gated_delta_net(5), dtype="int8", **SMALL
    ),
    "int8, two layers packed": lambda: compressed_sparse(gated_delta_net(8), "int8", **SMALL),
    "latent": latent,
}
