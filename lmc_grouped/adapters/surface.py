"""What an engine calls the things a connector needs, one surface per line of engines.

vLLM since 0.30 has one, ReVolta, the V100 engine, another; ``docs/engines.md`` has
both side by side.
"""

from collections.abc import Collection, Iterable, Sequence
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
