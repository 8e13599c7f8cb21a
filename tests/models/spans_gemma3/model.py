"""Gemma3 with the number of KV heads given per layer."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ring_gemma3.model import RingGemma3ForCausalLM
from spans_gemma3.checkpoint import CONFIG_KEY
from vllm.config import VllmConfig
from vllm.model_executor.models import gemma3
from vllm.model_executor.models.utils import extract_layer_index


class SpansAttention(gemma3.Gemma3Attention):
    """Takes its number of KV heads from its layer's entry in the configuration."""

    def __init__(self, *, config: Any, num_kv_heads: int, prefix: str, **more: Any) -> None:
        del num_kv_heads
        heads = getattr(config, CONFIG_KEY)[extract_layer_index(prefix)]
        super().__init__(config=config, num_kv_heads=heads, prefix=prefix, **more)


@contextmanager
def _attention_by_layer() -> Iterator[None]:
    """Gemma3's decoder layer makes its attention by that name."""
    original = gemma3.Gemma3Attention
    gemma3.Gemma3Attention = SpansAttention
    try:
        yield
    finally:
        gemma3.Gemma3Attention = original


class SpansGemma3ForCausalLM(gemma3.Gemma3ForCausalLM):
    """Without a ring."""

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        with _attention_by_layer():
            super().__init__(vllm_config=vllm_config, prefix=prefix)


class SpansRingGemma3ForCausalLM(RingGemma3ForCausalLM):
    """With the ring model's ring beside every full-attention layer."""

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        with _attention_by_layer():
            super().__init__(vllm_config=vllm_config, prefix=prefix)
