"""What one request writes to a tier: pages from its tables, states as they are handed off."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from lmc_grouped.core.groups import Kind
from lmc_grouped.core.index import PageIndex
from lmc_grouped.core.plan import PlannedPage, StoreCursor, fit
from lmc_grouped.core.pool import NewPage, PageRef
from lmc_grouped.core.prefix import Prefix
from lmc_grouped.core.retention import PageMask
from lmc_grouped.core.rule import RetentionRule, family_chains


@dataclass(frozen=True, slots=True)
class PageStore:
    """A store to carry out: every page has a slot."""

    operation_id: int
    pages: tuple[PlannedPage, ...]
    slots: tuple[int, ...]
    refs: tuple[PageRef, ...]


class PrefixWriter:
    """Plans the stores of one request.

    While the request runs, what it has stored is leased to it: a prompt longer
    than the pools keeps its head and loses its end.

    Args:
        index: where the pages go.
        rule: what is kept.
        prefix: the request's hashes.
        owner: name of the request's leases.
        prompt_tokens: length of its prompt; the rule counts from there.
    """

    def __init__(
        self, index: PageIndex, rule: RetentionRule, prefix: Prefix, owner: str, prompt_tokens: int
    ) -> None:
        self._index = index
        self._rule = rule
        self._prefix = prefix
        self._owner = owner
        self._planning_owner = f"{owner} planning"
        self._prompt_tokens = prompt_tokens
        self._cursor = StoreCursor(rule.table)
        self._spans = {g.group_id: g.span_tokens for g in rule.table.groups}
        self._full_groups = {g.group_id for g in rule.table.groups if g.kind is Kind.FULL}
        self._joined_tokens = 0
        self._stalled_at: int | None = None
        self.junctions: set[int] = set()
        """Boundaries inside the prompt that another request has proved worth keeping."""
        self.is_broken = False
        """A store failed: nothing more is stored until the request gets a new table."""

    @property
    def is_stalled(self) -> bool:
        """Whether pages that are due found no room."""
        return self._stalled_at is not None

    def restart(self) -> None:
        """The request got a new table: its prefix is planned again from the start."""
        self._rewind()
        self.is_broken = False

    def finish(self) -> None:
        """The request has ended."""
        self._index.release(self._owner)

    def pages_left(self, computed_tokens: int) -> int:
        """Pages that are due and were not planned."""
        return self._cursor.pages_left(computed_tokens, self._masks())

    def is_due(self, computed_tokens: int) -> bool:
        """Whether planning could find something to store (no table needed)."""
        if self.is_broken or self._stalled_at == self._index.releases:
            return False
        return self._cursor.is_due(computed_tokens)

    def plan_pages(
        self,
        block_ids: Sequence[Sequence[int]],
        computed_tokens: int,
        next_operation_id: Callable[[], int],
    ) -> tuple[PageStore | None, int]:
        """Attention pages and window tails that are computed and not stored yet.

        Args:
            block_ids: the request's tables, by group_id.
            computed_tokens: tokens whose cache is written when the copy runs.
            next_operation_id: called when there is something to store.

        Returns:
            The store, if there is one, and how many pages the engine had let go.
        """
        index, prefix = self._index, self._prefix
        if not all(index.knows(*prefix.ref(*page)) for page in self._cursor.last_full_pages()):
            self._rewind()  # the index lost what the request leans on

        def is_known(group_id: int, page: int) -> bool:
            return index.knows(*prefix.ref(group_id, page))

        plan = self._cursor.plan(block_ids, computed_tokens, is_known, self._masks())
        index.lease(self._planning_owner, self._refs(plan.known))
        align = self._rule.table.alignment_tokens
        pages, limit = fit(plan.new, computed_tokens, align, index.has_room)
        if limit < computed_tokens:
            index.note_shortage(Counter(page.group_id for page in plan.new))
        store = self._reserve(next_operation_id(), pages) if pages else None
        held = self._cursor.last_full_pages()
        self._cursor.advance(limit)
        # The last page of a full group holds those before it. It need not be one of `plan`:
        # what is known may reach further than what fits.
        ends = [page for page in self._cursor.last_full_pages() if page not in held]
        others = [
            page
            for page in (*plan.known, *pages)
            if page.group_id not in self._full_groups and page.end_tokens <= limit
        ]
        index.lease(self._owner, [*(prefix.ref(*end) for end in ends), *self._refs(others)])
        index.release(self._planning_owner)
        self._stalled_at = index.releases if limit < computed_tokens else None
        self._join(pages, limit)
        return store, sum(page.end_tokens <= limit for page in plan.null)

    def keeps_state(self, group_id: int, boundary_tokens: int) -> bool:
        """Whether the group's state at that boundary is worth a slot."""
        page = boundary_tokens // self._spans[group_id] - 1
        return self._masks()[group_id].keeps(page)

    def plan_states(
        self, boundary_tokens: int, blocks: Mapping[int, int], next_operation_id: Callable[[], int]
    ) -> PageStore | None:
        """States that end at one boundary: group_id -> block id.

        Returns:
            The store, or ``None`` when some group has no room.
        """
        pages = [
            PlannedPage(
                group_id,
                boundary_tokens // self._spans[group_id] - 1,
                block_id,
                boundary_tokens,
            )
            for group_id, block_id in blocks.items()
        ]
        store = self._reserve(next_operation_id(), pages)
        if store:
            self._join_boundary(boundary_tokens, 0)
        else:
            self._index.note_shortage(Counter(page.group_id for page in pages))
        return store

    def _rewind(self) -> None:
        self._index.release(self._owner)
        self._cursor.rewind()
        self._joined_tokens = 0
        self._stalled_at = None

    def _masks(self) -> dict[int, PageMask]:
        return self._rule.masks(self._prompt_tokens, self.junctions)

    def _reserve(self, operation_id: int, pages: Sequence[PlannedPage]) -> PageStore | None:
        new = [self._new_page(page) for page in pages]
        slots = self._index.reserve(operation_id, new)
        if slots is None:
            return None
        refs = tuple((page.group_id, page.block_hash) for page in new)
        return PageStore(operation_id, tuple(pages), tuple(slots), refs)

    def _new_page(self, page: PlannedPage) -> NewPage:
        ref = self._prefix.ref(page.group_id, page.page_index)
        if page.page_index == 0 or page.group_id not in self._full_groups:
            return NewPage(*ref)
        return NewPage(*ref, self._prefix.block_hash(page.group_id, page.page_index - 1))

    def _join(self, pages: Sequence[PlannedPage], limit_tokens: int) -> None:
        """Tell the index which pages serve a boundary together, up to ``limit_tokens``."""
        upto = limit_tokens - self._rule.proof_tokens
        after = self._joined_tokens
        if not self._rule.is_sparse:
            # Whoever stored the pages that were known has joined them.
            starts = (page.end_tokens - self._spans[page.group_id] for page in pages)
            # A boundary may have waited for the page above it, which proves it.
            after = max(after, min(starts, default=limit_tokens) - self._rule.proof_tokens)
        linked = 0
        for boundary in self._rule.boundaries(
            self._prompt_tokens, self.junctions, after_tokens=after, upto_tokens=upto
        ):
            linked = boundary if self._join_boundary(boundary, linked) else 0
        self._joined_tokens = max(self._joined_tokens, upto)

    def _join_boundary(self, boundary_tokens: int, linked_tokens: int) -> bool:
        if boundary_tokens + self._rule.proof_tokens > self._prefix.hashed_tokens:
            return False
        return self._index.join(
            family_chains(self._rule, self._prefix, boundary_tokens, linked_tokens)
        )

    def _refs(self, pages: Sequence[PlannedPage]) -> list[PageRef]:
        return [self._prefix.ref(page.group_id, page.page_index) for page in pages]
