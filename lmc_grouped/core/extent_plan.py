"""The size of extents: small enough to share, large enough to hold whole pages of every group."""

from collections.abc import Iterator, Mapping

from lmc_grouped.core.capacity import context_pages
from lmc_grouped.core.extents import ExtentPlan, add_up
from lmc_grouped.core.groups import GroupSpec, GroupTable

PARTLY_FILLED_SHARE = 0.02
"""Extents are never so large that one of each group makes more than this of the budget."""
CANDIDATES_PER_GROUP = 4_096
EQUALLY_GOOD = 0.0005
"""Share of the budget. Of sizes that waste the same but for that, the smallest: small extents
empty more easily."""


def plan_extents(
    table: GroupTable,
    budget_bytes: int,
    *,
    retention_tokens: int | None,
    reference_tokens: int,
) -> ExtentPlan | None:
    """Cut the budget into extents of the size that wastes least.

    Args:
        table: the groups of one worker; every page has bytes.
        budget_bytes: its host bytes.
        retention_tokens, reference_tokens: what one request keeps: the weight of
            each group in the waste, and its floor.

    Returns:
        ``None`` where the budget does not hold the floors, or a group has no bytes.
    """
    if not table.groups or any(group.page_bytes == 0 for group in table.groups):
        return None
    pages = context_pages(table, reference_tokens, retention_tokens).pages_by_group
    waste = {
        size: expected_waste(table.groups, pages, budget_bytes, size)
        for size in _candidates(table.groups, budget_bytes)
    }
    least = min(waste.values())
    size = min(size for size, lost in waste.items() if lost <= least + EQUALLY_GOOD)
    extents = budget_bytes // size
    slots = {group.group_id: size // group.page_bytes for group in table.groups}
    shares = _shares(table.groups)
    kept = add_up(pages, shares)
    floors = {group_id: max(1, -(-count // slots[group_id])) for group_id, count in kept.items()}
    if sum(floors.values()) > extents:
        return None
    return ExtentPlan(size, extents, slots, floors, shares)


def expected_waste(
    groups: tuple[GroupSpec, ...],
    pages_by_group: Mapping[int, int],
    budget_bytes: int,
    extent_bytes: int,
) -> float:
    """Share of the budget that extents of that size are expected to lose.

    What no whole page fills in each extent, weighted by what requests keep; half
    of one extent of every group whose extents hold several pages, groups that share
    them counted once; and the rest of the budget beyond the last extent.
    """
    shares = _shares(groups)
    kept_bytes = sum(pages_by_group[g.group_id] * g.page_bytes for g in groups)
    partly_filled, lost = 0, 0.0
    for group in groups:
        slots = extent_bytes // group.page_bytes
        unfilled = 1 - slots * group.page_bytes / extent_bytes
        weight = pages_by_group[group.group_id] * group.page_bytes / kept_bytes if kept_bytes else 0
        lost += weight * unfilled
        if group.group_id not in shares:
            partly_filled += (slots - 1) * group.page_bytes
    rest = budget_bytes % extent_bytes
    return lost + (partly_filled / 2 + rest) / budget_bytes


def _shares(groups: tuple[GroupSpec, ...]) -> dict[int, int]:
    """group_id -> the first group that is like it, where that is another one.

    Alike: the same kind, span, window and page bytes, so that every request keeps
    equally many pages of both.
    """
    first: dict[tuple[object, ...], int] = {}
    shares: dict[int, int] = {}
    for group in groups:
        likeness = (
            group.kind,
            group.span_tokens,
            group.window_tokens,
            group.is_drafter,
            group.page_bytes,
        )
        before = first.setdefault(likeness, group.group_id)
        if before != group.group_id:
            shares[group.group_id] = before
    return shares


def _candidates(groups: tuple[GroupSpec, ...], budget_bytes: int) -> Iterator[int]:
    """Sizes that some group fills to the byte, the largest page first of all."""
    largest_page = max(group.page_bytes for group in groups)
    most = max(largest_page, int(budget_bytes * PARTLY_FILLED_SHARE / len(groups)))
    yield largest_page
    for page_bytes in {group.page_bytes for group in groups}:
        first = -(-largest_page // page_bytes)
        last = min(most // page_bytes, first + CANDIDATES_PER_GROUP)
        yield from (count * page_bytes for count in range(first, last + 1))
