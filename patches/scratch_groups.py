"""P1: leave groups that are not prefix-cacheable out of the converter, ids kept."""

from types import SimpleNamespace
from typing import Any

from patches.base import Function, Patch, Site
from patches.vllm_groups import scratch_ids

MODULE = "lmcache.integration.vllm.kv_cache_groups"


def _has_defect() -> bool:
    import torch
    from lmcache.integration.vllm.kv_cache_groups import create_engine_group_infos_from_vllm

    def group(layer: str, cacheable: bool) -> Any:
        spec = SimpleNamespace(block_size=4, prefix_cacheable=cacheable)
        return SimpleNamespace(layer_names=[layer], kv_cache_spec=spec)

    config = SimpleNamespace(kv_cache_groups=[group("a", True), group("b", False)])
    caches = {layer: torch.zeros(2, 2, 4, 1, 2) for layer in ("a", "b")}
    infos = create_engine_group_infos_from_vllm(config, caches, {"kv_layout": "NHD"})
    return [info.engine_group_id for info in infos] != [0]


def _without_scratch(original: Function) -> Function:
    def create(kv_cache_config: Any, kv_caches: Any, *args: Any, **kwargs: Any) -> Any:
        scratch = scratch_ids(kv_cache_config)
        groups = getattr(kv_cache_config, "kv_cache_groups", None) or ()
        if not scratch or len(scratch) == len(groups):
            return original(kv_cache_config, kv_caches, *args, **kwargs)
        hidden = {layer for group_id in scratch for layer in groups[group_id].layer_names}
        # A group without layers keeps its id and yields nothing.
        seen = [
            SimpleNamespace(layer_names=[], kv_cache_spec=group.kv_cache_spec)
            if group_id in scratch
            else group
            for group_id, group in enumerate(groups)
        ]
        # Layers are named by position, so a hidden one keeps its place; what
        # stands there is a tensor whose layout the release knows anyway.
        stand_in = next(cache for layer, cache in kv_caches.items() if layer not in hidden)
        caches = {
            layer: stand_in if layer in hidden else cache for layer, cache in kv_caches.items()
        }
        return original(SimpleNamespace(kv_cache_groups=seen), caches, *args, **kwargs)

    return create


PATCH = Patch(
    name="P1",
    summary="scratch groups form no transfer group",
    upstream="https://github.com/LMCache/LMCache/pull/5042",
    retire_when="LMCache 0.5.5 is no longer supported",
    has_defect=_has_defect,
    sites=(Site((MODULE,), "create_engine_group_infos_from_vllm", _without_scratch),),
)
