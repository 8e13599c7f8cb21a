"""The layout file: the groups of a model, with page bytes per worker."""

import math
from pathlib import Path
from typing import Any

import msgspec

from lmc_grouped.core.groups import ExcludedGroup, GroupSpec, GroupTable, GroupTableError, Kind
from lmc_grouped.tools.errors import ToolError

SCRATCH_REASON = "scratch: rebuilt from tokens, never stored"
LARGEST_FILE_BYTES = 64 * 2**20


class LayoutGroup(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One group as the file writes it. A scratch group needs no more than its id."""

    group_id: int
    kind: Kind
    span_tokens: int | None = None
    page_bytes: int | None = None
    window_tokens: int | None = None
    is_drafter: bool = False
    layer_names: list[str] = []
    """Where an engine was asked."""
    reason: str = SCRATCH_REASON
    """Why a scratch group takes no part."""


class LayoutFile(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The whole file; other keys are ignored."""

    max_model_len: int
    groups: list[LayoutGroup]
    name: str = ""
    note: Any = ""
    """For people; not read."""
    workers: int | None = None
    budget_bytes: int | None = None
    """Over all workers."""
    shared_row_bytes: int | None = None
    """Bytes of one row where groups share rows; default: the largest page."""
    alignment_tokens: int | None = None
    """Distance between hit boundaries; default: the least common multiple of the spans."""
    hash_block_tokens: int | None = None
    """Tokens behind one block hash; default: the greatest common divisor of the spans."""


class Layout(msgspec.Struct, frozen=True, kw_only=True):
    """A layout that has been checked."""

    name: str
    table: GroupTable
    max_model_tokens: int
    workers: int | None
    budget_bytes: int | None
    shared_row_bytes: int | None


def read_layout(path: Path) -> Layout:
    """Read and check a layout file.

    Raises ToolError naming the file and the field.
    """
    try:
        if path.stat().st_size > LARGEST_FILE_BYTES:
            raise ToolError(f"{path} is larger than {LARGEST_FILE_BYTES} bytes: not a layout file")
        data = path.read_bytes()
    except OSError as error:
        raise ToolError(f"cannot read the layout file {path}: {error.strerror or error}") from error
    except ValueError as error:  # a path with a null byte
        if isinstance(error, ToolError):
            raise
        raise ToolError(f"cannot read the layout file {str(path)!r}: {error}") from error
    try:
        return parse_layout(data)
    except ToolError as error:
        raise ToolError(f"{path}: {error}") from error


def parse_layout(data: bytes) -> Layout:
    """Check the text of a layout file.

    Raises ToolError naming the field.
    """
    try:
        file = msgspec.json.decode(data, type=LayoutFile)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ToolError(f"not a layout: {error}") from error
    for field in ("max_model_len", "workers", "budget_bytes", "shared_row_bytes"):
        _check_positive(field, getattr(file, field))
    _check_positive("alignment_tokens", file.alignment_tokens)
    _check_positive("hash_block_tokens", file.hash_block_tokens)
    if not file.groups:
        raise ToolError("groups is empty: give at least one group")
    _check_ids(file.groups)
    stored, excluded, spans = [], [], []
    for position, group in enumerate(file.groups):
        where = f"groups[{position}]"
        if group.kind is Kind.SCRATCH:
            _check_positive(f"{where}.span_tokens", group.span_tokens)
            spans.append(group.span_tokens or 1)
            excluded.append(ExcludedGroup(group.group_id, group.reason))
        else:
            stored.append(_group_spec(where, group))
            spans.append(stored[-1].span_tokens)
    stored.sort(key=lambda group: group.group_id)
    excluded.sort(key=lambda group: group.group_id)
    try:
        table = GroupTable(
            groups=tuple(stored),
            excluded=tuple(excluded),
            alignment_tokens=file.alignment_tokens or math.lcm(*spans),
            hash_block_tokens=_hash_block_tokens(file, stored),
        )
    except GroupTableError as error:
        raise ToolError(f"alignment_tokens: {error}") from error
    return Layout(
        name=file.name,
        table=table,
        max_model_tokens=file.max_model_len,
        workers=file.workers,
        budget_bytes=file.budget_bytes,
        shared_row_bytes=file.shared_row_bytes,
    )


def format_layout(layout: Layout, note: str = "") -> bytes:
    """The text of a layout file; `parse_layout` reads `layout` back unchanged."""
    table = layout.table
    groups = [
        LayoutGroup(
            group_id=group.group_id,
            kind=group.kind,
            span_tokens=group.span_tokens,
            page_bytes=group.page_bytes,
            window_tokens=group.window_tokens,
            is_drafter=group.is_drafter,
            layer_names=list(group.layers),
        )
        for group in table.groups
    ]
    groups += [
        LayoutGroup(group_id=left.group_id, kind=Kind.SCRATCH, reason=left.reason)
        for left in table.excluded
    ]
    file = LayoutFile(
        max_model_len=layout.max_model_tokens,
        groups=sorted(groups, key=lambda group: group.group_id),
        name=layout.name,
        note=note,
        workers=layout.workers,
        budget_bytes=layout.budget_bytes,
        shared_row_bytes=layout.shared_row_bytes,
        alignment_tokens=table.alignment_tokens,
        hash_block_tokens=table.hash_block_tokens,
    )
    return msgspec.json.format(msgspec.json.encode(file), indent=2) + b"\n"


def _hash_block_tokens(file: LayoutFile, stored: list[GroupSpec]) -> int:
    spans = sorted({group.span_tokens for group in stored})
    common_tokens = math.gcd(*spans)
    if file.hash_block_tokens is None:
        return common_tokens or 1
    if common_tokens % file.hash_block_tokens:
        raise ToolError(
            f"hash_block_tokens is {file.hash_block_tokens}, which does not divide the spans "
            f"{spans}: give a divisor of {common_tokens}, or leave it out"
        )
    return file.hash_block_tokens


def _group_spec(where: str, group: LayoutGroup) -> GroupSpec:
    for field in ("span_tokens", "page_bytes"):
        if getattr(group, field) is None:
            raise ToolError(
                f"{where}.{field} is missing: group {group.group_id} ({group.kind}) needs it"
            )
        _check_positive(f"{where}.{field}", getattr(group, field))
    if group.kind is Kind.WINDOW:
        if group.window_tokens is None:
            raise ToolError(
                f"{where}.window_tokens is missing: group {group.group_id} (window) needs it"
            )
        _check_positive(f"{where}.window_tokens", group.window_tokens)
    elif group.window_tokens is not None:
        raise ToolError(
            f"{where}.window_tokens is {group.window_tokens}, but group {group.group_id} is "
            f"{group.kind}: only window groups have one"
        )
    assert group.span_tokens is not None
    assert group.page_bytes is not None
    return GroupSpec(
        group_id=group.group_id,
        kind=group.kind,
        span_tokens=group.span_tokens,
        page_bytes=group.page_bytes,
        window_tokens=group.window_tokens,
        is_drafter=group.is_drafter,
        layers=tuple(group.layer_names),
    )


def _check_ids(groups: list[LayoutGroup]) -> None:
    seen: dict[int, int] = {}
    for position, group in enumerate(groups):
        if group.group_id < 0:
            raise ToolError(
                f"groups[{position}].group_id is {group.group_id}: it must be 0 or more"
            )
        if group.group_id in seen:
            raise ToolError(
                f"groups[{position}].group_id is {group.group_id}, which "
                f"groups[{seen[group.group_id]}] has already: ids must differ"
            )
        seen[group.group_id] = position


def _check_positive(field: str, value: int | None) -> None:
    if value is not None and value <= 0:
        raise ToolError(f"{field} is {value}: it must be positive")
