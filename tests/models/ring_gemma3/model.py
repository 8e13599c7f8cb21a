"""Gemma3 whose full-attention layers also read a scratch ring."""

from typing import Any

import torch
from ring_gemma3.ring import ScratchRing
from ring_gemma3.settings import CONFIG_KEY, RingSettings
from torch import nn
from vllm.config import VllmConfig
from vllm.model_executor.models.gemma3 import Gemma3Attention, Gemma3ForCausalLM


class RingGemma3ForCausalLM(Gemma3ForCausalLM):
    """The checkpoint of a Gemma3, with what the rings read added to the attention's output.

    One ring per full-attention layer gives the ring group as many layers as the other groups.
    """

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__(vllm_config=vllm_config, prefix=prefix)
        settings = RingSettings.from_config(getattr(self.config, CONFIG_KEY))
        for layer_index, layer in enumerate(self.model.layers):
            attention = getattr(layer, "self_attn", None)
            # Layers of other pipeline stages are placeholders without attention.
            if attention is None or attention.is_sliding:
                continue
            # vLLM reads the layer's number from the name: exactly one integer in it.
            layer.ring = ScratchRing(
                settings,
                hidden_floats=self.config.hidden_size,
                seed=layer_index,
                name=f"{prefix}.model.layers.{layer_index}.ring".removeprefix("."),
                vllm_config=vllm_config,
            )
            attention.register_forward_hook(_RingHook(layer.ring), with_kwargs=True)


class _RingHook:
    """Adds the ring's answer to the attention's. A plain object: not a second owner of the ring."""

    def __init__(self, ring: nn.Module) -> None:
        self._ring = ring

    def __call__(
        self,
        attention: Gemma3Attention,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        output: torch.Tensor,
    ) -> torch.Tensor:
        return output + self._ring(kwargs["hidden_states"])
