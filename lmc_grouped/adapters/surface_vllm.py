"""vLLM 0.30 to 0.33."""

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

from lmc_grouped.adapters.surface import BoundaryOffers, Tables
from lmc_grouped.core.groups import GroupTable

if TYPE_CHECKING:
    import torch
    from vllm.config import VllmConfig
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheGroupSpec, KVCacheSpec
    from vllm.v1.request import Request


class BlockStateTables:
    """The engine hands whole tables to its connector each step."""

    def __init__(self) -> None:
        self._state: Any = None

    def update(self, scheduler_output: "SchedulerOutput") -> None:
        """A step has been scheduled."""
        self._state = scheduler_output.kv_connector_block_state

    def get(self, request: "Request") -> Tables | None:
        """The request's whole tables."""
        return None if self._state is None else self._state.get_block_ids(request.request_id)


class VllmSurface:
    """vLLM's words, methods as in ``Surface``."""

    name = "vLLM"

    def leaves(self, spec: "KVCacheSpec") -> "Collection[KVCacheSpec]":
        from vllm.v1.kv_cache_interface import iter_layer_specs

        return iter_layer_specs(spec)

    def span_tokens(self, spec: "KVCacheSpec", context_parallel: int) -> int:
        if context_parallel == 1:
            return spec.block_size
        from vllm.v1.core.kv_cache_utils import resolve_dcp_kv_block_size

        return resolve_dcp_kv_block_size(spec, context_parallel)

    def page_bytes(self, spec: "KVCacheSpec") -> int:
        from vllm.v1.kv_cache_interface import compute_layer_kv_cache_shape_bytes

        _, heads, states, state_bytes = compute_layer_kv_cache_shape_bytes(spec, 1)
        return heads * states * state_bytes

    def window_tokens(self, spec: "KVCacheSpec") -> int:
        return spec.sliding_window + spec.extra_retained_tokens

    def recycles_blocks(self, spec: "KVCacheSpec") -> bool:
        return hasattr(spec, "rswa_window")

    def cacheable_group_ids(self, kv_cache_config: "KVCacheConfig") -> frozenset[int]:
        return frozenset(kv_cache_config.prefix_cacheable_group_ids)

    def is_transferred(self, group: "KVCacheGroupSpec") -> bool:
        return group.enable_kv_transfer

    def owned_layers(self, kv_cache_config: "KVCacheConfig") -> frozenset[str]:
        tensors = kv_cache_config.kv_cache_tensors
        return frozenset(name for tensor in tensors for name in tensor.layers)

    def page_parts(self, registered: Any) -> "Sequence[torch.Tensor]":
        return (registered,)

    def kv_layout(self, kv_cache_config: "KVCacheConfig") -> str:
        """Written down since 0.32; before, it was a matter of the backend alone."""
        return getattr(kv_cache_config, "kv_cache_layout", None) or "the backend's"

    def retention_tokens(
        self, kv_cache_config: "KVCacheConfig", vllm_config: "VllmConfig"
    ) -> int | None:
        return kv_cache_config.prefix_cache_retention_interval

    def drops_volatile_block(self, speculative_config: Any) -> bool:
        return speculative_config.use_eagle_block_drop()

    def boundary_offers(self, scheduler_output: "SchedulerOutput") -> BoundaryOffers:
        state = scheduler_output.kv_connector_block_state
        return () if state is None else state.boundary_state_offloads.items()

    def step_tables(self, table: GroupTable) -> BlockStateTables:
        return BlockStateTables()
