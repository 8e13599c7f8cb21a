"""Hit composition: the longest boundary that every group can serve."""

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass

from lmc_grouped.core.groups import GroupSpec, GroupTable, Kind

PageProbe = Callable[[int, int], bool]
"""``has(group_id, page_index)``: whether the tier holds that page, readable now.

The pages that a full-attention group holds of a prompt have no holes.
"""


@dataclass(frozen=True, slots=True)
class Hit:
    """The answer of one lookup."""

    boundary_tokens: int
    """Where the hit ends, counted from the start of the prompt."""
    attention_tokens: int
    """How far the full-attention groups alone would reach, on the alignment."""


def needed_pages(group: GroupSpec, local_tokens: int, boundary_tokens: int) -> range:
    """Page indices of ``group`` to load so that ``boundary_tokens`` can be resumed.

    Pages below ``local_tokens`` are the engine's own already. A page index
    counts spans from the start of the prompt.
    """
    end_page = boundary_tokens // group.span_tokens
    if group.kind is Kind.RECURRENT:
        return range(end_page - 1, end_page)
    first_token = local_tokens
    if group.kind is Kind.WINDOW:
        assert group.window_tokens is not None
        first_token = max(local_tokens, boundary_tokens - group.window_tokens + 1)
    return range(first_token // group.span_tokens, end_page)


def serves(table: GroupTable, has: PageProbe, local_tokens: int, boundary_tokens: int) -> bool:
    """Whether every group holds what resuming at exactly ``boundary_tokens`` needs."""
    return all(
        has(group.group_id, page)
        for group in table.groups
        for page in needed_pages(group, local_tokens, boundary_tokens)
    )


def longest_hit(table: GroupTable, has: PageProbe, *, local_tokens: int, limit_tokens: int) -> Hit:
    """The longest boundary above ``local_tokens`` that all groups can serve.

    Args:
        table: the groups; scratch groups are not in it and never lower the answer.
        has: the tier's pages.
        local_tokens: what the engine holds itself, a multiple of the alignment.
        limit_tokens: no hit ends beyond it (the last token is always
            recomputed, so callers pass at most ``prompt_tokens - 1``).

    Returns:
        A hit whose boundary equals ``local_tokens`` when nothing more can be
        served. The recurrent groups are asked first: their states are the
        rarest evidence, so the cost follows the number of boundaries tried.
    """
    by_rarity = sorted(table.groups, key=lambda group: _RARITY[group.kind])
    last = limit_tokens // table.alignment_tokens * table.alignment_tokens
    boundary = last
    agreed = 0
    turn = 0
    while by_rarity and boundary > local_tokens and agreed < len(by_rarity):
        group = by_rarity[turn % len(by_rarity)]
        lower = _best_boundary(table, group, has, local_tokens, boundary, limit_tokens)
        agreed = agreed + 1 if lower == boundary else 1
        boundary = lower
        turn += 1
    boundary = max(boundary, local_tokens) if by_rarity else local_tokens
    attention_groups = [group for group in by_rarity if group.kind is Kind.FULL]
    reach = last if attention_groups else boundary
    for group in attention_groups:
        if reach > boundary:
            reach = _best_boundary(table, group, has, local_tokens, reach, limit_tokens)
    return Hit(boundary, max(boundary, reach))


_RARITY = {Kind.RECURRENT: 0, Kind.WINDOW: 1, Kind.FULL: 2}


def _best_boundary(
    table: GroupTable,
    group: GroupSpec,
    has: PageProbe,
    local_tokens: int,
    boundary_tokens: int,
    limit_tokens: int,
) -> int:
    """The largest boundary up to ``boundary_tokens`` that ``group`` alone can serve."""
    align = table.alignment_tokens
    span = group.span_tokens
    # A drafter's last page depends on the token after it, so a drafter proves a
    # boundary with one page more than it loads.
    proof = span if group.is_drafter and group.kind is not Kind.RECURRENT else 0
    boundary = boundary_tokens
    if boundary + proof > limit_tokens:
        boundary = (limit_tokens - proof) // align * align
    if group.kind is Kind.FULL:
        first, stop = local_tokens // span, (boundary + proof) // span
        held = bisect_left(range(stop), True, first, key=lambda page: not has(group.group_id, page))
        return max(local_tokens, min(boundary, (held * span - proof) // align * align))
    while boundary > local_tokens:
        missing = _highest_missing(group, has, local_tokens, boundary, proof)
        if missing is None:
            return boundary
        # Every boundary whose tail contains the missing page fails the same way.
        boundary = min(boundary - 1, max(missing * span - proof, 0)) // align * align
    return local_tokens


def _highest_missing(
    group: GroupSpec, has: PageProbe, local_tokens: int, boundary_tokens: int, proof_tokens: int
) -> int | None:
    pages = needed_pages(group, local_tokens, boundary_tokens)
    for page in range(pages.stop + proof_tokens // group.span_tokens - 1, pages.start - 1, -1):
        if not has(group.group_id, page):
            return page
    return None
