"""What vLLM says about its groups, read by attribute: any vLLM, and our probes, will do."""

from typing import Any


def is_scratch(group: Any) -> bool:
    """Whether the group takes no part: its own flag, or any leaf that is not cacheable."""
    if not getattr(group, "enable_kv_transfer", True):
        return True
    spec = group.kv_cache_spec
    per_layer = getattr(spec, "kv_cache_specs", None)
    leaves = list(per_layer.values()) if isinstance(per_layer, dict) else [spec]
    return not all(getattr(leaf, "prefix_cacheable", True) for leaf in leaves)


def scratch_ids(kv_cache_config: Any) -> list[int]:
    """Ids of the groups that take no part."""
    groups = getattr(kv_cache_config, "kv_cache_groups", None) or ()
    return [group_id for group_id, group in enumerate(groups) if is_scratch(group)]
