"""Cutting the host budget of a worker."""

from lmc_grouped.core.capacity import (
    ContextPages,
    context_pages,
    elastic_contexts,
    largest_page_bytes,
    shared_rows,
)
from lmc_grouped.core.extent_plan import plan_extents
from lmc_grouped.core.extents import ExtentPlan
from lmc_grouped.core.groups import GroupTable
from lmc_grouped.core.pools import Partition, PoolPlan
from lmc_grouped.core.sizing import BudgetError, gigabytes_up, solve


def cut(
    table: GroupTable,
    budget_bytes: int,
    *,
    partition: Partition,
    retention_tokens: int | None,
    reference_tokens: int,
) -> PoolPlan:
    """The pools of one worker.

    Args:
        table: its groups.
        budget_bytes: its host bytes.
        partition: how to cut them. ``AUTO`` becomes ``STATIC`` where the budget
            does not hold what one request keeps.
        retention_tokens: the retention interval of the tier.
        reference_tokens: length of the contexts to size for.

    Raises:
        BudgetError: the budget cannot hold one page of every group, or one row.
        RetentionError, GroupTableError, ValueError: as for ``solve``.
    """
    if partition is Partition.AUTO:
        extents = plan_extents(
            table,
            budget_bytes,
            retention_tokens=retention_tokens,
            reference_tokens=reference_tokens,
        )
        if extents is not None:
            return _elastic(table, budget_bytes, extents, retention_tokens, reference_tokens)
    if partition is not Partition.OFF:
        return solve(
            table,
            budget_bytes,
            retention_tokens=retention_tokens,
            reference_tokens=reference_tokens,
        )
    row_bytes = largest_page_bytes(table.groups)
    if row_bytes == 0:
        # A rank without bytes sets no limit.
        slots = dict.fromkeys(table.group_ids, max(1, budget_bytes))
        return PoolPlan(slots, 0, budget_bytes, 0, row_bytes=0)
    context = context_pages(table, reference_tokens, retention_tokens)
    rows = shared_rows(context, budget_bytes, row_bytes)
    if rows.rows == 0:
        raise BudgetError(
            f"the host budget of {budget_bytes} bytes per worker holds no row of {row_bytes} bytes "
            f"(the largest page); set max_local_cpu_size to at least {gigabytes_up(row_bytes):.6f} "
            "GB"
        )
    return PoolPlan(
        dict.fromkeys(table.group_ids, rows.rows),
        rows.used_bytes,
        budget_bytes,
        rows.token_capacity,
        row_bytes=row_bytes,
    )


def held_contexts(context: ContextPages, plan: PoolPlan) -> int:
    """Contexts that the pools hold restorable at the same time."""
    if plan.extents is not None:
        return elastic_contexts(context, plan.extents)
    if plan.row_bytes is None:
        return context.contexts(plan.slots_by_group)
    per_context = sum(context.pages_by_group.values())
    if not context.is_restorable or per_context == 0:
        return 0
    return min(plan.slots_by_group.values(), default=0) // per_context


def _elastic(
    table: GroupTable,
    budget_bytes: int,
    extents: ExtentPlan,
    retention_tokens: int | None,
    reference_tokens: int,
) -> PoolPlan:
    context = context_pages(table, reference_tokens, retention_tokens)
    return PoolPlan(
        {group_id: extents.extents * slots for group_id, slots in extents.slots_per_extent.items()},
        extents.extents * extents.extent_bytes,
        budget_bytes,
        elastic_contexts(context, extents) * reference_tokens,
        extents=extents,
    )
