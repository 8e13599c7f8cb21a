"""The three ways to cut one budget, beside the ceiling."""

import msgspec

from lmc_grouped.core.capacity import ContextPages, ceiling_tokens, elastic_contexts
from lmc_grouped.core.extents import ExtentPlan
from lmc_grouped.core.partition import held_contexts
from lmc_grouped.core.pools import Partition, PoolPlan
from lmc_grouped.core.sizing import BudgetError
from lmc_grouped.tools.errors import ToolError
from lmc_grouped.tools.plan.cutting import cut_layout
from lmc_grouped.tools.plan.layout import Layout


class Mode(msgspec.Struct, frozen=True, kw_only=True):
    """What one way to cut the budget holds of contexts of the reference length."""

    partition: Partition
    cut_as: Partition | None
    """What came of it: `auto` may become `static`. null where the budget is too small."""
    contexts: int
    """Whole ones, at the same time."""
    tokens: int
    """Of such contexts, parts of one included."""
    ceiling_share: float
    """`tokens` per token of the ceiling; 0 where the ceiling is 0."""


def modes(
    layout: Layout,
    budget_bytes: int,
    context: ContextPages,
    retention_tokens: int | None,
) -> tuple[Mode, ...]:
    """Every partition on one worker's budget, in the order of ``Partition``."""
    ceiling = ceiling_tokens(context, budget_bytes)
    found = []
    for partition in Partition:
        plan = _cut_or_none(layout, budget_bytes, partition, context, retention_tokens)
        tokens = held_tokens(context, plan) if plan else 0
        found.append(
            Mode(
                partition=partition,
                cut_as=plan.partition if plan else None,
                contexts=held_contexts(context, plan) if plan else 0,
                tokens=tokens,
                ceiling_share=tokens / ceiling if ceiling else 0.0,
            )
        )
    return tuple(found)


def held_tokens(context: ContextPages, plan: PoolPlan) -> int:
    """Tokens of contexts of that length that the pools hold, parts of one included.

    A part counts as far as the scarcest group reaches.
    """
    if not context.is_restorable:
        return 0
    if plan.extents is not None:
        return int(balanced_contexts(context, plan.extents) * context.context_tokens)
    if plan.row_bytes is not None:
        return plan.token_capacity
    return min(
        plan.slots_by_group[group_id] * context.context_tokens // pages
        for group_id, pages in context.pages_by_group.items()
        if pages
    )


def balanced_contexts(context: ContextPages, extents: ExtentPlan) -> float:
    """Contexts, parts of one included, when the groups have extents as these contexts need them.

    Those kept empty ahead of need are left out, and half of one extent of every
    group whose extents hold several pages, groups that share them counted once.
    """
    per_context = sum(
        pages / extents.slots_per_extent[group_id]
        for group_id, pages in context.pages_by_group.items()
    )
    if not context.is_restorable or per_context == 0:
        return 0.0
    partly_filled = sum(
        (1 - 1 / extents.slots_per_extent[owner]) / 2 for owner in extents.floor_extents
    )
    usable = extents.extents - extents.reserve_extents - partly_filled
    return max(usable / per_context, float(elastic_contexts(context, extents)))


def _cut_or_none(
    layout: Layout,
    budget_bytes: int,
    partition: Partition,
    context: ContextPages,
    retention_tokens: int | None,
) -> PoolPlan | None:
    try:
        return cut_layout(
            layout,
            budget_bytes,
            partition=partition,
            retention_tokens=retention_tokens,
            reference_tokens=context.context_tokens,
        )
    except (BudgetError, ToolError):
        return None  # the mode that was asked for has said why
