"""Sizing: a byte budget becomes slots per group.

Equal-span formula of the design: with ``u`` the largest span among the groups
that grow with the prompt and ``T`` units, a group gets ``ceil(T * u / span)``
slots, so all groups cover the same tokens.
"""

from dataclasses import dataclass

from lmc_grouped.core.groups import GroupSpec, GroupTable, Kind


class BudgetError(ValueError):
    """The budget cannot hold one page of every group."""


@dataclass(frozen=True, slots=True)
class PoolPlan:
    """Slots per group for one worker."""

    slots_by_group: dict[int, int]
    used_bytes: int
    budget_bytes: int
    token_capacity: int
    """Tokens that every group covers."""


def solve(table: GroupTable, budget_bytes: int) -> PoolPlan:
    """The largest pools that cover the same tokens in every group.

    Args:
        table: the groups of one worker.
        budget_bytes: host bytes of one worker.

    Raises:
        BudgetError: not even one unit fits; the message says how much would.
    """
    if not table.groups:
        return PoolPlan({}, 0, budget_bytes, 0)
    unit_tokens = _unit_tokens(table)
    least_bytes = _used_bytes(table, unit_tokens, units=1)
    if budget_bytes < least_bytes:
        pages = ", ".join(f"group {g.group_id}: {g.page_bytes}" for g in table.groups)
        raise BudgetError(
            f"the host budget of {budget_bytes} bytes per worker holds less than "
            f"{unit_tokens} tokens in every group (page bytes: {pages}); set "
            f"max_local_cpu_size to at least {_gigabytes_up(least_bytes):.6f} GB"
        )
    # Bytes per unit without rounding slots up bound the answer from above.
    units, too_many = 1, budget_bytes // max(1, _dense_bytes(table, unit_tokens)) + 2
    while too_many - units > 1:
        middle = (units + too_many) // 2
        if _used_bytes(table, unit_tokens, middle) <= budget_bytes:
            units = middle
        else:
            too_many = middle
    slots = {g.group_id: _slots(g, unit_tokens, units) for g in table.groups}
    return PoolPlan(
        slots, _used_bytes(table, unit_tokens, units), budget_bytes, units * unit_tokens
    )


def _gigabytes_up(size_bytes: int) -> float:
    """In GB, rounded up at the sixth decimal, so that the printed number is enough."""
    return -(-size_bytes * 10**6 // 2**30) / 10**6


def _unit_tokens(table: GroupTable) -> int:
    growing = [g.span_tokens for g in table.groups if g.kind is Kind.FULL]
    return max(growing or [g.span_tokens for g in table.groups])


def _slots(group: GroupSpec, unit_tokens: int, units: int) -> int:
    return -(-units * unit_tokens // group.span_tokens)


def _used_bytes(table: GroupTable, unit_tokens: int, units: int) -> int:
    return sum(g.page_bytes * _slots(g, unit_tokens, units) for g in table.groups)


def _dense_bytes(table: GroupTable, unit_tokens: int) -> int:
    return sum(g.page_bytes * unit_tokens // g.span_tokens for g in table.groups)
