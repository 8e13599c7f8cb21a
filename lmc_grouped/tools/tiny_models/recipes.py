"""What each tiny model is: its shape, its weight scales, and what serving it needs."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from lmc_grouped.tools.tiny_models.tokenizer import (
    BOS_TOKEN_ID,
    EOS_TOKEN_ID,
    PAD_TOKEN_ID,
    VOCABULARY_TOKENS,
)

MAX_MODEL_LEN_TOKENS = 16384
"""Longest prompt plus answer of every tiny model."""


SHARED_CONFIG: Mapping[str, Any] = MappingProxyType(
    {
        "vocab_size": VOCABULARY_TOKENS,
        "bos_token_id": BOS_TOKEN_ID,
        "eos_token_id": EOS_TOKEN_ID,
        "pad_token_id": PAD_TOKEN_ID,
        "max_position_embeddings": MAX_MODEL_LEN_TOKENS,
        "hidden_size": 128,
        "num_attention_heads": 4,
        "head_dim": 64,
    }
)


@dataclass(frozen=True, slots=True)
class ScaleRule:
    """How parameters whose name ends with `suffix` are filled."""

    suffix: str
    """End of the parameter's name in the transformers checkpoint, such as `norm.weight`."""

    std: float | None = None
    """Standard deviation of the normal distribution; None: use `value` instead."""

    value: float | None = None
    """Constant for every element; with both None, the model's own initial value stays."""


@dataclass(frozen=True, slots=True)
class TinyModel:
    """One recipe: enough to write the checkpoint and to serve it."""

    name: str
    """Key in `MODELS`."""

    model_type: str
    """transformers model type, such as `gemma3_text`."""

    block_size_tokens: int
    """`block_size` to pass to vLLM, explicitly: vLLM 0.32 on CPU resets an unspecified one to 128
    after it was aligned with the recurrent state, and states are then never kept."""

    dtype: str
    """`dtype` to pass to vLLM; weights are stored in it."""

    max_model_len_tokens: int
    """`max_model_len` to pass to vLLM."""

    state_dtype: str
    """`mamba_ssm_cache_dtype` to pass to vLLM: left alone, vLLM's CPU backend takes float32 where
    the processor has AVX-512 BF16, and states and blocks are twice as large there."""

    groups: tuple[str, ...]
    """Kinds of the KV-cache groups vLLM makes of it, in vLLM's order."""

    config: Mapping[str, Any]
    """Arguments of the transformers configuration, over the ones all recipes share."""

    scales: tuple[ScaleRule, ...]
    """First rule that matches a parameter's name wins."""

    @property
    def full_config(self) -> dict[str, Any]:
        """Every argument of the transformers configuration; sequences as lists, as in JSON."""
        settings = {**SHARED_CONFIG, **self.config}
        return {
            key: list(value) if isinstance(value, tuple) else value
            for key, value in settings.items()
        }


_KEEP_NORMS = ScaleRule("norm.weight")
_EVERYTHING_ELSE = ScaleRule("", std=0.25)

_LLAMA = TinyModel(
    name="llama",
    model_type="llama",
    block_size_tokens=32,
    dtype="float32",
    max_model_len_tokens=MAX_MODEL_LEN_TOKENS,
    state_dtype="auto",
    groups=("full",),
    config=MappingProxyType(
        {"num_hidden_layers": 4, "num_key_value_heads": 2, "intermediate_size": 256}
    ),
    scales=(
        _KEEP_NORMS,
        # Without query and key norms a standard deviation of 0.25 makes attention look at one
        # token only; this keeps it spread over the prompt.
        ScaleRule("q_proj.weight", std=0.15),
        ScaleRule("k_proj.weight", std=0.15),
        _EVERYTHING_ELSE,
    ),
)

_GEMMA3 = TinyModel(
    name="gemma3",
    model_type="gemma3_text",
    block_size_tokens=32,
    dtype="float32",
    max_model_len_tokens=MAX_MODEL_LEN_TOKENS,
    state_dtype="auto",
    groups=("window", "window", "full"),
    config=MappingProxyType(
        {
            "num_hidden_layers": 6,
            "num_key_value_heads": 2,
            "intermediate_size": 256,
            "sliding_window": 256,
            "layer_types": ("sliding_attention", "sliding_attention", "full_attention") * 2,
            "query_pre_attn_scalar": 64,
        }
    ),
    scales=(
        # Output and input embeddings are one matrix: small so that the residual stream is not
        # the last token alone, and the last norm makes up for it in the logits.
        ScaleRule("model.norm.weight", value=20.0),
        # Gemma scales by 1 + weight. Three times sharper queries: at 1 attention averages the
        # prompt away, every position looks alike and one token repeats.
        ScaleRule("q_norm.weight", value=2.0),
        _KEEP_NORMS,
        ScaleRule("embed_tokens.weight", std=0.02),
        _EVERYTHING_ELSE,
    ),
)

_QWEN3_NEXT = TinyModel(
    name="qwen3_next",
    model_type="qwen3_next",
    block_size_tokens=256,
    dtype="bfloat16",
    max_model_len_tokens=MAX_MODEL_LEN_TOKENS,
    state_dtype="bfloat16",
    groups=("recurrent", "recurrent", "recurrent", "full"),
    config=MappingProxyType(
        {
            "num_hidden_layers": 4,
            "num_key_value_heads": 1,
            "intermediate_size": 256,
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
            "linear_key_head_dim": 64,
            "linear_value_head_dim": 64,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 64,
            "shared_expert_intermediate_size": 64,
            "decoder_sparse_step": 1,
            "mlp_only_layers": (),
        }
    ),
    scales=(
        # Weights of these norms are offsets from 1: sharper queries, so that one page of the
        # prompt matters.
        ScaleRule("q_norm.weight", value=2.0),
        _KEEP_NORMS,
        # Decay per token is exp(-exp(A_log) * softplus(a + dt_bias)): about 0.997 here, so a
        # state still matters hundreds of tokens later.
        ScaleRule("A_log", value=-4.0),
        ScaleRule("dt_bias", value=-2.0),
        ScaleRule("in_proj_ba.weight", std=0.05),
        _EVERYTHING_ELSE,
    ),
)

MODELS: Mapping[str, TinyModel] = MappingProxyType(
    {recipe.name: recipe for recipe in (_LLAMA, _GEMMA3, _QWEN3_NEXT)}
)
"""All recipes by name."""


def find_recipe(name: str) -> TinyModel:
    """The recipe called `name`; ValueError naming the known ones otherwise."""
    recipe = MODELS.get(name)
    if recipe is None:
        raise ValueError(
            f"no tiny model is called {name!r}; use one of {', '.join(sorted(MODELS))}"
        )
    return recipe
