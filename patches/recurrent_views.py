"""P4: recurrent state in vLLM's blocks-first layouts looks like its layers-first twin."""

from types import SimpleNamespace
from typing import Any

from patches.base import Function, Patch, Site

MODULE = "lmcache.integration.vllm.kv_cache_group_edits"

TWINS = {"BLNHC": "NHD", "BLHNC": "HND"}
"""Within one block of one layer, the two have the same order."""


def _has_defect() -> bool:
    import torch
    from lmcache.integration.vllm.kv_cache_group_edits import _MambaUnifiedViewEdit

    spec = SimpleNamespace(block_size=4, page_size_bytes=64)
    state = torch.zeros(2, 1, 1, 64, dtype=torch.int8)
    try:
        _MambaUnifiedViewEdit().apply(spec, state, {"kv_layout": "BLNHC"})
    except ValueError:
        return True
    return False


def _by_twin(original: Function) -> Function:
    def apply(self: Any, spec: Any, kv_cache: Any, layout_hints: Any) -> Any:
        hint = layout_hints.get("kv_layout")
        hints = {**layout_hints, "kv_layout": TWINS[hint]} if hint in TWINS else layout_hints
        return original(self, spec, kv_cache, hints)

    return apply


PATCH = Patch(
    name="P4",
    summary="recurrent state in blocks-first layouts",
    upstream="in 0.5.6, after https://github.com/LMCache/LMCache/pull/4729",
    retire_when="LMCache 0.5.5 is no longer supported",
    has_defect=_has_defect,
    sites=(Site((MODULE,), "_MambaUnifiedViewEdit.apply", _by_twin),),
)
