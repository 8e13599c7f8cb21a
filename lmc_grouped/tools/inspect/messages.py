"""What the command and the process that runs vLLM tell each other, as JSON."""

from enum import StrEnum

import msgspec

from lmc_grouped.core.groups import GroupTable


class Device(StrEnum):
    """Where layers are built, by torch's name."""

    META = "meta"
    """Shapes without bytes."""
    CPU = "cpu"
    """Memory that is reserved and, weights never being loaded, hardly touched."""


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """Which groups are asked for; what is None is left to vLLM."""

    model_dir: str
    workers: int
    """Tensor parallel size."""
    max_model_tokens: int | None
    block_tokens: int | None
    dtype: str
    """As vLLM names it."""
    state_dtype: str = "auto"
    """`mamba_ssm_cache_dtype` of vLLM."""
    device: Device = Device.META


class Found(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The groups, as one rank sees them."""

    table: GroupTable
    max_model_tokens: int
    engine: str
    """The vLLM that answered: version, platform, type of recurrent states."""


class Refused(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Why vLLM cannot describe the model: its own words."""

    reason: str
    needs_memory: bool = False
    """The model's own code reads tensors while it is built, which meta tensors cannot do."""


Reply = Found | Refused
