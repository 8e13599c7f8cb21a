"""Put a tiny model into a directory: all of it or nothing, and only when it is not there yet."""

import json
import shutil
import tempfile
from dataclasses import asdict
from pathlib import Path

from lmc_grouped.tools.tiny_models.recipes import TinyModel, find_recipe

RECIPE_VERSION = 1
"""Raise it when code outside the recipe's own fields changes what is written."""

STAMP_FILE = "tiny_model.json"
"""Written last; a directory without it is not a complete tiny model."""


def write_tiny_model(name: str, directory: Path) -> Path:
    """Make `directory` hold the tiny model `name`; do nothing when it already does.

    An older version of a tiny model in `directory` is replaced. The files appear at once, by
    rename, so an interrupted call leaves no half-written model.

    Args:
        name: a key of `MODELS`.
        directory: where to put it; its parents are made.

    Returns:
        `directory`, ready to be served.

    Raises:
        ValueError: `name` is unknown, or `directory` holds something that is not a tiny model.
    """
    stamp = _render_stamp(find_recipe(name))
    stamp_path = directory / STAMP_FILE
    if stamp_path.is_file() and stamp_path.read_text() == stamp:
        return directory
    if directory.exists() and not stamp_path.is_file() and any(directory.iterdir()):
        raise ValueError(
            f"{directory} holds files that are not a tiny model; give a new or an empty directory"
        )
    directory.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{directory.name}.", dir=directory.parent))
    try:
        _write_files(find_recipe(name), scratch / "new")
        (scratch / "new" / STAMP_FILE).write_text(stamp)
        if stamp_path.is_file():
            directory.rename(scratch / "old")
        (scratch / "new").replace(directory)
    finally:
        shutil.rmtree(scratch)
    return directory


def _write_files(recipe: TinyModel, directory: Path) -> None:
    from lmc_grouped.tools.tiny_models.tokenizer import write_byte_tokenizer
    from lmc_grouped.tools.tiny_models.weights import build_model

    build_model(recipe).save_pretrained(directory)
    # vLLM takes sampling defaults from this file; a tiny model has none.
    (directory / "generation_config.json").unlink(missing_ok=True)
    write_byte_tokenizer(directory, recipe.max_model_len_tokens)


def _render_stamp(recipe: TinyModel) -> str:
    """Everything that decides the files' contents, as JSON; two equal stamps mean equal models."""
    contents = {
        "recipe_version": RECIPE_VERSION,
        "name": recipe.name,
        "dtype": recipe.dtype,
        "max_model_len_tokens": recipe.max_model_len_tokens,
        "config": recipe.full_config,
        "scales": [asdict(rule) for rule in recipe.scales],
    }
    return json.dumps(contents, indent=2, sort_keys=True) + "\n"
