"""A user's own trace: one JSON object per line."""

import math
from pathlib import Path

import msgspec

from lmc_grouped.tools.errors import ToolError
from lmc_grouped.tools.simulate.trace import Segment, Trace, TraceRequest

LARGEST_LINE_BYTES = 2**20
LARGEST_SEGMENT_TOKENS = 2**24


class _Line(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """One request as the file writes it."""

    prompt: list[str]
    arrival: float = 0.0
    output_tokens: int | None = None
    output: str | None = None


def read_trace(path: Path) -> Trace:
    """Read a JSONL trace; requests come in the order of `arrival`, ties in that of the file.

    Raises ToolError naming the file, the line and the field.
    """
    requests = []
    try:
        with path.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    requests.append(_request(number, line))
    except OSError as error:
        raise ToolError(f"cannot read the trace {path}: {error.strerror or error}") from error
    except ToolError as error:
        raise ToolError(f"{path}, {error}") from error
    except ValueError as error:  # a path with a null byte
        raise ToolError(f"cannot read the trace {str(path)!r}: {error}") from error
    if not requests:
        raise ToolError(f"{path} has no requests: give one JSON object per line")
    requests.sort(key=lambda request: request.arrival_s)
    return Trace(path.stem, tuple(requests))


def _request(number: int, line: bytes) -> TraceRequest:
    where = f"line {number}"
    if len(line) > LARGEST_LINE_BYTES:
        raise ToolError(f"{where} is longer than {LARGEST_LINE_BYTES} bytes: not a request")
    try:
        read = msgspec.json.decode(line, type=_Line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ToolError(f"{where}: {error}") from error
    if not math.isfinite(read.arrival) or read.arrival < 0:
        raise ToolError(f"{where}: arrival is {read.arrival}: it must be 0 or more seconds")
    if not read.prompt:
        raise ToolError(f'{where}: prompt is empty: give segments such as "system:2000"')
    prompt = tuple(
        _segment(f"{where}: prompt[{position}]", text) for position, text in enumerate(read.prompt)
    )
    return TraceRequest(read.arrival, prompt, _output(number, read))


def _output(number: int, read: _Line) -> Segment:
    where = f"line {number}"
    if read.output is not None:
        if read.output_tokens is not None:
            raise ToolError(
                f"{where}: output and output_tokens are both given: output names the segment "
                "and its tokens, output_tokens leaves it unnamed"
            )
        return _segment(f"{where}: output", read.output)
    tokens = 1 if read.output_tokens is None else read.output_tokens
    if not 0 <= tokens <= LARGEST_SEGMENT_TOKENS:
        raise ToolError(
            f"{where}: output_tokens is {tokens}: it must be from 0 to {LARGEST_SEGMENT_TOKENS}"
        )
    # A name that no segment of the file can have: nothing shares what nobody named.
    return Segment(f"line {number}: output", tokens)


def _segment(where: str, text: str) -> Segment:
    name, _, tokens = text.rpartition(":")
    if not name or ":" in name:
        raise ToolError(
            f'{where} is {text[:64]!r}: write name:tokens, such as "system:2000", '
            "with no other colon"
        )
    if not (tokens.isascii() and tokens.isdigit()) or len(tokens) > 12:
        raise ToolError(f"{where} is {text[:64]!r}: the part behind the colon is no whole number")
    if not 0 < int(tokens) <= LARGEST_SEGMENT_TOKENS:
        raise ToolError(
            f"{where} is {text[:64]!r}: a segment has from 1 to {LARGEST_SEGMENT_TOKENS} tokens"
        )
    return Segment(name, int(tokens))
