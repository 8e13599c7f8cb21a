"""Cutting a budget for a layout file, whose shared rows may be wider than the largest page."""

from lmc_grouped.core.capacity import context_pages, shared_rows
from lmc_grouped.core.groups import GroupTableError
from lmc_grouped.core.partition import cut
from lmc_grouped.core.pools import Partition, PoolPlan
from lmc_grouped.core.retention import RetentionError
from lmc_grouped.core.sizing import BudgetError
from lmc_grouped.tools.errors import ToolError
from lmc_grouped.tools.plan.layout import Layout


def cut_layout(
    layout: Layout,
    budget_bytes: int,
    *,
    partition: Partition,
    retention_tokens: int | None,
    reference_tokens: int,
) -> PoolPlan:
    """The pools of one worker, as ``core.partition.cut`` makes them.

    Raises ToolError naming the argument or the field that makes it impossible,
    BudgetError when the budget is too small.
    """
    try:
        plan = cut(
            layout.table,
            budget_bytes,
            partition=partition,
            retention_tokens=retention_tokens,
            reference_tokens=reference_tokens,
        )
    except RetentionError as error:
        raise ToolError(f"--retention: {error}") from error
    except GroupTableError as error:
        raise ToolError(f"groups: {error}") from error
    if plan.row_bytes is None or layout.shared_row_bytes is None:
        return plan
    _check_row(layout.shared_row_bytes, plan.row_bytes)
    context = context_pages(layout.table, reference_tokens, retention_tokens)
    rows = shared_rows(context, budget_bytes, layout.shared_row_bytes)
    if rows.rows == 0:
        raise BudgetError(
            f"{budget_bytes} bytes per worker hold no row of {layout.shared_row_bytes} bytes "
            "(shared_row_bytes)"
        )
    return PoolPlan(
        dict.fromkeys(layout.table.group_ids, rows.rows),
        rows.used_bytes,
        budget_bytes,
        rows.token_capacity,
        row_bytes=rows.row_bytes,
    )


def _check_row(row_bytes: int, widest_bytes: int) -> None:
    if row_bytes < widest_bytes:
        raise ToolError(
            f"shared_row_bytes is {row_bytes}, less than the largest page of {widest_bytes} bytes: "
            "give at least that, or leave it out"
        )
