"""The parts of the server's JSON answers that are read; the rest is skipped."""

from typing import TypeVar

import msgspec

from lmc_grouped.tools.certify.errors import RequestRefused

Message = TypeVar("Message")


class ModelCard(msgspec.Struct, frozen=True):
    """One entry of `/v1/models`."""

    id: str
    max_model_len: int | None = None


class ModelList(msgspec.Struct, frozen=True):
    """`/v1/models`."""

    data: list[ModelCard]


class Version(msgspec.Struct, frozen=True):
    """`/version`."""

    version: str


class Tokens(msgspec.Struct, frozen=True):
    """`/tokenize`."""

    tokens: list[int]


class Reset(msgspec.Struct, frozen=True):
    """`/reset_prefix_cache`. Older servers answer with an empty body."""

    success: bool = True


class LogProbs(msgspec.Struct, frozen=True):
    """Log-probabilities of the tokens of one chunk."""

    tokens: list[str] = []
    top_logprobs: list[dict[str, float] | None] = []


class Choice(msgspec.Struct, frozen=True):
    """The one choice of a chunk."""

    token_ids: list[int] | None = None
    logprobs: LogProbs | None = None


class Chunk(msgspec.Struct, frozen=True):
    """One event of a streamed completion."""

    choices: list[Choice] = []
    error: msgspec.Raw | None = None


def decode(body: bytes, kind: type[Message], what: str) -> Message:
    """Read a JSON answer to the request `what`.

    Raises RequestRefused when it is not JSON of this shape.
    """
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.DecodeError as error:
        answer = f"{body[:200].decode(errors='replace')} ({error})"
        raise RequestRefused(what, 200, f"with something unexpected: {answer}") from error
