"""Groups and cache tensors as vLLM makes them, for the cases.

Everything here needs vLLM and torch, so it is imported only inside a probe.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from vllm.v1.kv_cache_interface import (
    CircularBufferSpec,
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheSpec,
    KVCacheTensor,
    MambaSpec,
    MLAAttentionSpec,
    SlidingWindowSpec,
    UniformTypeKVCacheSpecs,
    create_kv_cache_views,
)
from vllm.v1.kv_cache_layout import KVCacheLayout

NUM_BLOCKS = 6

HINTS = {
    KVCacheLayout.LBNHC: "NHD",
    KVCacheLayout.LBHNC: "HND",
    KVCacheLayout.BLNHC: "BLNHC",
    KVCacheLayout.BLHNC: "BLHNC",
}
"""What LMCache calls vLLM's layouts."""


@dataclass(frozen=True, slots=True)
class Registered:
    """What a connector's worker half is given."""

    config: KVCacheConfig
    caches: Mapping[str, Any]
    """Per layer one tensor, or a list of two for the recurrent state of older engines."""
    hints: Mapping[str, str]


def full(block: int = 16, *, heads: int = 2, head_size: int = 8, **more: Any) -> FullAttentionSpec:
    """Full attention in float16."""
    return FullAttentionSpec(
        block_size=block, num_kv_heads=heads, head_size=head_size, dtype=torch.float16, **more
    )


def window(block: int, tokens: int, *, heads: int = 2, head_size: int = 8) -> SlidingWindowSpec:
    """A sliding window in float16."""
    return SlidingWindowSpec(
        block_size=block,
        num_kv_heads=heads,
        head_size=head_size,
        dtype=torch.float16,
        sliding_window=tokens,
    )


def ring(block: int = 8, *, row: int = 32) -> CircularBufferSpec:
    """A scratch ring: one block per request, not prefix-cacheable."""
    return CircularBufferSpec(
        block_size=block, num_kv_heads=1, head_size=row, head_size_v=0, dtype=torch.float16
    )


def recurrent(block: int = 16, *, state_bytes: int = 512, mode: str = "align") -> MambaSpec:
    """A recurrent state of two parts, as convolution and state-space layers have."""
    return MambaSpec(
        block_size=block,
        shapes=((state_bytes // 4,), (state_bytes - state_bytes // 4,)),
        dtypes=(torch.int8, torch.int8),
        mamba_cache_mode=mode,
    )


def compressed(block: int = 784, ratio: int = 4, width: int = 128) -> MLAAttentionSpec:
    """Case A03: one state for ``ratio`` tokens."""
    return MLAAttentionSpec(
        block_size=block,
        num_kv_heads=1,
        head_size=width,
        dtype=torch.float16,
        tokens_per_state=ratio,
    )


def wrapped(block: int, **leaves: KVCacheSpec) -> UniformTypeKVCacheSpecs:
    """The specs of several layers inside one uniform-type wrapper."""
    return UniformTypeKVCacheSpecs(block_size=block, kv_cache_specs=dict(leaves))


def register(
    specs: Sequence[KVCacheSpec | KVCacheGroupSpec],
    layout: KVCacheLayout = KVCacheLayout.LBHNC,
    *,
    aliases: Mapping[str, str] | None = None,
) -> Registered:
    """One group per spec, with the views vLLM 0.32 makes of one shared buffer.

    Pages of smaller groups are padded to the largest, as vLLM does. Layers are
    called ``layer.<group>``, leaves of a wrapper by their names; ``aliases``
    maps a layer that owns no memory to the one whose tensor it shares.
    """
    groups = [_group(group_id, spec) for group_id, spec in enumerate(specs)]
    largest = max(spec.page_size_bytes for group in groups for _, spec in _leaves(group))
    groups = [_padded(group, largest) for group in groups]
    depth = max(len(group.layer_names) for group in groups)
    raw = torch.zeros(largest * NUM_BLOCKS * depth, dtype=torch.int8)
    tensors, caches = [], {}
    for group in groups:
        for position, (layer, spec) in enumerate(_leaves(group)):
            tensor = _placement(layer, position, largest, len(group.layer_names), layout)
            tensors.append(tensor)
            (caches[layer],) = create_kv_cache_views(raw, spec, NUM_BLOCKS, layout, tensor)
    for alias, owner in (aliases or {}).items():
        caches[alias] = caches[owner]
    config = KVCacheConfig(num_blocks=NUM_BLOCKS, kv_cache_tensors=tensors, kv_cache_groups=groups)
    return Registered(config, caches, {"kv_layout": HINTS[layout]})


def register_tensors(
    specs: Mapping[str, KVCacheSpec], caches: Mapping[str, Any], hints: Mapping[str, str]
) -> Registered:
    """One group per layer, with the given tensors."""
    groups = [KVCacheGroupSpec([layer], spec) for layer, spec in specs.items()]
    tensors = [
        KVCacheTensor(size=0, layers=[layer], layer_stride=0, block_stride=0) for layer in specs
    ]
    config = KVCacheConfig(num_blocks=NUM_BLOCKS, kv_cache_tensors=tensors, kv_cache_groups=groups)
    return Registered(config, caches, hints)


def rank5(block: int = 16, heads: int = 2, head_size: int = 8) -> torch.Tensor:
    """Attention pages of engines before 0.26: ``[blocks, 2, block, heads, head_size]``."""
    return torch.zeros(NUM_BLOCKS, 2, block, heads, head_size, dtype=torch.float16)


def state_pair(spec: MambaSpec) -> list[torch.Tensor]:
    """Recurrent state of engines before 0.26: two views of one page each."""
    page = torch.zeros(NUM_BLOCKS, spec.page_size_bytes, dtype=torch.int8)
    first = spec.shapes[0][0]
    return [page[:, :first], page[:, first:]]


def _group(group_id: int, spec: KVCacheSpec | KVCacheGroupSpec) -> KVCacheGroupSpec:
    if isinstance(spec, KVCacheGroupSpec):
        return spec
    if isinstance(spec, UniformTypeKVCacheSpecs):
        return KVCacheGroupSpec(list(spec.kv_cache_specs), spec)
    return KVCacheGroupSpec([f"layer.{group_id}"], spec)


def _leaves(group: KVCacheGroupSpec) -> list[tuple[str, KVCacheSpec]]:
    spec = group.kv_cache_spec
    if isinstance(spec, UniformTypeKVCacheSpecs):
        return list(spec.kv_cache_specs.items())
    return [(layer, spec) for layer in group.layer_names]


def _padded(group: KVCacheGroupSpec, page_bytes: int) -> KVCacheGroupSpec:
    spec = group.kv_cache_spec
    if isinstance(spec, UniformTypeKVCacheSpecs):
        leaves = {name: _pad(leaf, page_bytes) for name, leaf in spec.kv_cache_specs.items()}
        return replace(group, kv_cache_spec=replace(spec, kv_cache_specs=leaves))
    return replace(group, kv_cache_spec=_pad(spec, page_bytes))


def _pad(spec: KVCacheSpec, page_bytes: int) -> KVCacheSpec:
    if spec.page_size_bytes == page_bytes:
        return spec
    return replace(spec, page_size_padded=page_bytes)


def _placement(
    layer: str, position: int, page_bytes: int, layers: int, layout: KVCacheLayout
) -> KVCacheTensor:
    if layout.is_layer_compact:
        layer_stride, block_stride = page_bytes * NUM_BLOCKS, page_bytes
    else:
        layer_stride, block_stride = page_bytes, page_bytes * layers
    return KVCacheTensor(
        size=page_bytes * NUM_BLOCKS * layers,
        layers=[layer],
        layer_stride=layer_stride,
        block_stride=block_stride,
        offset=position * layer_stride,
    )


def groups_only(specs: Sequence[KVCacheSpec]) -> KVCacheConfig:
    """The configuration alone, for questions to a scheduler half."""
    groups = [_group(group_id, spec) for group_id, spec in enumerate(specs)]
    return KVCacheConfig(num_blocks=NUM_BLOCKS, kv_cache_tensors=[], kv_cache_groups=groups)
