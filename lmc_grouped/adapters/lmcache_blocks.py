"""Blocks between an engine's paged cache and LMCache's objects, with torch alone.

An object holds the tokens of some blocks, token after token: ``[2, layers, tokens,
heads * width]`` for separate keys and values, ``[layers, tokens, heads * width]``
for one plane. An engine's cache has blocks, in one of LMCache's layouts. Only
tensors are taken, because a bare address does not say what it points to. Every
copy to host memory has finished on return; copies to the device are ordered by
the current stream.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from lmc_grouped.adapters.lmcache_device import MODE_VARIABLE

Caches: TypeAlias = Any
"""One tensor, a tensor per layer, or lists of them: what the layout says."""
Planes: TypeAlias = list[list[torch.Tensor]]
"""Per plane (keys, values, or both in one) and layer a view ``[blocks, tokens per block,
heads, width]``."""

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_KV = (0, 1)


def _layers_in_blocks(cache: torch.Tensor) -> Planes:
    return [[cache[:, layer, kv] for layer in range(cache.shape[1])] for kv in _KV]


def _heads_first(planes: Planes) -> Planes:
    return [[view.transpose(1, 2) for view in layers] for layers in planes]


def _kv_outside(caches: Sequence[torch.Tensor]) -> Planes:
    return [[cache[kv] for cache in caches] for kv in _KV]


def _kv_in_blocks(caches: Sequence[torch.Tensor]) -> Planes:
    return [[cache[:, kv] for cache in caches] for kv in _KV]


def _kv_in_width(caches: Sequence[torch.Tensor]) -> Planes:
    # Registered as [.., 2 * width] or split as [.., 2, width]: the same bytes.
    return [[cache.view(*cache.shape[:3], -1) for cache in caches]]


def _kv_lists(caches: Sequence[Any]) -> Planes:
    if len(caches) == 2 and not isinstance(caches[0], torch.Tensor):
        return [list(layers) for layers in caches]
    half = len(caches) // 2
    return [list(caches[:half]), list(caches[half:])]


def _in_blocks(planes: Planes, tokens: int) -> Planes:
    return [[view.unflatten(0, (-1, tokens)) for view in layers] for layers in planes]


_LAYOUTS: dict[str, Callable[[Caches, int], Planes]] = {
    "NB_NL_TWO_BS_NH_HS": lambda cache, _: _layers_in_blocks(cache),
    "NB_NL_TWO_NH_BS_HS": lambda cache, _: _heads_first(_layers_in_blocks(cache)),
    "NL_X_TWO_NB_BS_NH_HS": lambda caches, _: _kv_outside(caches),
    "NL_X_TWO_NB_NH_BS_HS": lambda caches, _: _heads_first(_kv_outside(caches)),
    "NL_X_NB_TWO_BS_NH_HS": lambda caches, _: _kv_in_blocks(caches),
    "NL_X_NB_TWO_NH_BS_HS": lambda caches, _: _heads_first(_kv_in_blocks(caches)),
    "NL_X_TWO_X_NB_BS_NH_HS": lambda caches, _: _kv_outside(caches),
    "NL_X_NB_BS_NH_TWO_HS": lambda caches, _: _kv_in_width(caches),
    "NL_X_NB_NH_BS_TWO_HS": lambda caches, _: _heads_first(_kv_in_width(caches)),
    "NL_X_NB_BS_NH_CS": lambda caches, _: _kv_in_width(caches),
    "NL_X_NB_NH_BS_CS": lambda caches, _: _heads_first(_kv_in_width(caches)),
    "NL_X_NB_BS_NH_HS": lambda caches, _: [list(caches)],
    "NL_X_NB_BS_HS": lambda caches, _: [[cache.unsqueeze(2) for cache in caches]],
    "NL_X_NBBS_ONE_HS": lambda caches, tokens: _in_blocks([list(caches)], tokens),
    "TWO_X_NL_X_NB_BS_NH_HS": lambda caches, _: _kv_lists(caches),
    "TWO_X_NL_X_NBBS_NH_HS": lambda caches, tokens: _in_blocks(_kv_lists(caches), tokens),
}
LAYOUTS = tuple(sorted(_LAYOUTS))
"""Names of LMCache's ``EngineKVFormat`` that are served."""


@dataclass(frozen=True, slots=True)
class Extent:
    """Which blocks of which objects a transfer covers."""

    blocks_per_object: int
    skipped_blocks: int
    """At the start of the first object; they are neither read nor written."""


def planes_of(layout: str, caches: Caches, tokens_per_block: int) -> Planes:
    """The views of an engine's cache.

    Raises:
        ValueError: a layout that is not served, no tensors, or layers of unequal shape.
    """
    if layout not in _LAYOUTS:
        raise ValueError(f"layout {layout} is not served; served are {', '.join(LAYOUTS)}")
    if not _has_only_tensors(caches):
        raise ValueError(
            f"layout {layout}: the cache must be given as tensors, not as {_kind(caches)}; "
            f"set {MODE_VARIABLE}=engine_driven, which does so"
        )
    planes = _LAYOUTS[layout](caches, tokens_per_block)
    shapes = {(tuple(view.shape), view.dtype) for layers in planes for view in layers}
    if len(shapes) != 1 or (shape := next(iter(shapes))[0])[1:2] != (tokens_per_block,):
        raise ValueError(
            f"layout {layout}: layers of one shape with {tokens_per_block} tokens per block are "
            f"needed, got {sorted(map(str, shapes))}"
        )
    assert len(shape) == 4
    return planes


def copy_blocks(
    planes: Planes,
    objects: Sequence[torch.Tensor],
    block_ids: Sequence[int],
    extent: Extent,
    *,
    to_host: bool,
) -> None:
    """Copy blocks into objects, or objects into blocks, in the order of the ids.

    Args:
        planes: of ``planes_of``.
        objects: as above; blocks ``i * blocks_per_object`` and on lie in object ``i``.
        block_ids: of the engine; the last object need not be filled.
        extent: what is copied.
        to_host: into the objects.

    Raises:
        ValueError: an id out of range, or an object that cannot hold its blocks.
    """
    blocks, tokens, heads, width = planes[0][0].shape
    if block_ids and not 0 <= min(block_ids) <= max(block_ids) < blocks:
        raise ValueError(
            f"block ids {min(block_ids)}..{max(block_ids)} are outside 0..{blocks - 1}"
        )
    integer = _INTEGERS[planes[0][0].element_size()]
    views = [[view.view(integer) for view in layers] for layers in planes]
    shape = (len(planes), len(planes[0]), -1, heads * width)
    for index, each in enumerate(objects):
        start = index * extent.blocks_per_object
        first = max(start, extent.skipped_blocks)
        last = min(start + extent.blocks_per_object, len(block_ids))
        if first >= last:
            continue
        if each.element_size() != integer.itemsize or not each.is_contiguous():
            raise ValueError(
                f"object {index}: contiguous elements of {integer.itemsize} bytes are needed, got "
                f"{each.dtype} with strides {each.stride()}"
            )
        rows = each.view(integer).view(shape)[:, :, (first - start) * tokens :]
        rows = rows[:, :, : (last - first) * tokens]
        if rows.shape[2] != (last - first) * tokens:
            raise ValueError(
                f"object {index} of shape {tuple(each.shape)} has no room for "
                f"{extent.blocks_per_object} blocks of {tokens} tokens"
            )
        rows = rows.unflatten(2, (-1, tokens)).unflatten(4, (heads, width))
        _copy_object(views, rows, block_ids[first:last], to_host=to_host)


def _copy_object(views: Planes, rows: torch.Tensor, ids: Sequence[int], *, to_host: bool) -> None:
    """``rows`` is ``[planes, layers, blocks, tokens per block, heads, width]``."""
    device = views[0][0].device
    index = torch.tensor(ids, dtype=torch.int64, device=device)
    near = rows
    if rows.device != device:  # one copy over the bus per object
        near = torch.empty(rows.shape, dtype=rows.dtype, device=device)
        if not to_host:
            near.copy_(rows)
    for plane, layers in enumerate(views):
        for layer, view in enumerate(layers):
            if to_host:
                near[plane, layer].copy_(view.index_select(0, index))
            else:
                view.index_copy_(0, index, near[plane, layer])
    if to_host and near is not rows:
        rows.copy_(near)


def _has_only_tensors(caches: Caches) -> bool:
    if isinstance(caches, torch.Tensor):
        return caches.dim() > 1  # one dimension: addresses
    return (
        isinstance(caches, list | tuple)
        and bool(caches)
        and all(_has_only_tensors(each) for each in caches)
    )


def _kind(caches: Caches) -> str:
    if isinstance(caches, torch.Tensor):
        return f"a tensor of {caches.dim()} dimensions and {caches.dtype}"
    return f"a {type(caches).__name__}"
