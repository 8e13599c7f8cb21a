"""What `plan` answers, computed from a layout, a budget and a retention rule."""

from collections.abc import Mapping

import msgspec

from lmc_grouped.core.capacity import (
    ContextPages,
    ceiling_tokens,
    context_pages,
    largest_page_bytes,
    least_budget_bytes,
    starvations,
)
from lmc_grouped.core.groups import ExcludedGroup, GroupTableError, Kind
from lmc_grouped.core.partition import held_contexts
from lmc_grouped.core.pools import Partition, PoolPlan
from lmc_grouped.core.retention import RetentionError
from lmc_grouped.core.sizing import BudgetError, Sizer
from lmc_grouped.tools.errors import ToolError
from lmc_grouped.tools.plan.cutting import cut_layout
from lmc_grouped.tools.plan.layout import Layout
from lmc_grouped.tools.plan.modes import Mode, balanced_contexts, held_tokens, modes
from lmc_grouped.tools.plan.warnings import context_warnings, fallback_warning, starvation_warnings


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked about a layout."""

    layout: Layout
    workers: int
    budget_bytes_per_worker: int
    retention_tokens: int | None
    reference_tokens: int
    partition: Partition


class GroupAnswer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One stored group.

    With shared rows `slots` is all rows: any group may take them. With elastic
    pools it is what the group has while contexts of the reference length fill
    the budget; it has more or fewer with others.
    """

    group_id: int
    kind: Kind
    span_tokens: int
    page_bytes: int
    slots: int
    tokens_covered: int
    pages_per_extent: int | None = None
    """With elastic pools: whole pages in one extent."""
    floor_extents: int | None = None
    """With elastic pools: extents that others never take from it and those that share with it."""
    shares_with: int | None = None
    """With elastic pools: the group like it whose extents it shares."""


class Answer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What `plan --json` prints. Bytes are those of one worker."""

    budget_bytes_per_worker: int
    used_bytes_per_worker: int
    token_capacity: int
    contexts: int
    """Restorable contexts of the reference length, at the same time."""
    ceiling_tokens: int
    """Tokens of such contexts if every byte of the budget worked."""
    groups: tuple[GroupAnswer, ...]
    excluded: tuple[ExcludedGroup, ...]
    warnings: tuple[str, ...]
    partition: Partition
    """How the budget was cut: `auto` becomes `static` where it is too small."""
    modes: tuple[Mode, ...]
    """The same question about every partition."""
    extents: int | None = None
    """With elastic pools: how many there are."""
    extent_bytes: int | None = None
    reserve_extents: int | None = None
    """Of these, kept empty ahead of need."""


def answer(question: Question) -> Answer:
    """Cut the budget.

    Raises ToolError naming the argument or the field that makes it impossible.
    """
    layout = question.layout
    if not layout.table.groups:
        return _nothing_stored(question)
    try:
        sizer = Sizer(layout.table, question.retention_tokens, question.reference_tokens)
    except RetentionError as error:
        raise ToolError(f"--retention: {error}") from error
    except GroupTableError as error:
        raise ToolError(f"groups: {error}") from error
    context = context_pages(layout.table, question.reference_tokens, question.retention_tokens)
    plan = _cut(question, sizer, question.budget_bytes_per_worker)
    extents = plan.extents
    return Answer(
        budget_bytes_per_worker=plan.budget_bytes,
        used_bytes_per_worker=plan.used_bytes,
        token_capacity=held_tokens(context, plan) if extents else plan.token_capacity,
        contexts=held_contexts(context, plan),
        ceiling_tokens=ceiling_tokens(context, plan.budget_bytes),
        groups=_group_answers(question, sizer, context, plan),
        excluded=layout.table.excluded,
        warnings=tuple(_warnings(question, sizer, context, plan)),
        partition=plan.partition,
        modes=modes(layout, plan.budget_bytes, context, question.retention_tokens),
        extents=extents.extents if extents else None,
        extent_bytes=extents.extent_bytes if extents else None,
        reserve_extents=extents.reserve_extents if extents else None,
    )


def _cut(question: Question, sizer: Sizer, budget_bytes: int) -> PoolPlan:
    layout = question.layout
    try:
        return cut_layout(
            layout,
            budget_bytes,
            partition=question.partition,
            retention_tokens=question.retention_tokens,
            reference_tokens=question.reference_tokens,
        )
    except BudgetError as error:
        if question.partition is Partition.OFF:
            what = "one shared row"
            least_bytes = layout.shared_row_bytes or largest_page_bytes(layout.table.groups)
        else:
            what = f"{sizer.unit_tokens:,} tokens in every group"
            least_bytes = sizer.used_bytes(1)
        raise ToolError(
            f"--budget: {budget_bytes} bytes per worker hold less than {what}; give at least "
            f"{least_bytes * question.workers} bytes over {question.workers} worker(s)"
        ) from error


def _nothing_stored(question: Question) -> Answer:
    return Answer(
        budget_bytes_per_worker=question.budget_bytes_per_worker,
        used_bytes_per_worker=0,
        token_capacity=0,
        contexts=0,
        ceiling_tokens=0,
        groups=(),
        excluded=question.layout.table.excluded,
        warnings=("no group of this layout can be stored; every lookup will miss",),
        partition=question.partition,
        modes=(),
    )


def _group_answers(
    question: Question, sizer: Sizer, context: ContextPages, plan: PoolPlan
) -> tuple[GroupAnswer, ...]:
    slots, covered = plan.slots_by_group, sizer.tokens_covered(plan.slots_by_group)
    per_extent: dict[int, int] = {}
    floors: dict[int, int] = {}
    shares: Mapping[int, int] = {}
    if plan.extents is not None:
        contexts = balanced_contexts(context, plan.extents)
        slots = {group_id: int(contexts * n) for group_id, n in context.pages_by_group.items()}
        covered = dict.fromkeys(slots, held_tokens(context, plan))
        per_extent, floors = plan.extents.slots_per_extent, plan.extents.floor_extents
        shares = plan.extents.shares
    elif plan.row_bytes is not None:
        covered = dict.fromkeys(slots, plan.token_capacity)
    return tuple(
        GroupAnswer(
            group_id=group.group_id,
            kind=group.kind,
            span_tokens=group.span_tokens,
            page_bytes=group.page_bytes,
            slots=slots[group.group_id],
            tokens_covered=covered[group.group_id],
            pages_per_extent=per_extent.get(group.group_id),
            floor_extents=floors.get(group.group_id),
            shares_with=shares.get(group.group_id),
        )
        for group in question.layout.table.groups
    )


def _warnings(question: Question, sizer: Sizer, context: ContextPages, plan: PoolPlan) -> list[str]:
    table, contexts = question.layout.table, held_contexts(context, plan)
    warnings = []
    if question.partition is Partition.AUTO and plan.partition is Partition.STATIC:
        warnings.append(fallback_warning(question.reference_tokens))
    if contexts == 0:
        least_bytes = _least_bytes(question, sizer, context)
        warnings += context_warnings(table, context, least_bytes, question.workers)
    elif plan.partition is Partition.STATIC:
        found = starvations(
            table, plan.slots_by_group, question.retention_tokens, question.reference_tokens
        )
        warnings += starvation_warnings(found)
    return warnings


def _least_bytes(question: Question, sizer: Sizer, context: ContextPages) -> int:
    """A budget of one worker that holds one context; exact unless pools are elastic."""
    if not context.is_restorable:
        return 0
    if question.partition is Partition.OFF:
        row_bytes = question.layout.shared_row_bytes or largest_page_bytes(
            question.layout.table.groups
        )
        return sum(context.pages_by_group.values()) * row_bytes
    least_bytes = least_budget_bytes(sizer, context)
    # Where that holds the floors, the reserve may be missing.
    while not held_contexts(context, _cut(question, sizer, least_bytes)):
        least_bytes += least_bytes // 100 + 1
    return least_bytes
