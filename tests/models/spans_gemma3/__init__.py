"""A Gemma3 whose layers have different numbers of KV heads, so that its groups' spans differ.

vLLM gives all groups pages of the same bytes: the widest layers keep the block size, and
narrower ones get a larger one. A vLLM plugin like ``ring_gemma3``, with or without its ring.

Importing this package loads neither torch nor vLLM.
"""

from spans_gemma3.checkpoint import write_spans_model

__all__ = ["write_spans_model"]
