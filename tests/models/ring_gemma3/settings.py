"""The ring's parameters, and how they travel in a model's `config.json`."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass

CONFIG_KEY = "scratch_ring"
"""Key of the settings in `config.json`."""

ARCHITECTURE = "RingGemma3ForCausalLM"
"""Name under which the plugin registers the model."""


@dataclass(frozen=True, slots=True)
class RingSettings:
    """One ring per full-attention layer of the model."""

    ring_tokens: int
    """Rows of the ring: the block size of its group. Position p lives in row p % ring_tokens."""

    row_floats: int
    """Float32 numbers of a row."""

    compression_tokens: int
    """Token p reads the rows of the tokens from p // compression_tokens * compression_tokens up to
    itself. After a prefix-cache hit the output is exact only where this divides the boundary."""

    writes: bool
    """False: no row is kept for the next step, which reads zeros instead. The control that proves
    that kept rows matter."""

    is_sliding: bool = False
    """True: token p reads the rows of the last `compression_tokens` tokens instead. No boundary
    makes that exact after a prefix-cache hit: the control that proves that open groups matter."""

    def __post_init__(self) -> None:
        if min(self.ring_tokens, self.row_floats, self.compression_tokens) < 1:
            raise ValueError(f"{self}: every count must be 1 or more")
        if self.compression_tokens > self.ring_tokens:
            raise ValueError(
                f"compression_tokens={self.compression_tokens} does not fit ring_tokens="
                f"{self.ring_tokens}: an open group would overwrite itself; use at most the ring"
            )

    @classmethod
    def from_config(cls, settings: Mapping[str, object]) -> "RingSettings":
        """Settings from the value of `CONFIG_KEY`; TypeError for unknown or missing names."""
        return cls(**settings)

    def to_config(self) -> dict[str, object]:
        """The value of `CONFIG_KEY`."""
        return asdict(self)
