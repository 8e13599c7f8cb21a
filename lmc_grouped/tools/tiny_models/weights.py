"""Configuration and seeded random weights of a recipe, as transformers objects."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

from lmc_grouped.tools.tiny_models.recipes import ScaleRule, TinyModel
from lmc_grouped.tools.tiny_models.tokenizer import BYTE_TOKENS

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

SEED = 20260
"""Every parameter is drawn from a generator seeded by this and its own name."""


def build_model(recipe: TinyModel) -> PreTrainedModel:
    """The recipe's model on the CPU, in the recipe's dtype, filled with its random weights."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(recipe.model_type, **recipe.full_config)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            _fill(name, parameter, _find_rule(name, recipe))
        # A special token always has logit 0, which the largest of 256 random logits exceeds:
        # greedy decoding never ends early.
        model.get_output_embeddings().weight[BYTE_TOKENS:] = 0.0
    return model.to(getattr(torch, recipe.dtype))


def _find_rule(name: str, recipe: TinyModel) -> ScaleRule:
    return next(rule for rule in recipe.scales if name.endswith(rule.suffix))


def _fill(name: str, parameter: torch.Tensor, rule: ScaleRule) -> None:
    """Fill `parameter` (float32, any shape) in place; the same name gets the same numbers."""
    import torch

    if rule.std is not None:
        generator = torch.Generator().manual_seed(SEED + zlib.crc32(name.encode()))
        parameter.normal_(0.0, rule.std, generator=generator)
    elif rule.value is not None:
        parameter.fill_(rule.value)
