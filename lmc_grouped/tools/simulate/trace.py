"""Traces: requests whose shared prefixes follow from the names of their segments."""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

HASH_BYTES = 16


class Segment(NamedTuple):
    """The first ``tokens`` tokens of the text called ``name``; the same name is the same text."""

    name: str
    tokens: int


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """One request."""

    arrival_s: float
    """Seconds since the start of the trace; it decides the order and nothing else."""
    prompt: tuple[Segment, ...]
    output: Segment
    """What is generated. A later prompt that has the segment behind this prompt shares it."""

    @property
    def prompt_tokens(self) -> int:
        """Length of the prompt."""
        return sum(segment.tokens for segment in self.prompt)

    @property
    def computed_tokens(self) -> int:
        """Tokens whose cache is written in the end: the last generated one is never fed back."""
        return self.prompt_tokens + max(0, self.output.tokens - 1)


@dataclass(frozen=True, slots=True)
class Trace:
    """Requests in the order of their arrival."""

    name: str
    requests: tuple[TraceRequest, ...]
    are_contexts: bool = False
    """The prompts are independent contexts, of which a tier is to hold as many as it can."""


def block_hashes(segments: Iterable[Segment], block_tokens: int) -> list[bytes]:
    """The chained hash of every whole block of ``block_tokens`` tokens.

    Two blocks have the same hash when everything up to their ends is the same
    text at the same places.
    """
    hashes: list[bytes] = []
    chain, block, missing = b"", b"", block_tokens
    for name, tokens in segments:
        # The length first, so that no name can look like another one with its offsets.
        label = f"{len(name)}:{name}:".encode("utf-8", "surrogatepass")
        start = 0
        while tokens - start >= missing:
            block += label + b"%d+%d;" % (start, missing)
            chain = hashlib.blake2b(chain + block, digest_size=HASH_BYTES).digest()
            hashes.append(chain)
            start += missing
            block, missing = b"", block_tokens
        if start < tokens:
            block += label + b"%d+%d;" % (start, tokens - start)
            missing -= tokens - start
    return hashes
