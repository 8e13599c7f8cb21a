"""The converter: vLLM's ``KVCacheConfig`` and registered tensors -> our group table.

Which groups take part is the engine's own word (``adapters/surface.py``), never
a guess from a class name: a scratch ring is left out bare or inside a
uniform-type wrapper alike.
"""

from collections.abc import Collection, Mapping
from math import prod
from typing import Any

import torch
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheSpec,
    MambaSpec,
    SlidingWindowSpec,
    UniformTypeKVCacheSpecs,
)

from lmc_grouped.adapters import engine
from lmc_grouped.adapters.byte_views import page_view
from lmc_grouped.core.groups import ExcludedGroup, GroupSpec, GroupTable, GroupTableError, Kind


def build_group_table(
    kv_cache_config: KVCacheConfig,
    *,
    alignment_tokens: int,
    hash_block_tokens: int,
    context_parallel: int = 1,
    drafter_groups: frozenset[int] = frozenset(),
) -> GroupTable:
    """Convert the engine's groups, keeping their ids.

    Args:
        kv_cache_config: as vLLM hands it to either half of a connector.
        alignment_tokens: distance between hit boundaries (the scheduler block).
        hash_block_tokens: tokens behind one block hash.
        context_parallel: decode-context-parallel size; applied to specs that
            vLLM marks as sharded.
        drafter_groups: ids of groups with draft layers.

    Raises:
        GroupTableError: a group of a kind that cannot be stored, with its id.
    """
    stored, excluded = [], []
    words = engine.surface()
    cacheable = words.cacheable_group_ids(kv_cache_config)
    for group_id, group in enumerate(kv_cache_config.kv_cache_groups):
        reason = _reason_to_leave_out(group, group_id in cacheable)
        if reason:
            excluded.append(ExcludedGroup(group_id, reason))
            continue
        leaves = words.leaves(group.kv_cache_spec)
        kind = _kind(group_id, leaves)
        layers = owned_layers(kv_cache_config, group)
        stored.append(
            GroupSpec(
                group_id=group_id,
                kind=kind,
                span_tokens=engine.span_tokens(group.kv_cache_spec, context_parallel),
                page_bytes=sum(_layer_page_bytes(group, layer) for layer in layers),
                window_tokens=_window_tokens(leaves) if kind is Kind.WINDOW else None,
                is_drafter=group_id in drafter_groups,
                layers=tuple(layers),
            )
        )
    return GroupTable(
        groups=tuple(stored),
        excluded=tuple(excluded),
        alignment_tokens=alignment_tokens,
        hash_block_tokens=hash_block_tokens,
    )


def owned_layers(kv_cache_config: KVCacheConfig, group: KVCacheGroupSpec) -> list[str]:
    """The group's layers that own memory; a layer that aliases another's cache does not."""
    owned = engine.surface().owned_layers(kv_cache_config)
    return [name for name in group.layer_names if name in owned]


def layer_byte_views(
    kv_cache_config: KVCacheConfig, group: GroupSpec, kv_caches: Mapping[str, Any]
) -> list[torch.Tensor]:
    """The bytes of each layer of one group, checked against the group's spec.

    Args:
        kv_cache_config: as vLLM hands it to either half of a connector.
        group: of the table made from it.
        kv_caches: what the engine registered by layer: a tensor, or the parts of its page.

    Returns:
        Per layer a ``uint8`` view ``[num_blocks, *outer, run_bytes]`` of what is
        registered: no copy, physical byte order.

    Raises:
        GroupTableError: a layer is missing, or what is registered does not hold the
            page that the spec describes.
    """
    spec_group = kv_cache_config.kv_cache_groups[group.group_id]
    views = []
    for layer in group.layers:
        where = f"group {group.group_id}, layer {layer}"
        if layer not in kv_caches:
            raise GroupTableError(f"{where}: no cache tensor was registered for it")
        parts = engine.surface().page_parts(kv_caches[layer])
        view = page_view(parts, kv_cache_config.num_blocks, where)
        expected = _layer_page_bytes(spec_group, layer)
        if prod(view.shape[1:]) != expected:
            shapes = ", ".join(str(tuple(part.shape)) for part in parts)
            raise GroupTableError(
                f"{where}: what is registered, of shape {shapes}, holds "
                f"{prod(view.shape[1:])} bytes per block, its spec says {expected}"
            )
        views.append(view)
    return views


def _reason_to_leave_out(group: KVCacheGroupSpec, is_cacheable: bool) -> str | None:
    if not engine.surface().is_transferred(group):
        return "the engine rebuilds it after a load (enable_kv_transfer=False)"
    if not is_cacheable:
        return "scratch: not prefix-cacheable"
    return None


def _kind(group_id: int, leaves: Collection[KVCacheSpec]) -> Kind:
    kinds = {_leaf_kind(group_id, leaf) for leaf in leaves}
    if len(kinds) != 1:
        raise GroupTableError(
            f"group {group_id} mixes {sorted(kinds)}; one kind per group is needed"
        )
    return kinds.pop()


def _leaf_kind(group_id: int, spec: KVCacheSpec) -> Kind:
    if isinstance(spec, MambaSpec):
        if spec.mamba_cache_mode != "align":
            raise GroupTableError(
                f"group {group_id}: recurrent state in cache mode "
                f"{spec.mamba_cache_mode!r}; serve with --mamba-cache-mode align"
            )
        return Kind.RECURRENT
    if isinstance(spec, SlidingWindowSpec):
        return Kind.WINDOW
    if isinstance(spec, FullAttentionSpec) and not engine.surface().recycles_blocks(spec):
        return Kind.FULL
    raise GroupTableError(
        f"group {group_id}: a cache of type {type(spec).__name__} cannot be stored; "
        "full attention, sliding windows and recurrent states can"
    )


def _window_tokens(leaves: Collection[KVCacheSpec]) -> int:
    return max(engine.surface().window_tokens(leaf) for leaf in leaves)


def _layer_page_bytes(group: KVCacheGroupSpec, layer: str) -> int:
    spec = group.kv_cache_spec
    if isinstance(spec, UniformTypeKVCacheSpecs):
        spec = spec.kv_cache_specs[layer]
    return engine.page_bytes(spec)
