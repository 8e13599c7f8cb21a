"""Capacity: what a partition of the budget is worth, in tokens and in contexts.

A *context* is one prompt of the reference length that can be restored at its
end: what it costs is what retention keeps for that one resume point.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from lmc_grouped.core.extents import ExtentPlan, add_up
from lmc_grouped.core.groups import GroupSpec, GroupTable, Kind
from lmc_grouped.core.retention import context_count, resume_points
from lmc_grouped.core.sizing import Sizer


@dataclass(frozen=True, slots=True)
class ContextPages:
    """Pages that one context of ``context_tokens`` tokens keeps, per group."""

    context_tokens: int
    pages_by_group: dict[int, int]
    context_bytes: int
    is_restorable: bool
    """Whether a boundary lies within the context, and something is kept for it."""

    def contexts(self, slots_by_group: Mapping[int, int]) -> int:
        """Contexts that pools of that many slots hold, restorable, at the same time."""
        if not self.is_restorable:
            return 0
        return min(
            (
                slots_by_group[group_id] // pages
                for group_id, pages in self.pages_by_group.items()
                if pages
            ),
            default=0,
        )


def context_pages(
    table: GroupTable, context_tokens: int, retention_tokens: int | None
) -> ContextPages:
    """What one context of that length keeps under that retention."""
    pages = {
        group.group_id: context_count(group, table, context_tokens, retention_tokens)
        for group in table.groups
    }
    return ContextPages(
        context_tokens,
        pages,
        sum(group.page_bytes * pages[group.group_id] for group in table.groups),
        bool(resume_points(table, context_tokens)) and any(pages.values()),
    )


def ceiling_tokens(context: ContextPages, budget_bytes: int) -> int:
    """Tokens of such contexts that the budget would hold if no byte were lost.

    Budget divided by the exact bytes of a context, as tokens; 0 when such a
    context cannot be restored.
    """
    if not context.is_restorable or context.context_bytes == 0:
        return 0
    return budget_bytes * context.context_tokens // context.context_bytes


def least_budget_bytes(sizer: Sizer, context: ContextPages) -> int:
    """The smallest budget whose pools hold one context; 0 when none can be restored."""
    if not context.is_restorable:
        return 0
    # One request's worth of units holds it; the pools grow with the units.
    units, too_few = -(-context.context_tokens // sizer.unit_tokens), 0
    while units - too_few > 1:
        middle = (units + too_few) // 2
        if context.contexts(sizer.slots(middle)):
            units = middle
        else:
            too_few = middle
    return sizer.used_bytes(units)


def starved_below_tokens(
    table: GroupTable,
    slots_by_group: Mapping[int, int],
    group: GroupSpec,
    retention_tokens: int | None,
    reference_tokens: int,
) -> int:
    """Contexts up to about this length use up ``group`` before the full groups.

    States and tails cost the same however short a context is. 0 when the full
    groups fill up first at every length from one alignment to the reference.
    """
    step = table.alignment_tokens
    growing = [g for g in table.groups if g.kind is Kind.FULL]
    if not growing or group.kind is Kind.FULL:
        return 0

    def is_starved(steps: int) -> bool:
        pages = context_pages(table, steps * step, retention_tokens).pages_by_group
        return all(
            pages[group.group_id] * slots_by_group[other.group_id]
            > pages[other.group_id] * slots_by_group[group.group_id]
            for other in growing
        )

    starved, fed = 0, reference_tokens // step + 1
    while fed - starved > 1:
        middle = (starved + fed) // 2
        if is_starved(middle):
            starved = middle
        else:
            fed = middle
    return starved * step


@dataclass(frozen=True, slots=True)
class Starvation:
    """Groups of one kind that run out of slots before the full groups do."""

    kind: Kind
    group_ids: tuple[int, ...]
    slots: int
    """Of each of these groups."""
    below_tokens: int
    """Contexts up to about this length use them up first."""

    def __str__(self) -> str:
        what = "states" if self.kind is Kind.RECURRENT else "window tails"
        return (
            f"contexts of up to about {self.below_tokens:,} tokens run out of {what} first: "
            f"{self.slots:,} slots in group {', '.join(map(str, self.group_ids))}"
        )


def starvations(
    table: GroupTable,
    slots_by_group: Mapping[int, int],
    retention_tokens: int | None,
    reference_tokens: int,
) -> list[Starvation]:
    """Groups whose fixed number of slots runs out before the token pages."""
    by_answer: dict[tuple[Kind, int, int], list[int]] = {}
    for group in table.groups:
        below = starved_below_tokens(
            table, slots_by_group, group, retention_tokens, reference_tokens
        )
        if below:
            answer = (group.kind, slots_by_group[group.group_id], below)
            by_answer.setdefault(answer, []).append(group.group_id)
    return [
        Starvation(kind, tuple(group_ids), slots, below)
        for (kind, slots, below), group_ids in by_answer.items()
    ]


@dataclass(frozen=True, slots=True)
class RowPlan:
    """The shared-row layout: every page of every group takes one row of the same size."""

    rows: int
    row_bytes: int
    rows_per_context: int
    token_capacity: int
    """Tokens of contexts of the reference length: ``rows * reference / rows per context``."""
    contexts: int

    @property
    def used_bytes(self) -> int:
        """Bytes of all rows."""
        return self.rows * self.row_bytes


def shared_rows(context: ContextPages, budget_bytes: int, row_bytes: int) -> RowPlan:
    """Cut the budget into rows that any group may take.

    Args:
        context: what one context of the reference length keeps.
        budget_bytes: host bytes of one worker.
        row_bytes: bytes of one row, at least those of the largest page.

    Groups that keep a fixed number of pages are charged with that number and
    not as if they grew with the prompt (SGLang 29034, vLLM 53902).
    """
    rows = budget_bytes // row_bytes
    per_context = sum(context.pages_by_group.values())
    if not context.is_restorable or per_context == 0:
        return RowPlan(rows, row_bytes, per_context, 0, 0)
    return RowPlan(
        rows,
        row_bytes,
        per_context,
        rows * context.context_tokens // per_context,
        rows // per_context,
    )


def elastic_contexts(context: ContextPages, extents: ExtentPlan) -> int:
    """Contexts that extents hold at the same time, those kept empty ahead of need left out."""
    if not context.is_restorable:
        return 0
    usable = extents.extents - extents.reserve_extents
    pages_by_owner = add_up(context.pages_by_group, extents.shares)

    def needed(contexts: int) -> int:
        return sum(
            -(-contexts * pages // extents.slots_per_extent[owner])
            for owner, pages in pages_by_owner.items()
        )

    held, too_many = 0, usable + 1
    while too_many - held > 1:
        middle = (held + too_many) // 2
        if needed(middle) <= usable:
            held = middle
        else:
            too_many = middle
    return held


def largest_page_bytes(groups: Iterable[GroupSpec]) -> int:
    """The page that sets the row of the shared-row layout."""
    return max((group.page_bytes for group in groups), default=0)
