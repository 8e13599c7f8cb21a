"""Write a model directory that vLLM serves with different numbers of KV heads per layer."""

import json
from collections.abc import Sequence
from pathlib import Path

from lmc_grouped.tools.tiny_models import write_tiny_model

ARCHITECTURE = "SpansGemma3ForCausalLM"
RING_ARCHITECTURE = "SpansRingGemma3ForCausalLM"
CONFIG_KEY = "kv_heads_by_layer"
"""Key of the numbers in `config.json`."""

WEIGHTS = "model.safetensors"


def write_spans_model(
    directory: Path, kv_heads: Sequence[int], *, ring_tokens: int | None = None
) -> Path:
    """Make `directory` hold the tiny Gemma3 with `kv_heads[layer]` KV heads in each layer.

    Key and value projections are cut from the base model's; heads it does not have are its heads
    once more with rows in reverse order. Everything else is unchanged.

    Args:
        directory: where to write; made when missing.
        kv_heads: one number per layer, each a divisor of the attention heads.
        ring_tokens: add the ring of `ring_gemma3` with that many rows.

    Returns:
        `directory`.
    """
    if ring_tokens is None:
        write_tiny_model("gemma3", directory)
    else:
        from ring_gemma3 import write_ring_model

        write_ring_model(directory, ring_tokens=ring_tokens, compression_tokens=ring_tokens)
    _cut_heads(directory / WEIGHTS, kv_heads)
    config = json.loads((directory / "config.json").read_text())
    config["architectures"] = [ARCHITECTURE if ring_tokens is None else RING_ARCHITECTURE]
    config[CONFIG_KEY] = list(kv_heads)
    (directory / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    return directory


def _cut_heads(path: Path, kv_heads: Sequence[int]) -> None:
    import torch
    from safetensors import safe_open
    from safetensors.torch import save_file

    with safe_open(path, "pt") as stored:
        weights = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118
        metadata = stored.metadata()
    head_floats = 64
    for layer, heads in enumerate(kv_heads):
        for projection in ("k_proj", "v_proj"):
            name = f"model.layers.{layer}.self_attn.{projection}.weight"
            both = torch.cat([weights[name], weights[name].flip(0)])
            weights[name] = both[: heads * head_floats].contiguous()
    save_file(weights, path, metadata)
