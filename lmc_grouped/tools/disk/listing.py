"""`lmc-grouped disk ls`."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from lmc_grouped.tools.disk.ages import format_age
from lmc_grouped.tools.plan.sizes import format_size
from lmc_grouped.tools.tables import Align, format_table

if TYPE_CHECKING:
    from lmc_grouped.host.disk.inspection import StoreInfo
    from lmc_grouped.host.disk.recovery import GroupContents

_HEADERS = (
    "namespace", "rank", "model", "layout", "group", "kind", "page", "pages", "bytes", "age",
    "faults",
)  # fmt: skip
_ALIGNS = (
    Align.LEFT, Align.RIGHT, Align.LEFT, Align.LEFT, Align.RIGHT, Align.LEFT, Align.RIGHT,
    Align.RIGHT, Align.RIGHT, Align.RIGHT, Align.RIGHT,
)  # fmt: skip
_DIGITS = 12
"""Of a namespace: enough to name it on the command line."""


def format_stores(stores: "Sequence[StoreInfo]") -> str:
    """A line per group, then a line per store, then the total."""
    rows = [row for store in stores for row in _rows(store)]
    lines = [format_table(_HEADERS, rows, _ALIGNS), ""] if rows else []
    lines += [_summary(store) for store in stores]
    allocated = sum(store.allocated_bytes for store in stores)
    pages = sum(store.pages for store in stores)
    lines.append(f"{len(stores)} stores, {pages:,} pages, {format_size(allocated)} on disk")
    return "\n".join(lines)


def _rows(store: "StoreInfo") -> list[tuple[str, ...]]:
    namespace = store.namespace
    kinds = {g.group_id: str(g.kind) for g in namespace.groups} if namespace else {}
    head = (
        store.digest[:_DIGITS],
        str(store.rank),
        namespace.model if namespace else "unknown",
        str(namespace.layout) if namespace else "unknown",
    )
    return [
        (
            *(head if number == 0 else ("", "", "", "")),
            str(group.group_id),
            kinds.get(group.group_id, "unknown"),
            format_size(group.page_bytes),
            f"{len(group.pages):,}",
            format_size(len(group.pages) * group.page_bytes),
            _ages(group),
            str(group.faults or ""),
        )
        for number, group in enumerate(store.groups)
    ]


def _ages(group: "GroupContents") -> str:
    from lmc_grouped.host.disk.inspection import age_seconds

    if not group.pages:
        return ""
    stamps = [record.stamp_ns for _, record in group.pages]
    oldest, youngest = (format_age(age_seconds(stamp)) for stamp in (min(stamps), max(stamps)))
    return f"{youngest}..{oldest}"


def _summary(store: "StoreInfo") -> str:
    parts = [f"{store.directory}: {format_size(store.allocated_bytes)} on disk"]
    if store.namespace is None:
        parts.append("namespace.json is missing or of another version")
    elif not store.is_named_right:
        parts.append("namespace.json is not the one the directory is named after")
    if store.set_aside_bytes:
        parts.append(f"{format_size(store.set_aside_bytes)} set aside")
    if store.in_use_by:
        parts.append(store.in_use_by)
    return ", ".join(parts)
