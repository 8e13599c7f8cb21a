"""ReVolta 0.1.4, the V100 engine: a fork of vLLM that kept older words."""

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

from lmc_grouped.adapters.surface import BoundaryOffers, Tables
from lmc_grouped.core.groups import GroupTable
from lmc_grouped.core.plan import NULL_BLOCK

if TYPE_CHECKING:
    import torch
    from vllm.config import VllmConfig
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheGroupSpec, KVCacheSpec
    from vllm.v1.request import Request

SCALE_BYTES = 4
"""A scale is a ``float32``."""


class MirroredTables:
    """Tables put together from what the engine tells its workers each step.

    The engine names only the blocks it adds. Those of full attention stay where
    they are while the request runs. A window's are let go once all their tokens
    are behind it, which follows from the tokens computed; read as null here.
    Recurrent tables change in place and are not to be read: states come from
    the hand-off.
    """

    def __init__(self, table: GroupTable) -> None:
        self._windows = [
            (group.group_id, group.span_tokens, group.window_tokens)
            for group in table.groups
            if group.window_tokens is not None
        ]
        self._tables: dict[str, list[list[int]]] = {}

    def update(self, scheduler_output: "SchedulerOutput") -> None:
        """A step has been scheduled."""
        gone = scheduler_output.finished_req_ids | (scheduler_output.preempted_req_ids or set())
        for request_id in gone:
            self._tables.pop(request_id, None)
        for new in scheduler_output.scheduled_new_reqs:
            self._tables[new.req_id] = [list(blocks) for blocks in new.block_ids]
        cached = scheduler_output.scheduled_cached_reqs
        for request_id, added in zip(cached.req_ids, cached.new_block_ids, strict=True):
            if added is None:
                continue
            if request_id in cached.resumed_req_ids:
                self._tables[request_id] = [list(blocks) for blocks in added]
                continue
            for blocks, more in zip(self._tables[request_id], added, strict=True):
                blocks.extend(more)

    def get(self, request: "Request") -> Tables | None:
        """The request's whole tables."""
        tables = self._tables.get(request.request_id)
        if tables is None:
            return None
        whole: list[Sequence[int]] = list(tables)
        for group_id, span_tokens, window_tokens in self._windows:
            # The formula of the engine's window manager, `get_num_skipped_tokens`.
            gone = max(0, request.num_computed_tokens - window_tokens + 1) // span_tokens
            blocks = tables[group_id]
            whole[group_id] = [NULL_BLOCK] * min(gone, len(blocks)) + blocks[gone:]
        return whole


class RevoltaSurface:
    """ReVolta's words, methods as in ``Surface``."""

    name = "ReVolta"

    def leaves(self, spec: "KVCacheSpec") -> "Collection[KVCacheSpec]":
        from vllm.v1.kv_cache_interface import UniformTypeKVCacheSpecs

        if isinstance(spec, UniformTypeKVCacheSpecs):
            return spec.kv_cache_specs.values()
        return (spec,)

    def span_tokens(self, spec: "KVCacheSpec", context_parallel: int) -> int:
        return spec.global_block_size(context_parallel)

    def page_bytes(self, spec: "KVCacheSpec") -> int:
        """Scales per token and head are not in what it calls real, unless in planes of their own.

        ``AttentionSpec.page_size_bytes`` counts them, but padding too.
        """
        mode = getattr(spec, "kv_quant_mode", None)
        if mode is None or not mode.is_per_token_head:
            return spec.real_page_size_bytes
        if spec.kv_page_layout.planar_scales:
            return spec.kv_page_layout.page_size_bytes
        return spec.real_page_size_bytes + 2 * spec.block_size * spec.num_kv_heads * SCALE_BYTES

    def window_tokens(self, spec: "KVCacheSpec") -> int:
        return spec.sliding_window

    def recycles_blocks(self, spec: "KVCacheSpec") -> bool:
        return hasattr(spec, "decode_sliding_window")

    def cacheable_group_ids(self, kv_cache_config: "KVCacheConfig") -> frozenset[int]:
        groups = enumerate(kv_cache_config.kv_cache_groups)
        return frozenset(i for i, group in groups if group.kv_cache_spec.prefix_cacheable)

    def is_transferred(self, group: "KVCacheGroupSpec") -> bool:
        return True

    def owned_layers(self, kv_cache_config: "KVCacheConfig") -> frozenset[str]:
        """``shared_by``: layers at different block ids, or beside each other in a block
        (``packed_members``), not aliases."""
        tensors = kv_cache_config.kv_cache_tensors
        return frozenset(name for tensor in tensors for name in tensor.shared_by)

    def page_parts(self, registered: Any) -> "Sequence[torch.Tensor]":
        """A recurrent layer is registered as a list, one tensor per part of its state."""
        return registered if isinstance(registered, list) else (registered,)

    def kv_layout(self, kv_cache_config: "KVCacheConfig") -> str:
        """Settings of the environment: nothing that a connector is handed tells of them."""
        from vllm import envs

        order = envs.VLLM_KV_CACHE_LAYOUT or "the backend's"
        # K, V and scales of a kernel block lie together.
        return f"{order}, small blocks" if envs.VLLM_FLASH_V100_KERNEL_BLOCK_SIZE16 else order

    def retention_tokens(
        self, kv_cache_config: "KVCacheConfig", vllm_config: "VllmConfig"
    ) -> int | None:
        return vllm_config.cache_config.prefix_cache_retention_interval

    def drops_volatile_block(self, speculative_config: Any) -> bool:
        return speculative_config.use_eagle_kv_cache()

    def boundary_offers(self, scheduler_output: "SchedulerOutput") -> BoundaryOffers:
        return (scheduler_output.boundary_state_offloads or {}).items()

    def step_tables(self, table: GroupTable) -> MirroredTables:
        return MirroredTables(table)
