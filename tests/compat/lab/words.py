"""What the adapters make of the engine's own types."""

from dataclasses import fields, replace
from types import SimpleNamespace
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1 import base
from vllm.v1 import kv_cache_interface as interface
from vllm.v1.kv_cache_interface import KVCacheGroupSpec, UniformTypeKVCacheSpecs

from lmc_grouped.adapters import engine, vllm_groups
from lmc_grouped.connector import LMCacheConnectorV1
from lmc_grouped.core.groups import GroupTableError
from tests.compat.lab import layouts, runner

SPAN = layouts.SPAN_TOKENS


def facts() -> dict[str, Any]:
    """The same for every engine, apart from names."""
    return {
        "engine": engine.surface().name,
        "page bytes": _page_bytes(),
        "spans, context parallel 4": {
            kind: engine.span_tokens(layouts.spec(kind), 4) for kind in ("attention", "state")
        },
        "wrapped": _wrapped(),
        "drafters": _drafters(),
        "recycled blocks": _refusal(_recycling()),
        "may be remapped": _is_vmm_safe(),
        "parts of a state": _state_parts(),
    }


def _page_bytes() -> dict[str, int]:
    latent: dict[str, Any] = {"block_size": SPAN, "num_kv_heads": 1, "head_size": 16}
    four_tokens = _first_field(interface.MLAAttentionSpec, "tokens_per_state", "compress_ratio")
    attention, state = layouts.spec("attention"), layouts.spec("state")
    dtype = attention.dtype
    specs = {
        "attention": attention,
        "attention, padded": replace(attention, page_size_padded=512),
        "window": layouts.spec("window"),
        "state": state,
        "state, padded": replace(state, page_size_padded=512),
        "latent": interface.MLAAttentionSpec(dtype=dtype, **latent),
        "latent, four tokens to a state": interface.MLAAttentionSpec(
            dtype=dtype, **latent, **{four_tokens: 4}
        ),
    }
    return {name: engine.page_bytes(spec) for name, spec in specs.items()}


def _wrapped() -> dict[str, Any]:
    """Which groups are stored, with which layers, when some are wrapped."""
    attention, ring = layouts.spec("attention"), layouts.spec("ring")
    # Two layers of one group that share a page of the device with those of the others.
    groups = [
        KVCacheGroupSpec(["a", "b"], _wrap(a=attention, b=attention)),
        KVCacheGroupSpec(["r", "s"], _wrap(r=ring, s=ring)),
        KVCacheGroupSpec(["t", "u"], _wrap(t=attention, u=ring)),
        KVCacheGroupSpec(["w", "alias of a"], layouts.spec("state")),
    ]
    config = layouts.cache_config(("attention",) * 4, 8, 0)
    config.kv_cache_groups[:] = groups
    named = ["a", "b", "r", "s", "t", "u", "w"]
    tensor = config.kv_cache_tensors[0]
    setattr(tensor, _first_field(type(tensor), "layers", "shared_by"), named)
    del config.kv_cache_tensors[1:]
    table = vllm_groups.build_group_table(config, alignment_tokens=SPAN, hash_block_tokens=SPAN)
    return {
        "stored": {group.group_id: [group.page_bytes, *group.layers] for group in table.groups},
        "left out": [group.group_id for group in table.excluded],
    }


def _drafters() -> dict[str, list[int]]:
    """Groups that prove a page more: without a mark those of full attention, else the marked."""
    speculative = SimpleNamespace(
        use_eagle_block_drop=lambda: True, use_eagle_kv_cache=lambda: True
    )
    config = layouts.cache_config(layouts.WINDOWED, 8, 0)
    vllm_config = SimpleNamespace(speculative_config=speculative)
    unmarked = engine.drafter_groups(config, vllm_config)
    config.kv_cache_groups[3].is_eagle_group = True
    return {
        "unmarked": sorted(unmarked),
        "marked": sorted(engine.drafter_groups(config, vllm_config)),
    }


def _recycling() -> Any:
    """Attention that keeps the prompt and a window of what was generated."""
    if hasattr(interface, "RSWASpec"):
        kind, window = interface.RSWASpec, {"rswa_window": 64}
    else:
        kind, window = interface.PrefixAnchoredSWASpec, {"decode_sliding_window": 64}
    dtype = layouts.spec("attention").dtype
    return kind(block_size=SPAN, num_kv_heads=1, head_size=1, dtype=dtype, **window)


def _refusal(spec: Any) -> bool:
    config = layouts.cache_config(("attention",), 8, 0)
    config.kv_cache_groups[0].kv_cache_spec = spec
    try:
        vllm_groups.build_group_table(config, alignment_tokens=SPAN, hash_block_tokens=SPAN)
    except GroupTableError as error:
        return "cannot be stored" in str(error)
    return False


def _is_vmm_safe() -> bool | None:
    """What the engine makes of the connector before it lets memory be remapped."""
    ask = getattr(base, "supports_vmm_safe_transfers", None)
    return None if ask is None else ask(LMCacheConnectorV1)


def _state_parts() -> int:
    """In how many tensors the scenarios register a recurrent layer of two parts."""
    _, caches = runner.one_allocation(layouts.cache_config(layouts.HYBRID, 8, 0))
    return len(engine.surface().page_parts(caches["layer.2"]))


def _wrap(**specs: Any) -> Any:
    return UniformTypeKVCacheSpecs(block_size=SPAN, kv_cache_specs=specs)


def _first_field(kind: Any, *names: str) -> str:
    known = {field.name for field in fields(kind)}
    return next(name for name in names if name in known)
