"""Store planning: which pages of a request's block tables are worth copying.

Block tables are positional: entry ``i`` of a group's table belongs to tokens
``[i * span, (i + 1) * span)``. A null block is not data, and the tables of
sliding-window groups keep nulls at their front rather than getting shorter.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from lmc_grouped.core.groups import GroupSpec, GroupTable, Kind
from lmc_grouped.core.retention import PageMask

NULL_BLOCK = 0
"""vLLM's null block: it stands where a group keeps nothing."""


@dataclass(frozen=True, slots=True)
class PlannedPage:
    """One page to copy: ``page_index`` spans from the start of the prompt."""

    group_id: int
    page_index: int
    block_id: int
    end_tokens: int


@dataclass(slots=True)
class StorePlan:
    """What one request could store at one moment."""

    new: list[PlannedPage] = field(default_factory=list)
    """Pages the index does not know yet."""
    known: list[PlannedPage] = field(default_factory=list)
    """Pages the index has already; of a full group only the last."""
    null: list[PlannedPage] = field(default_factory=list)
    """Positions whose block is null: nothing to read."""


class StoreCursor:
    """How far each group of one request has been planned, in pages.

    Recurrent groups have no cursor: their states come from the engine's own
    boundary hand-off, never from a table.
    """

    def __init__(self, table: GroupTable) -> None:
        self._groups = [g for g in table.groups if g.kind is not Kind.RECURRENT]
        self._alignment_tokens = table.alignment_tokens
        self._next_page = dict.fromkeys((g.group_id for g in self._groups), 0)

    def rewind(self) -> None:
        """Start again: the request got a new table, or the index lost pages."""
        self._next_page = dict.fromkeys(self._next_page, 0)

    def is_due(self, computed_tokens: int) -> bool:
        """Whether some group has a page to look at beyond its cursor (no table needed)."""
        return any(
            self._stop(g, computed_tokens) > self._next_page[g.group_id] for g in self._groups
        )

    def last_full_pages(self) -> list[tuple[int, int]]:
        """``(group_id, page index)`` of the last planned page of each full group."""
        return [
            (g.group_id, self._next_page[g.group_id] - 1)
            for g in self._groups
            if g.kind is Kind.FULL and self._next_page[g.group_id]
        ]

    def plan(
        self,
        block_ids: Sequence[Sequence[int]],
        computed_tokens: int,
        is_known: Callable[[int, int], bool],
        masks: Mapping[int, PageMask],
    ) -> StorePlan:
        """Pages beyond the cursors whose tokens are all computed and that are kept.

        Args:
            block_ids: the request's tables, one per group of the *engine*,
                indexed by group_id.
            computed_tokens: tokens whose cache is written when the copy runs.
            is_known: ``(group_id, page_index)`` -> the index has the page.
            masks: group_id -> the pages that retention keeps.
        """
        plan = StorePlan()
        for group in self._groups:
            blocks = block_ids[group.group_id]
            first = self._next_page[group.group_id]
            stop = min(self._stop(group, computed_tokens), len(blocks))
            if group.kind is Kind.FULL:
                first = _skip_known(plan, group, blocks, range(first, stop), is_known)
                plan.new += [_page(group, index, blocks) for index in range(first, stop)]
                continue
            for index in masks[group.group_id].indices_in(first, stop):
                page = _page(group, index, blocks)
                if is_known(group.group_id, index):
                    plan.known.append(page)
                elif page.block_id == NULL_BLOCK:
                    plan.null.append(page)
                else:
                    plan.new.append(page)
        return plan

    def advance(self, planned_tokens: int) -> None:
        """Mark everything up to ``planned_tokens`` as planned."""
        for group in self._groups:
            done = self._stop(group, planned_tokens)
            self._next_page[group.group_id] = max(self._next_page[group.group_id], done)

    def pages_left(self, computed_tokens: int, masks: Mapping[int, PageMask]) -> int:
        """Pages beyond the cursors that are kept, over all groups."""
        return sum(
            masks[g.group_id].count_in(self._next_page[g.group_id], self._stop(g, computed_tokens))
            for g in self._groups
        )

    def _stop(self, group: GroupSpec, computed_tokens: int) -> int:
        """Pages worth storing: those of whole alignments, and what a drafter reads beyond."""
        if not group.is_drafter:
            computed_tokens -= computed_tokens % self._alignment_tokens
        return computed_tokens // group.span_tokens


def _skip_known(
    plan: StorePlan,
    group: GroupSpec,
    blocks: Sequence[int],
    pages: range,
    is_known: Callable[[int, int], bool],
) -> int:
    """The first page that is not known: the index has no holes in a full group."""
    skipped = bisect_left(pages, True, key=lambda page: not is_known(group.group_id, page))
    if skipped:
        plan.known.append(_page(group, pages[skipped - 1], blocks))
    return pages.start + skipped


def _page(group: GroupSpec, index: int, blocks: Sequence[int]) -> PlannedPage:
    return PlannedPage(group.group_id, index, blocks[index], (index + 1) * group.span_tokens)


def fit(
    pages: Sequence[PlannedPage],
    computed_tokens: int,
    alignment_tokens: int,
    has_room: Callable[[Mapping[int, int]], bool],
) -> tuple[list[PlannedPage], int]:
    """The pages of the longest token range for which every group has room.

    A prefix without its start is useless, so the range is cut at its end, for
    all groups at the same boundary.

    Args:
        pages: what there is to store.
        computed_tokens: the token up to which ``pages`` reach.
        alignment_tokens: distance between boundaries.
        has_room: group_id -> pages; whether all of them could get a slot.

    Returns:
        The pages that fit and the token up to which all of ``pages`` are in.
    """

    def fits(limit_tokens: int) -> bool:
        return has_room(Counter(p.group_id for p in pages if p.end_tokens <= limit_tokens))

    if fits(computed_tokens):
        return list(pages), computed_tokens
    ends = range(0, computed_tokens, alignment_tokens)
    # Nothing at all always fits, so the first that does not is never the first.
    limit_tokens = ends[bisect_left(ends, True, 1, key=lambda end: not fits(end)) - 1]
    return [page for page in pages if page.end_tokens <= limit_tokens], limit_tokens
