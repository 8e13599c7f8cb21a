"""Write a model directory that vLLM serves as the ring model."""

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from ring_gemma3.settings import ARCHITECTURE, CONFIG_KEY, RingSettings

from lmc_grouped.tools.tiny_models import find_recipe, write_tiny_model


def plugin_directory() -> Path:
    """The directory in which vLLM finds the plugin: this package and its dist-info."""
    return Path(__file__).resolve().parent.parent


def plugin_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """A copy of `environment` with the plugin first on `PYTHONPATH`.

    The variable is needed even by an engine in this process: vLLM inspects a registered model in a
    child process, which inherits the environment and not `sys.path`.
    """
    path = [str(plugin_directory()), environment.get("PYTHONPATH", "")]
    return {**environment, "PYTHONPATH": os.pathsep.join(filter(None, path))}


def write_ring_model(
    directory: Path,
    *,
    ring_tokens: int,
    compression_tokens: int,
    writes: bool = True,
    is_sliding: bool = False,
) -> Path:
    """Make `directory` hold the tiny Gemma3, weights unchanged, as a ring model.

    A ring has the bytes of one attention page, so vLLM neither pads nor enlarges it. The tiny
    Gemma3 itself is kept in `directory / "base"`; calling again with other parameters only
    rewrites the configuration.

    Args:
        directory: where to write; made when missing.
        ring_tokens: rows of the ring; 16 gives a scheduler block of 32 tokens, 256 one of 256.
        compression_tokens: size of the groups of tokens that share rows; at most `ring_tokens`.
        writes: False makes every step read zeros for the rows of earlier steps.
        is_sliding: True makes every token read the last `compression_tokens` rows.

    Returns:
        `directory`.

    Raises:
        ValueError: a count is out of range, or `ring_tokens` does not divide an attention page.
    """
    page_floats = _attention_page_floats()
    if ring_tokens < 1 or page_floats % ring_tokens:
        raise ValueError(
            f"ring_tokens={ring_tokens} must divide the {page_floats} floats of an attention page; "
            "use a power of two such as 16 or 256"
        )
    settings = RingSettings(
        ring_tokens=ring_tokens,
        row_floats=page_floats // ring_tokens,
        compression_tokens=compression_tokens,
        writes=writes,
        is_sliding=is_sliding,
    )
    base = write_tiny_model("gemma3", directory / "base")
    config = json.loads((base / "config.json").read_text())
    config["architectures"] = [ARCHITECTURE]
    config[CONFIG_KEY] = settings.to_config()
    for path in base.iterdir():
        if path.name != "config.json":
            shutil.copy2(path, directory / path.name)
    # Last: a directory without a configuration is not served.
    (directory / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    return directory


def _attention_page_floats() -> int:
    """Numbers in one layer's page: tokens * KV heads * (key + value) dimensions."""
    recipe = find_recipe("gemma3")
    config = recipe.full_config
    return recipe.block_size_tokens * config["num_key_value_heads"] * 2 * config["head_dim"]
