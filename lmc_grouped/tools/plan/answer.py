"""What `plan` answers, computed from a layout, a budget and a retention rule."""

import msgspec

from lmc_grouped.core.capacity import (
    ContextPages,
    ceiling_tokens,
    context_pages,
    largest_page_bytes,
    least_budget_bytes,
    shared_rows,
    starvations,
)
from lmc_grouped.core.groups import ExcludedGroup, GroupTableError, Kind
from lmc_grouped.core.pools import Partition
from lmc_grouped.core.retention import RetentionError
from lmc_grouped.core.sizing import Sizer
from lmc_grouped.tools.errors import ToolError
from lmc_grouped.tools.plan.layout import Layout


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked about a layout."""

    layout: Layout
    workers: int
    budget_bytes_per_worker: int
    retention_tokens: int | None
    reference_tokens: int
    partition: Partition


class GroupAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """One stored group. With shared rows `slots` is all rows: any group may take them."""

    group_id: int
    kind: Kind
    span_tokens: int
    page_bytes: int
    slots: int
    tokens_covered: int


class Answer(msgspec.Struct, frozen=True, kw_only=True):
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


def answer(question: Question) -> Answer:
    """Size the pools.

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
    if question.partition is Partition.OFF:
        return _shared_rows_answer(question, context)
    return _pools_answer(question, sizer, context)


def _pools_answer(question: Question, sizer: Sizer, context: ContextPages) -> Answer:
    table, budget_bytes = question.layout.table, question.budget_bytes_per_worker
    units = sizer.largest_units(budget_bytes)
    if units == 0:
        raise _too_small(
            question, sizer.used_bytes(1), f"{sizer.unit_tokens:,} tokens in every group"
        )
    slots = sizer.slots(units)
    contexts = context.contexts(slots)
    warnings = [*_context_warnings(question, context, contexts, least_budget_bytes(sizer, context))]
    if contexts:
        warnings += _starvation_warnings(question, slots)
    return Answer(
        budget_bytes_per_worker=budget_bytes,
        used_bytes_per_worker=sizer.used_bytes(units),
        token_capacity=units * sizer.unit_tokens,
        contexts=contexts,
        ceiling_tokens=ceiling_tokens(context, budget_bytes),
        groups=_group_answers(question, slots, sizer.tokens_covered(slots)),
        excluded=table.excluded,
        warnings=tuple(warnings),
    )


def _shared_rows_answer(question: Question, context: ContextPages) -> Answer:
    table, budget_bytes = question.layout.table, question.budget_bytes_per_worker
    widest_bytes = largest_page_bytes(table.groups)
    row_bytes = question.layout.shared_row_bytes or widest_bytes
    if row_bytes < widest_bytes:
        raise ToolError(
            f"shared_row_bytes is {row_bytes}, less than the largest page of {widest_bytes} bytes: "
            "give at least that, or leave it out"
        )
    plan = shared_rows(context, budget_bytes, row_bytes)
    if plan.rows == 0:
        raise _too_small(question, row_bytes, "one shared row")
    least_bytes = plan.rows_per_context * row_bytes
    return Answer(
        budget_bytes_per_worker=budget_bytes,
        used_bytes_per_worker=plan.used_bytes,
        token_capacity=plan.token_capacity,
        contexts=plan.contexts,
        ceiling_tokens=ceiling_tokens(context, budget_bytes),
        groups=_group_answers(
            question,
            dict.fromkeys(table.group_ids, plan.rows),
            dict.fromkeys(table.group_ids, plan.token_capacity),
        ),
        excluded=table.excluded,
        warnings=tuple(_context_warnings(question, context, plan.contexts, least_bytes)),
    )


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
    )


def _group_answers(
    question: Question, slots: dict[int, int], covered: dict[int, int]
) -> tuple[GroupAnswer, ...]:
    return tuple(
        GroupAnswer(
            group_id=group.group_id,
            kind=group.kind,
            span_tokens=group.span_tokens,
            page_bytes=group.page_bytes,
            slots=slots[group.group_id],
            tokens_covered=covered[group.group_id],
        )
        for group in question.layout.table.groups
    )


def _too_small(question: Question, least_bytes: int, what: str) -> ToolError:
    return ToolError(
        f"--budget: {question.budget_bytes_per_worker} bytes per worker hold less than {what}; "
        f"give at least {least_bytes * question.workers} bytes over {question.workers} worker(s)"
    )


def _context_warnings(
    question: Question, context: ContextPages, contexts: int, least_bytes: int
) -> list[str]:
    """Why no context of the reference length fits, if none does."""
    if not context.is_restorable:
        return [
            f"no context of {context.context_tokens:,} tokens can be restored: hits end every "
            f"{question.layout.table.alignment_tokens:,} tokens"
        ]
    if contexts:
        return []
    return [
        f"not one context of {context.context_tokens:,} tokens fits; one takes a budget of "
        f"{least_bytes} bytes per worker, {least_bytes * question.workers} bytes over "
        f"{question.workers} worker(s)"
    ]


def _starvation_warnings(question: Question, slots: dict[int, int]) -> list[str]:
    """Groups whose fixed number of slots runs out before the token pages."""
    found = starvations(
        question.layout.table, slots, question.retention_tokens, question.reference_tokens
    )
    return [
        f"{starved}; give a shorter reference length if most of yours are no longer"
        for starved in found
    ]
