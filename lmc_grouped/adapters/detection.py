"""Which engine is installed: found out from the names it has, not from its version.

ReVolta counts its own versions.
"""

from dataclasses import dataclass, fields
from functools import cache
from importlib import import_module

from lmc_grouped.adapters.surface import Surface
from lmc_grouped.adapters.surface_revolta import RevoltaSurface
from lmc_grouped.adapters.surface_vllm import VllmSurface


@dataclass(frozen=True, slots=True)
class EngineNames:
    """The names by which surfaces are told apart."""

    step: frozenset[str]
    """Fields of ``SchedulerOutput``."""
    config: frozenset[str]
    """Attributes of ``KVCacheConfig``."""
    spec: frozenset[str]
    """Attributes of ``KVCacheSpec``."""
    hooks: frozenset[str]
    """Attributes of the connector base class."""


def find(names: EngineNames) -> Surface | None:
    """The surface of an engine with these names; ``None``: it lacks hooks we need."""
    if (
        "kv_connector_block_state" in names.step
        and "prefix_cacheable_group_ids" in names.config
        and "get_transfer_results" in names.hooks
    ):
        return VllmSurface()
    if (
        "boundary_state_offloads" in names.step
        and "prefix_cacheable" in names.spec
        and "get_block_ids_with_load_errors" in names.hooks
    ):
        return RevoltaSurface()
    return None


@cache
def detect() -> Surface | None:
    """The surface of the installed engine; ``None``: it lacks hooks we need."""
    try:
        step = import_module("vllm.v1.core.sched.output").SchedulerOutput
        interface = import_module("vllm.v1.kv_cache_interface")
        base = import_module("vllm.distributed.kv_transfer.kv_connector.v1.base")
    except ImportError:
        return None
    return find(
        EngineNames(
            step=frozenset(field.name for field in fields(step)),
            config=frozenset(dir(interface.KVCacheConfig)),
            spec=frozenset(dir(interface.KVCacheSpec)),
            hooks=frozenset(dir(base.KVConnectorBase_V1)),
        )
    )
