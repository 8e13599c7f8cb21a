"""The answer of `plan` as a person reads it."""

import sys

import msgspec

from lmc_grouped.core.capacity import context_pages
from lmc_grouped.core.pools import Partition
from lmc_grouped.tools.plan.answer import Answer, Question, answer
from lmc_grouped.tools.plan.modes import Mode
from lmc_grouped.tools.plan.sizes import format_size
from lmc_grouped.tools.tables import Align, format_table

BAR_WIDTH = 30
"""Characters of a bar that stands for the whole budget."""

_HEADERS = ("group", "kind", "span", "page", "slots", "tokens covered", "bytes", "of budget", "")
_ALIGNS = (
    Align.RIGHT, Align.LEFT, Align.RIGHT, Align.RIGHT, Align.RIGHT,
    Align.RIGHT, Align.RIGHT, Align.RIGHT, Align.LEFT,
)  # fmt: skip

_EXTENT_HEADERS = ("per extent", "floor")
_MODE_HEADERS = ("partition", "contexts", "tokens", "of the ceiling")
_MODE_ALIGNS = (Align.LEFT, Align.RIGHT, Align.RIGHT, Align.RIGHT)


def print_answer(question: Question, *, as_json: bool) -> None:
    """Answer on stdout; warnings are part of the answer.

    Raises ToolError as `answer` does.
    """
    found = answer(question)
    if as_json:
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(found), indent=2).decode() + "\n")
    else:
        print(format_answer(question, found))


def format_answer(question: Question, found: Answer) -> str:
    """A table of the groups with a bar each, then the totals and the warnings."""
    retention = (
        "none (dense)" if question.retention_tokens is None else f"{question.retention_tokens:,}"
    )
    heading = (
        f"{question.layout.name or 'layout'}: {question.workers} worker(s), partition "
        f"{found.partition}, retention {retention}, reference "
        f"{question.reference_tokens:,} tokens"
    )
    lines = [heading, "", _groups_table(question, found)]
    lines += [f"group {left.group_id} takes no part: {left.reason}" for left in found.excluded]
    lines += ["", *_totals(question, found)]
    lines += ["", _modes_table(question, found), ""] if found.modes else []
    lines += [f"warning: {warning}" for warning in found.warnings]
    return "\n".join(lines)


def _groups_table(question: Question, found: Answer) -> str:
    """One row for each group; of elastic pools also how extents serve it."""
    rows = _rows(question, found)
    if found.extents is None:
        return format_table(_HEADERS, rows, _ALIGNS)
    of_extents = [
        (
            f"{group.pages_per_extent:,}",
            f"{group.floor_extents:,}" if group.shares_with is None else f"as {group.shares_with}",
        )
        for group in found.groups
    ]
    of_extents.append(("", ""))
    return format_table(
        (*_HEADERS[:5], *_EXTENT_HEADERS, *_HEADERS[5:]),
        [(*row[:5], *two, *row[5:]) for row, two in zip(rows, of_extents, strict=True)],
        (*_ALIGNS[:5], Align.RIGHT, Align.RIGHT, *_ALIGNS[5:]),
    )


def _rows(question: Question, found: Answer) -> list[tuple[str, ...]]:
    budget_bytes = found.budget_bytes_per_worker
    bytes_by_group = _bytes_by_group(question, found)
    rows: list[tuple[str, ...]] = [
        (
            str(group.group_id),
            group.kind,
            f"{group.span_tokens:,}",
            format_size(group.page_bytes),
            f"{group.slots:,}",
            f"{group.tokens_covered:,}",
            *_share(bytes_by_group[group.group_id], budget_bytes),
        )
        for group in found.groups
    ]
    left_bytes = budget_bytes - sum(bytes_by_group.values())
    rows.append(("", "unused", "", "", "", "", *_share(left_bytes, budget_bytes)))
    return rows


def _share(part_bytes: int, budget_bytes: int) -> tuple[str, str, str]:
    share = part_bytes / budget_bytes
    return format_size(part_bytes), f"{share:.1%}", "#" * round(share * BAR_WIDTH)


def _bytes_by_group(question: Question, found: Answer) -> dict[int, int]:
    """Bytes of each pool; of shared rows, those that contexts of the reference length take."""
    if found.partition is not Partition.OFF:
        return {group.group_id: group.slots * group.page_bytes for group in found.groups}
    pages = context_pages(
        question.layout.table, question.reference_tokens, question.retention_tokens
    ).pages_by_group
    per_context = sum(pages.values())
    return {
        group_id: found.used_bytes_per_worker * count // per_context if per_context else 0
        for group_id, count in pages.items()
    }


def _totals(question: Question, found: Answer) -> list[str]:
    used, budget = found.used_bytes_per_worker, found.budget_bytes_per_worker
    ceiling = found.ceiling_tokens / question.reference_tokens
    lines = [
        f"bytes per worker  {used:,} of {budget:,} ({used / budget:.1%})",
        f"token capacity    {found.token_capacity:,} tokens",
        f"contexts          {found.contexts:,} of {question.reference_tokens:,} tokens restorable "
        f"at once; at most {ceiling:.2f} if every byte worked ({found.ceiling_tokens:,} tokens)",
    ]
    if found.extents is not None and found.extent_bytes is not None:
        lines += [
            f"extents           {found.extents:,} of {format_size(found.extent_bytes)}, "
            f"{found.reserve_extents:,} of them kept empty ahead of need",
            "slots             what each group has while contexts of the reference length fill "
            "the budget; they move as others come",
        ]
    return lines


def _modes_table(question: Question, found: Answer) -> str:
    """How far each way to cut the budget is from the ceiling."""
    ceiling = found.ceiling_tokens / question.reference_tokens
    rows = [("ceiling", f"{ceiling:.2f}", f"{found.ceiling_tokens:,}", "100.0%")]
    rows += [
        (_mode_name(mode), f"{mode.contexts:,}", f"{mode.tokens:,}", f"{mode.ceiling_share:.1%}")
        for mode in found.modes
    ]
    return format_table(_MODE_HEADERS, rows, _MODE_ALIGNS)


def _mode_name(mode: Mode) -> str:
    if mode.cut_as is None:
        return f"{mode.partition} (budget too small)"
    return str(mode.partition) if mode.cut_as is mode.partition else f"{mode.partition} (static)"
