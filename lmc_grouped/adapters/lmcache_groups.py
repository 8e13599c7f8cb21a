"""Our group table as LMCache's multi-process connector wants it: ``EngineGroupInfo``.

LMCache's own converter reads vLLM's specs by class name and takes the layout
from the tensors; what it gets wrong in which release is in ``docs/compat.md``.
This one takes vLLM's word, through the table, and needs no tensor at all: only
the order in which the layers are registered.
"""

from collections.abc import Hashable, Sequence
from typing import Any

from vllm.v1.kv_cache_interface import (
    KVCacheConfig,
    KVCacheSpec,
    UniformTypeKVCacheSpecs,
    compute_layer_kv_cache_shape_bytes,
)

from lmc_grouped.core.groups import GroupSpec, GroupTable, GroupTableError, Kind

ALL_HISTORY = -1
"""LMCache's window of a group that is restored whole."""


def engine_group_infos(
    table: GroupTable, kv_cache_config: KVCacheConfig, registered_layers: Sequence[str]
) -> list[Any]:
    """LMCache's transfer groups, in the order of their first layer.

    Layers of one engine group whose pages differ in shape or dtype become
    transfer groups of their own with the same engine id, so that one copy
    kernel serves each. Fields that the installed release does not have are
    left out.

    Args:
        table: what is stored; groups it leaves out form no transfer group.
        kv_cache_config: vLLM's configuration that the table was made from.
        registered_layers: names of the cache tensors in the order in which
            they are registered; LMCache names a layer by its place in it.

    Returns:
        ``EngineGroupInfo`` objects of the installed LMCache.

    Raises:
        GroupTableError: a stored layer is not among the registered ones.
    """
    from lmcache.v1.multiprocess.group_view import EngineGroupInfo

    place = {layer: index for index, layer in enumerate(registered_layers)}
    known_fields = set(EngineGroupInfo.__struct_fields__)
    infos = []
    for group in table.groups:
        spec = kv_cache_config.kv_cache_groups[group.group_id].kv_cache_spec
        for layers in _layers_by_shape(group, spec):
            fields = {
                "engine_group_id": group.group_id,
                "layer_indices": tuple(_place(place, layer, group) for layer in layers),
                "tokens_per_block": group.span_tokens,
                "sw_size_tokens": _window_tokens(group),
                "recurrent_state": group.kind is Kind.RECURRENT,
            }
            infos.append(EngineGroupInfo(**{k: v for k, v in fields.items() if k in known_fields}))
    return sorted(infos, key=lambda info: info.layer_indices[0])


def _window_tokens(group: GroupSpec) -> int:
    if group.kind is Kind.WINDOW and group.window_tokens is not None:
        return group.window_tokens
    # A state is restored from the one page that ends at the boundary.
    return group.span_tokens if group.kind is Kind.RECURRENT else ALL_HISTORY


def _layers_by_shape(group: GroupSpec, spec: KVCacheSpec) -> list[list[str]]:
    by_shape: dict[Hashable, list[str]] = {}
    for layer in group.layers:
        leaf = spec.kv_cache_specs[layer] if isinstance(spec, UniformTypeKVCacheSpecs) else spec
        _, *page = compute_layer_kv_cache_shape_bytes(leaf, 1)
        shape = (*page, getattr(leaf, "dtype", None))
        by_shape.setdefault(shape, []).append(layer)
    return list(by_shape.values())


def _place(place: dict[str, int], layer: str, group: GroupSpec) -> int:
    if layer not in place:
        raise GroupTableError(
            f"group {group.group_id}, layer {layer}: not among the registered cache tensors "
            f"{list(place)}; register every layer of the stored groups"
        )
    return place[layer]
