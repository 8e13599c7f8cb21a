"""Store planning: which pages of a request's block tables are worth copying.

Block tables are positional: entry ``i`` of a group's table belongs to tokens
``[i * span, (i + 1) * span)``. A null block is not data, and the tables of
sliding-window groups keep nulls at their front rather than getting shorter.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from lmc_grouped.core.groups import GroupSpec, GroupTable, Kind

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
    """Pages the index has already."""
    null: list[PlannedPage] = field(default_factory=list)
    """Positions whose block is null: nothing to read."""


class StoreCursor:
    """How far each group of one request has been planned, in pages.

    Recurrent groups have no cursor: their states come from the engine's own
    boundary hand-off, never from a table.
    """

    def __init__(self, table: GroupTable) -> None:
        self._groups = [g for g in table.groups if g.kind is not Kind.RECURRENT]
        self._next_page = dict.fromkeys((g.group_id for g in self._groups), 0)

    def rewind(self) -> None:
        """Start again: the request got a new table."""
        self._next_page = dict.fromkeys(self._next_page, 0)

    def is_due(self, computed_tokens: int) -> bool:
        """Whether some group has a full page beyond its cursor (no table needed)."""
        return any(
            computed_tokens // g.span_tokens > self._next_page[g.group_id] for g in self._groups
        )

    def plan(
        self,
        block_ids: Sequence[Sequence[int]],
        computed_tokens: int,
        is_known: Callable[[int, int], bool],
    ) -> StorePlan:
        """Pages beyond the cursors whose tokens are all computed.

        Args:
            block_ids: the request's tables, one per group of the *engine*,
                indexed by group_id.
            computed_tokens: tokens whose cache is written when the copy runs.
            is_known: ``(group_id, page_index)`` -> the index has the page.
        """
        plan = StorePlan()
        for group in self._groups:
            self._plan_group(plan, group, block_ids[group.group_id], computed_tokens, is_known)
        return plan

    def _plan_group(
        self,
        plan: StorePlan,
        group: GroupSpec,
        blocks: Sequence[int],
        computed_tokens: int,
        is_known: Callable[[int, int], bool],
    ) -> None:
        full_pages = min(computed_tokens // group.span_tokens, len(blocks))
        for page_index in range(self._next_page[group.group_id], full_pages):
            end_tokens = (page_index + 1) * group.span_tokens
            page = PlannedPage(group.group_id, page_index, blocks[page_index], end_tokens)
            if is_known(group.group_id, page_index):
                plan.known.append(page)
            elif page.block_id == NULL_BLOCK:
                plan.null.append(page)
            else:
                plan.new.append(page)

    def advance(self, planned_tokens: int) -> None:
        """Mark everything up to ``planned_tokens`` as planned."""
        for group in self._groups:
            done = planned_tokens // group.span_tokens
            self._next_page[group.group_id] = max(self._next_page[group.group_id], done)

    def pages_left(self, computed_tokens: int) -> int:
        """Full pages beyond the cursors, over all groups."""
        return sum(
            max(0, computed_tokens // g.span_tokens - self._next_page[g.group_id])
            for g in self._groups
        )


def fit(
    pages: Sequence[PlannedPage], computed_tokens: int, room_slots: Callable[[int], int]
) -> tuple[list[PlannedPage], int]:
    """The pages of the longest token range for which every group has room.

    A prefix without its start is useless, so the range is cut at its end, for
    all groups at the same token.

    Returns:
        The pages that fit and the token up to which all of ``pages`` are in.
    """
    limit_tokens = computed_tokens
    by_group: dict[int, list[PlannedPage]] = {}
    for page in pages:
        by_group.setdefault(page.group_id, []).append(page)
    for group_id, group_pages in by_group.items():
        room = room_slots(group_id)
        if room < len(group_pages):
            limit_tokens = min(limit_tokens, group_pages[room].end_tokens - 1)
    return [page for page in pages if page.end_tokens <= limit_tokens], limit_tokens


def page_hash_index(end_tokens: int, hash_block_tokens: int) -> int:
    """Index of the block hash that covers the prefix ending at ``end_tokens``."""
    return end_tokens // hash_block_tokens - 1
