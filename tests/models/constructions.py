"""The models of unequal spans that both connectors are tried on."""

from dataclasses import dataclass
from pathlib import Path

PROMPT = [1 + (i * i * 7 + i) % 199 for i in range(1000)]


@dataclass(frozen=True, slots=True)
class Construction:
    """Numbers of KV heads, and what follows from them."""

    name: str
    kv_heads: tuple[int, ...]
    """Per layer; layers 2 and 5 are full attention, the others windows."""
    spans: tuple[int, ...]
    """Tokens per block of the stored groups, in vLLM's order."""
    hit_tokens: int
    """Where `PROMPT` resumes: the last multiple of all spans before its end."""
    ring_tokens: int | None = None

    def write(self, directory: Path) -> Path:
        """Write the model; the plugin's package must be on the path."""
        from spans_gemma3 import write_spans_model

        return write_spans_model(directory / "model", self.kv_heads, ring_tokens=self.ring_tokens)


CONSTRUCTIONS = (
    Construction("narrow full attention", (2, 2, 1, 2, 2, 1), (32, 32, 64), 960),
    Construction("narrow windows", (1, 1, 2, 1, 1, 2), (64, 64, 32), 960),
    Construction(
        "full attention of two widths", (2, 2, 1, 2, 2, 4), (64, 64, 64, 64, 128, 32), 896
    ),
    Construction("narrow full attention and a ring", (2, 2, 1, 2, 2, 1), (32, 32, 64), 960, 16),
)
