"""Tiny models with real random weights, for tests, demonstrations and measurements on a CPU.

An engine's dummy weights answer the same token whatever the prompt was, so a lost cache page goes
unnoticed. These checkpoints are a few megabytes of seeded random numbers, scaled so that the next
token depends on the whole prompt. Each directory holds configuration, weights and a byte tokenizer
(token id = byte value), and is served by path, offline.

Importing this package loads neither torch nor transformers; writing a model does.
"""

from lmc_grouped.tools.tiny_models.recipes import MODELS, TinyModel, find_recipe
from lmc_grouped.tools.tiny_models.writer import write_tiny_model

__all__ = ["MODELS", "TinyModel", "find_recipe", "write_tiny_model"]
