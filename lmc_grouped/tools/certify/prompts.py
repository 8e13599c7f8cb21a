"""Prompts nobody has sent before."""

import hashlib
import random
from collections.abc import Callable

WORDS = (
    "river", "stone", "window", "letter", "garden", "market", "copper", "silver", "winter",
    "summer", "paper", "engine", "signal", "harbor", "valley", "forest", "bridge", "candle",
    "mirror", "needle", "orange", "planet", "rocket", "shadow", "table", "thunder", "velvet",
    "whisper", "yellow", "apple", "basket", "circle", "desert", "eagle", "feather", "guitar",
)  # fmt: skip
WORDS_PER_PIECE = 400

Tokenize = Callable[[str, bool], list[int]]
"""Text, and whether to add the tokens a prompt begins with, to token ids."""


class PromptMaker:
    """Makes prompts and turns of an exact number of tokens.

    Each begins with a digest of the seed and its own name, so that no two share
    their first block, and a run with a new seed cannot hit what an earlier
    run left in a cache. Text and not random token ids: ids of images or of
    control tokens mean something else to a server.
    """

    def __init__(self, tokenize: Tokenize, seed: str) -> None:
        self._tokenize = tokenize
        self._seed = seed

    def prompt(self, name: str, tokens: int) -> tuple[int, ...]:
        """The token ids of a new prompt, `tokens` of them."""
        return self._make(name, tokens, with_special_tokens=True)

    def turn(self, name: str, tokens: int) -> tuple[int, ...]:
        """Token ids that continue a prompt, `tokens` of them."""
        return self._make(name, tokens, with_special_tokens=False)

    def salt(self, name: str) -> str:
        """A cache salt that only this run uses."""
        return f"{self._seed}-{name}"

    def _make(self, name: str, tokens: int, with_special_tokens: bool) -> tuple[int, ...]:
        words = random.Random(f"{self._seed} {name}")
        ids: list[int] = []
        # Ahead of everything, or prompts of one run would share a first block.
        text = hashlib.sha256(f"{self._seed} {name}".encode()).hexdigest()[:12] + ": "
        # By pieces: a server may refuse to tokenize more than its model takes.
        while len(ids) < tokens:
            text += " ".join(words.choices(WORDS, k=WORDS_PER_PIECE)) + ". "
            ids += self._tokenize(text, with_special_tokens)
            text, with_special_tokens = "", False
        return tuple(ids[:tokens])
