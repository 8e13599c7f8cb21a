"""Partition: how the host budget of a worker is cut (``cpu_group_partition``)."""

from enum import StrEnum

from lmc_grouped.core.capacity import context_pages, largest_page_bytes, shared_rows
from lmc_grouped.core.groups import GroupTable
from lmc_grouped.core.sizing import BudgetError, PoolPlan, gigabytes_up, solve


class Partition(StrEnum):
    """The ways to cut it."""

    AUTO = "auto"
    """As ``static``, until pools are elastic."""
    STATIC = "static"
    """A pool per group, fixed at start."""
    OFF = "off"
    """Rows of one size that every group takes from."""


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
        partition: how to cut them.
        retention_tokens: the retention interval of the tier.
        reference_tokens: length of the contexts to size for.

    Raises:
        BudgetError: the budget cannot hold one page of every group, or one row.
        RetentionError, GroupTableError, ValueError: as for ``solve``.
    """
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
