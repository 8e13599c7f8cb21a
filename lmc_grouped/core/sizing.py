"""Sizing: a byte budget becomes slots per group.

With ``u`` the largest span among the groups that grow with the prompt and ``T``
units, a full group gets ``ceil(T * u / span)`` slots, so all full groups cover
the same tokens. States and window tails get what retention keeps for the
requests of the reference length that those tokens hold, plus one junction for
each, and never more than one slot per page of the covered tokens (all of them
when retention is dense). Source: section 7.1 of the design; for equal spans the
recurrent part is ``mamba_state_slots`` of the V100 engine (revolta 0.1.4).
"""

from collections.abc import Mapping
from itertools import combinations

from lmc_grouped.core.groups import GroupSpec, GroupTable, GroupTableError, Kind
from lmc_grouped.core.pools import PoolPlan
from lmc_grouped.core.retention import (
    check_retention,
    context_count,
    kept_count,
    page_mask,
    resume_points,
    tail_pages,
)


class BudgetError(ValueError):
    """The budget cannot hold one page of every group."""


class Sizer:
    """Slots and bytes of every group as a function of the number of units.

    Args:
        table: the groups of one worker.
        retention_tokens: the retention interval; ``None`` gives every group
            one slot per page of the covered tokens.
        reference_tokens: length of the requests the pools are sized for;
            needed unless retention is dense.

    Raises:
        RetentionError: the interval does not fit the groups.
        GroupTableError: recurrent groups whose states never meet.
        ValueError: the reference length is missing or not positive.
    """

    def __init__(
        self,
        table: GroupTable,
        retention_tokens: int | None = None,
        reference_tokens: int | None = None,
    ) -> None:
        check_retention(table, retention_tokens)
        if reference_tokens is None and retention_tokens is not None:
            raise ValueError("sizing by retention needs reference_tokens; none was given")
        if reference_tokens is not None:
            if reference_tokens <= 0:
                raise ValueError(f"reference_tokens is {reference_tokens}; it must be positive")
            check_recurrent(table)
        self._groups = table.groups
        growing = [g.span_tokens for g in table.groups if g.kind is Kind.FULL]
        self.unit_tokens = max(growing or [g.span_tokens for g in table.groups])
        self._units_per_request = 1
        self._slots_per_request: dict[int, int] = {}
        if retention_tokens is not None and reference_tokens is not None:
            self._units_per_request = -(-reference_tokens // self.unit_tokens)
            self._slots_per_request = {
                group.group_id: slots_per_request(group, table, reference_tokens, retention_tokens)
                for group in table.groups
                if group.kind is not Kind.FULL
            }

    def slots(self, units: int) -> dict[int, int]:
        """group_id -> slots that ``units`` units of tokens need."""
        return {group.group_id: self._slots(group, units) for group in self._groups}

    def used_bytes(self, units: int) -> int:
        """Bytes of all those slots; never less for more units."""
        return sum(group.page_bytes * self._slots(group, units) for group in self._groups)

    def tokens_covered(self, slots_by_group: Mapping[int, int]) -> dict[int, int]:
        """group_id -> tokens the slots serve; states and tails by the requests they suffice for."""
        return {
            group.group_id: max(
                slots_by_group[group.group_id] * group.span_tokens,
                slots_by_group[group.group_id]
                // self._slots_per_request.get(group.group_id, slots_by_group[group.group_id] + 1)
                * self._units_per_request
                * self.unit_tokens,
            )
            for group in self._groups
        }

    def largest_units(self, budget_bytes: int) -> int:
        """The largest number of units that fits the budget; 0 when one does not."""
        if not any(group.page_bytes for group in self._groups):
            return max(1, budget_bytes)  # a rank without bytes sets no limit
        too_many = 1
        while self.used_bytes(too_many) <= budget_bytes:
            too_many *= 2
        units = too_many // 2
        while too_many - units > 1:
            middle = (units + too_many) // 2
            if self.used_bytes(middle) <= budget_bytes:
                units = middle
            else:
                too_many = middle
        return units

    def _slots(self, group: GroupSpec, units: int) -> int:
        dense = -(-units * self.unit_tokens // group.span_tokens)
        per_request = self._slots_per_request.get(group.group_id)
        if per_request is None:
            return dense
        requests = -(-units // self._units_per_request)
        return min(dense, requests * per_request)


def solve(
    table: GroupTable,
    budget_bytes: int,
    *,
    retention_tokens: int | None = None,
    reference_tokens: int | None = None,
) -> PoolPlan:
    """The largest pools that cover the same tokens in every group; one unit more does not fit.

    Args:
        table: the groups of one worker.
        budget_bytes: host bytes of one worker.
        retention_tokens, reference_tokens: as for ``Sizer``.

    Raises:
        BudgetError: not even one unit fits; the message says how much would.
        RetentionError, GroupTableError, ValueError: as for ``Sizer``.
    """
    if not table.groups:
        return PoolPlan({}, 0, budget_bytes, 0)
    sizer = Sizer(table, retention_tokens, reference_tokens)
    units = sizer.largest_units(budget_bytes)
    if units == 0:
        pages = ", ".join(f"group {g.group_id}: {g.page_bytes}" for g in table.groups)
        raise BudgetError(
            f"the host budget of {budget_bytes} bytes per worker holds less than "
            f"{sizer.unit_tokens} tokens in every group (page bytes: {pages}); set "
            f"max_local_cpu_size to at least {gigabytes_up(sizer.used_bytes(1)):.6f} GB"
        )
    return PoolPlan(
        sizer.slots(units), sizer.used_bytes(units), budget_bytes, units * sizer.unit_tokens
    )


def slots_per_request(
    group: GroupSpec, table: GroupTable, reference_tokens: int, retention_tokens: int
) -> int:
    """Slots of a recurrent or window group for one request: what is kept, and one junction.

    A reference that ends on the grid has two resume points. A recurrent group
    gets a state for each (as the V100 engine does). The tails of a window
    overlap, and the slots of the junction cover what the second one adds.
    """
    if group.kind is Kind.RECURRENT:
        # The page that the reference ends in counts, as it does in the V100 engine.
        pages = -(-reference_tokens // group.span_tokens)
        points = resume_points(table, reference_tokens)
        mask = page_mask(group, table.alignment_tokens, pages, retention_tokens, points)
        return mask.count() + 1
    at_least = kept_count(group, table, reference_tokens, retention_tokens)
    one_point = context_count(group, table, reference_tokens, retention_tokens)
    # A window of one token needs no page; one slot keeps the pool's size tied to the budget.
    return max(1, at_least, one_point + tail_pages(group))


def check_recurrent(table: GroupTable) -> None:
    """Refuse recurrent groups whose spans do not nest: their states would hardly ever meet.

    Raises:
        GroupTableError: names both groups with their geometry.
    """
    states = [group for group in table.groups if group.kind is Kind.RECURRENT]
    for first, second in combinations(states, 2):
        short, long = sorted((first.span_tokens, second.span_tokens))
        if long % short:
            raise GroupTableError(
                f"recurrent groups {first.group_id} (span {first.span_tokens} tokens, page "
                f"{first.page_bytes} bytes) and {second.group_id} (span {second.span_tokens} "
                f"tokens, page {second.page_bytes} bytes) cannot be reconciled: one span must "
                "be a multiple of the other for their states to end at the same tokens"
            )


def gigabytes_up(size_bytes: int) -> float:
    """In GB, rounded up at the sixth decimal, so that the printed number is enough."""
    return -(-size_bytes * 10**6 // 2**30) / 10**6
