"""What an engine calls the things a connector needs, one surface per line of engines.

vLLM since 0.30 has one, ReVolta, the V100 engine, another. Which one is in use
is found out from the names that the engine has, not from its version: ReVolta
counts its own. ``docs/engines.md`` has both side by side.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, fields
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

from lmc_grouped.core.groups import GroupTable

if TYPE_CHECKING:
    import torch
    from vllm.config import VllmConfig
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheGroupSpec, KVCacheSpec
    from vllm.v1.request import Request

BoundaryOffers = Iterable[tuple[str, list[tuple[int, int, int]]]]
"""Per request: ``(group_id, block_id, boundary_tokens)`` of states written this step."""

Tables = Sequence[Sequence[int]]
"""A request's block ids, one list per engine group, null blocks in place."""


class StepTables(Protocol):
    """The block tables of the requests that a step schedules."""

    def update(self, scheduler_output: "SchedulerOutput") -> None:
        """A step has been scheduled."""

    def get(self, request: "Request") -> Tables | None:
        """The request's whole tables; ``None`` when the step does not have them.

        To be asked before the engine counts the step's tokens as computed.
        """


class Surface(Protocol):
    """The engine's words."""

    @property
    def name(self) -> str:
        """Of the line of engines."""

    def leaves(self, spec: "KVCacheSpec") -> "Collection[KVCacheSpec]":
        """The spec of each layer behind a group's spec."""

    def span_tokens(self, spec: "KVCacheSpec", context_parallel: int) -> int:
        """Tokens behind one block id of the spec's group."""

    def page_bytes(self, spec: "KVCacheSpec") -> int:
        """Bytes of content in one block of one layer, padding left out."""

    def window_tokens(self, spec: "KVCacheSpec") -> int:
        """Tokens that a sliding-window spec keeps, the current one counted."""

    def recycles_blocks(self, spec: "KVCacheSpec") -> bool:
        """Whether a full-attention spec lets go of blocks while its request runs."""

    def cacheable_group_ids(self, kv_cache_config: "KVCacheConfig") -> frozenset[int]:
        """Groups whose pages can be found again by their hashes; the others are scratch."""

    def is_transferred(self, group: "KVCacheGroupSpec") -> bool:
        """Whether the group's pages have to be brought back; the engine rebuilds the others."""

    def owned_layers(self, kv_cache_config: "KVCacheConfig") -> frozenset[str]:
        """Layers that have memory of their own."""

    def page_parts(self, registered: Any) -> "Sequence[torch.Tensor]":
        """The tensors registered for a layer, in the order of its page."""

    def kv_layout(self, kv_cache_config: "KVCacheConfig") -> str:
        """What decides the order of the bytes in a page beside specs and backends."""

    def retention_tokens(
        self, kv_cache_config: "KVCacheConfig", vllm_config: "VllmConfig"
    ) -> int | None:
        """The engine's ``prefix_cache_retention_interval``."""

    def drops_volatile_block(self, speculative_config: Any) -> bool:
        """Whether a drafter makes the engine drop the last matched block."""

    def boundary_offers(self, scheduler_output: "SchedulerOutput") -> BoundaryOffers:
        """The recurrent states that this step hands off."""

    def step_tables(self, table: GroupTable) -> StepTables:
        """Where the scheduler half reads block tables from."""


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
    from lmc_grouped.adapters.surface_revolta import RevoltaSurface
    from lmc_grouped.adapters.surface_vllm import VllmSurface

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
