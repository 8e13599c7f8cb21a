"""P5: on a CPU, believe the layout that vLLM states."""

from typing import Any

from patches.base import Function, Patch, Site

MODULE = "lmcache.v1.gpu_connector.kv_format.detectors.vllm"

TOKENS_FIRST = ("NHD", "BLNHC")
"""Layouts in which a token's heads lie together."""
HEADS, TOKENS = "_NH_BS_", "_BS_NH_"
"""How LMCache's format names write the two orders."""


def _has_defect() -> bool:
    import torch
    from lmcache.v1.gpu_connector.kv_format.detectors.vllm import VLLM_Detector

    caches = [torch.zeros(3, 2, 4, 5, 6)]
    found = [VLLM_Detector().discover(caches, {"kv_layout": name})[0] for name in ("NHD", "HND")]
    return found[0] == found[1]


def _by_hint(original: Function) -> Function:
    def discover(self: Any, kv_caches: Any, layout_hints: Any) -> Any:
        found, caches = original(self, kv_caches, layout_hints)
        if found is None or layout_hints.get("kv_layout") not in TOKENS_FIRST:
            return found, caches
        # The release answers heads first whatever it is told; some have no
        # name for the other order of this kind of tensor.
        twin = getattr(type(found), found.name.replace(HEADS, TOKENS), found)
        return twin, caches

    return discover


PATCH = Patch(
    name="P5",
    summary="the layout hint counts on a CPU",
    upstream="https://github.com/LMCache/LMCache/pull/4798",
    retire_when="LMCache 0.5.4 is no longer supported",
    has_defect=_has_defect,
    sites=(Site((MODULE,), "VLLM_Detector.discover", _by_hint),),
    in_cache_server=True,
)
