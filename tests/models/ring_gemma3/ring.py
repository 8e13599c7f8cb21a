"""The scratch ring: a cache layer of one block per request, and its attention backend."""

from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from ring_gemma3.settings import RingSettings
from torch import nn
from vllm.config import VllmConfig
from vllm.forward_context import get_forward_context
from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase
from vllm.v1.attention.backend import (
    AttentionBackend,
    AttentionMetadataBuilder,
    CommonAttentionMetadata,
)
from vllm.v1.kv_cache_interface import CircularBufferSpec, KVCacheSpec

NULL_BLOCK_ID = 0
"""The block of requests that have none (profiling, padding): shared, so it must not be written."""

OUTPUT_GAIN = 2.0
"""Scale of the ring's answer against the attention's, which has a standard deviation near 1."""


@dataclass(frozen=True, slots=True)
class RequestRows:
    """One request's part of a step."""

    block_id: int
    """Its ring in the pool."""

    first_row: int
    """Where its tokens begin in the step's hidden states."""

    stop_row: int
    """Where they end, exclusive."""

    first_position: int
    """Token position of `first_row` in the request."""


@dataclass(frozen=True, slots=True)
class RingMetadata:
    """What a ring needs to know about a step."""

    requests: tuple[RequestRows, ...]


class RingMetadataBuilder(AttentionMetadataBuilder[RingMetadata]):
    """Reads block ids from the block table; the group's slot mapping means nothing for a ring."""

    def __init__(
        self,
        kv_cache_spec: KVCacheSpec,
        layer_names: list[str],
        vllm_config: VllmConfig,
        device: torch.device,
    ) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)

    def build(
        self,
        common_prefix_len: int,
        common_attn_metadata: CommonAttentionMetadata,
        fast_build: bool = False,
    ) -> RingMetadata:
        """Metadata of one step; all requests of the batch, in batch order."""
        row_edges = common_attn_metadata.query_start_loc_cpu.tolist()
        block_ids = common_attn_metadata.block_table_tensor[:, 0].tolist()
        stop_positions = common_attn_metadata.seq_lens.tolist()
        requests = []
        for index in range(common_attn_metadata.num_reqs):
            first_row, stop_row = row_edges[index], row_edges[index + 1]
            requests.append(
                RequestRows(
                    block_id=block_ids[index],
                    first_row=first_row,
                    stop_row=stop_row,
                    first_position=stop_positions[index] - (stop_row - first_row),
                )
            )
        return RingMetadata(tuple(requests))


class RingBackend(AttentionBackend):
    """Names the builder. There is no kernel: `ScratchRing.forward` does the work."""

    supported_dtypes = (torch.float32,)

    @staticmethod
    def get_name() -> str:
        return "SCRATCH_RING"

    @staticmethod
    def get_impl_cls() -> NoReturn:
        raise NotImplementedError("a scratch ring has no attention implementation")

    @staticmethod
    def get_builder_cls() -> type[RingMetadataBuilder]:
        return RingMetadataBuilder


class ScratchRing(nn.Module, AttentionLayerBase):
    """Per request, the rows of the latest tokens, pooled over the open group of tokens.

    Token p answers `sum(rows[p // g * g .. p]) / sqrt(count)`, projected back to the hidden size,
    where g is `compression_tokens`. The projections are seeded and not part of a checkpoint.
    """

    def __init__(
        self,
        settings: RingSettings,
        *,
        hidden_floats: int,
        seed: int,
        name: str,
        vllm_config: VllmConfig,
    ) -> None:
        super().__init__()
        self._settings = settings
        self._name = name
        self.kv_cache = torch.empty(0)
        generator = torch.Generator().manual_seed(seed)
        into = torch.randn(hidden_floats, settings.row_floats, generator=generator)
        out_of = torch.randn(settings.row_floats, hidden_floats, generator=generator)
        self.register_buffer("into", into * hidden_floats**-0.5, persistent=False)
        self.register_buffer(
            "out_of", out_of * (OUTPUT_GAIN * settings.row_floats**-0.5), persistent=False
        )
        layers_by_name = vllm_config.compilation_config.static_forward_context
        if name in layers_by_name:
            raise ValueError(f"a cache layer called {name} exists already")
        layers_by_name[name] = self

    def get_kv_cache_spec(self, vllm_config: VllmConfig) -> KVCacheSpec:
        """One block of `ring_tokens` rows of `row_floats` float32 per request."""
        return CircularBufferSpec(
            block_size=self._settings.ring_tokens,
            num_kv_heads=1,
            head_size=self._settings.row_floats,
            head_size_v=0,
            dtype=torch.float32,
        )

    def get_attn_backend(self) -> type[AttentionBackend]:
        return RingBackend

    def bind_kv_cache(self, kv_cache: torch.Tensor) -> None:
        """Take vLLM's view [blocks, 1, ring_tokens, row_floats], without the axis of length 1."""
        self.kv_cache = kv_cache.squeeze(1)

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Answer for `hidden_states` [tokens, hidden]; zeros in a pass without metadata."""
        answer = torch.zeros_like(hidden_states)
        metadata: dict[str, Any] | None = get_forward_context().attn_metadata
        if metadata is None:
            return answer
        for request in metadata[self._name].requests:
            if request.block_id == NULL_BLOCK_ID:
                continue
            rows = hidden_states[request.first_row : request.stop_row] @ self.into
            pooled = self._pool(request, rows)
            answer[request.first_row : request.stop_row] = pooled @ self.out_of
            if self._settings.writes:
                self._write(request, rows)
        return answer

    def _pool(self, request: RequestRows, rows: torch.Tensor) -> torch.Tensor:
        """Scaled sum over each token's open group; `rows` and the answer are [tokens, row]."""
        group_tokens = self._settings.compression_tokens
        if self._settings.is_sliding:
            return self._pool_sliding(request, rows)
        open_position = request.first_position // group_tokens * group_tokens
        earlier = self._earlier_rows(request, open_position)
        known = torch.cat([earlier, rows])
        padding_rows = -len(known) % group_tokens
        groups = nn.functional.pad(known, (0, 0, 0, padding_rows)).unflatten(0, (-1, group_tokens))
        counts = torch.arange(1, group_tokens + 1, dtype=rows.dtype).unsqueeze(1)
        pooled = (groups.cumsum(1) / counts.sqrt()).flatten(0, 1)
        return pooled[len(earlier) : len(known)]

    def _pool_sliding(self, request: RequestRows, rows: torch.Tensor) -> torch.Tensor:
        """Scaled sum over the last `compression_tokens` tokens of each token."""
        window = self._settings.compression_tokens
        earlier = self._earlier_rows(request, max(0, request.first_position - window + 1))
        sums = nn.functional.pad(torch.cat([earlier, rows]).cumsum(0), (0, 0, window, 0))
        counts = torch.arange(1, len(sums) - window + 1, dtype=rows.dtype).clamp(max=window)
        pooled = (sums[window:] - sums[:-window]) / counts.sqrt().unsqueeze(1)
        return pooled[len(earlier) :]

    def _earlier_rows(self, request: RequestRows, first_position: int) -> torch.Tensor:
        """The kept rows from a position up to this step; zeros where none are kept."""
        kept = self.kv_cache[
            request.block_id, self._ring_rows(first_position, request.first_position)
        ]
        # An unwritten block still holds what its last owner, of any group, left there.
        return kept if self._settings.writes else torch.zeros_like(kept)

    def _write(self, request: RequestRows, rows: torch.Tensor) -> None:
        """Keep the rows of the latest tokens, at most one ring full of them."""
        kept = rows[-self._capacity_rows :]
        stop = request.first_position + len(rows)
        self.kv_cache[request.block_id, self._ring_rows(stop - len(kept), stop)] = kept

    def _ring_rows(self, first_position: int, stop_position: int) -> torch.Tensor:
        """Row of the ring for each position from first to stop, exclusive."""
        return torch.arange(first_position, stop_position) % self._capacity_rows

    @property
    def _capacity_rows(self) -> int:
        """From the bound tensor: vLLM may have enlarged the block."""
        return self.kv_cache.shape[1]
