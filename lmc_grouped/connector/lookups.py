"""Lookups and loads: what is promised, what is copied back, what failed."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING

from lmc_grouped.adapters import engine
from lmc_grouped.connector.messages import GroupPages, Operation
from lmc_grouped.connector.requests import Lookup, RequestState, Tier
from lmc_grouped.core.groups import GroupSpec, Kind
from lmc_grouped.core.hits import needed_pages, serves
from lmc_grouped.core.plan import NULL_BLOCK
from lmc_grouped.core.pool import PageRef
from lmc_grouped.core.reader import find_hit, has_junction, hold_hit

if TYPE_CHECKING:
    from vllm.v1.request import Request

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Load:
    """A load under way."""

    request_id: str
    refs: tuple[PageRef, ...]

    @staticmethod
    def owner(operation_id: int) -> str:
        """Lease owner of the pages being read."""
        return f"load:{operation_id}"


class Lookups:
    """Answers the engine's lookups and turns accepted hits into load operations.

    Args:
        tier: host memory, and the disk where that is on.
        writes_on: pages that the disk lacks are written when they are loaded.
    """

    def __init__(self, tier: Tier, *, writes_on: bool = True) -> None:
        self._tier = tier
        self._writes_on = writes_on
        self._queued: list[Operation] = []
        self._loading: dict[int, _Load] = {}

    def matched_tokens(self, request: "Request", local_tokens: int) -> int | None:
        """Tokens beyond ``local_tokens`` that can be restored for the request.

        The engine asks again every step while the request waits: the answer is
        kept as long as nothing changed, and never adds up.

        Returns:
            ``None`` while pages are being read from disk: ask again.
        """
        tier = self._tier
        state = tier.state(request)
        # Where the engine's own prefix ends inside a block, it fills that block itself.
        ends_inside = any(local_tokens % span for span in tier.span_tokens.values())
        is_barred = state.load_failed or getattr(request, "skip_reading_prefix_cache", False)
        if ends_inside or is_barred:
            self.drop_promise(state)
            return 0
        if tier.disk and tier.disk.promotions.is_waiting(state):
            return None
        limit = min(request.num_tokens - 1, state.prefix.hashed_tokens)
        asked = (local_tokens, limit, tier.versions)
        known = state.lookup
        if known is None or (known.local_tokens, known.limit_tokens, known.versions) != asked:
            known = self._look_up(state, local_tokens, limit)
        if known is None:
            return None
        self._record_junction(state, known)
        return known.external_tokens

    def drop_promise(self, state: RequestState) -> None:
        """Let go of what was promised: nothing will be loaded for it."""
        state.lookup = None
        state.waiting = None
        self._tier.index.release(state.waiting_owner)

    def accept(
        self, request: "Request", block_ids: Sequence[Sequence[int]], external_tokens: int
    ) -> None:
        """Plan the load of ``external_tokens`` into the request's blocks.

        The engine may take less than was promised; a shorter hit may have no
        state, so it is proved again. A load that cannot be carried out becomes
        one that the workers report as failed: the request is waiting for it.
        """
        tier = self._tier
        state = tier.state(request)
        operation_id = tier.next_operation_id()
        refs: list[PageRef] = []
        pages: list[GroupPages] = []
        refused = self._plan(state, block_ids, external_tokens, refs, pages)
        if refused is None:
            tier.index.lease(_Load.owner(operation_id), refs)
            slots = iter(tier.index.slots(refs))
            pages = [
                GroupPages(p.group_id, p.block_ids, [next(slots) for _ in p.block_ids])
                for p in pages
            ]
            if tier.disk and self._writes_on:
                tier.disk.writes.offer(refs)
        else:
            refs, pages = [], self._given_blocks(block_ids, external_tokens)
        self._queued.append(Operation(operation_id, request.request_id, tuple(pages), refused))
        self._loading[operation_id] = _Load(request.request_id, tuple(refs))
        self.drop_promise(state)

    def _given_blocks(
        self, block_ids: Sequence[Sequence[int]], external_tokens: int
    ) -> list[GroupPages]:
        """The blocks that the engine gave for a load, and to nobody else.

        Nothing is allocated beyond an asynchronous load, so they end the tables.
        """
        pages = []
        for group in self._tier.table.groups:
            blocks = block_ids[group.group_id][-ceil(external_tokens / group.span_tokens) :]
            given = [block for block in blocks if block != NULL_BLOCK]
            pages.append(GroupPages(group.group_id, given, []))
        return pages

    def take_loads(self) -> list[Operation]:
        """The loads planned since the last step."""
        queued, self._queued = self._queued, []
        return queued

    def finish(self, operation_id: int, failure: str | None) -> None:
        """Every rank has reported the load; a failed one loses its keys."""
        tier = self._tier
        load = self._loading.pop(operation_id)
        if failure is None:
            tier.count_pages("restored", load.refs)
        else:
            logger.warning("request %s: load failed: %s", load.request_id, failure)
            tier.stats.add("failed_loads", 1)
            tier.index.drop(load.refs)
            state = tier.requests.get(load.request_id)
            if state is not None:
                state.load_failed = True
        tier.index.release(_Load.owner(operation_id))

    def _look_up(self, state: RequestState, local_tokens: int, limit: int) -> Lookup | None:
        tier = self._tier
        state.lookup = None
        tier.index.release(state.waiting_owner)
        hit = find_hit(
            tier.index, tier.rule, state.prefix, local_tokens=local_tokens, limit_tokens=limit
        )
        if tier.disk:
            further = tier.disk.promotions.look_further(state, hit, local_tokens, limit)
            if further is None:
                return None
            hit = further
        lookup = Lookup(local_tokens, limit, tier.versions, hit)
        if lookup.external_tokens:
            hold_hit(
                tier.index,
                tier.rule,
                state.prefix,
                state.waiting_owner,
                local_tokens=local_tokens,
                boundary_tokens=hit.boundary_tokens,
            )
            logger.debug(
                "request %s: %d local tokens, hit at %d (attention reaches %d)",
                state.request.request_id,
                local_tokens,
                hit.boundary_tokens,
                hit.attention_tokens,
            )
        state.lookup = lookup
        return lookup

    def _record_junction(self, state: RequestState, lookup: Lookup) -> None:
        """Let the scheduler end a chunk where the next sibling can hit."""
        if has_junction(self._tier.rule, lookup.hit):
            state.writer.junctions.add(lookup.hit.attention_tokens)
            engine.record_junction(state.request, lookup.hit.attention_tokens)

    def _plan(
        self,
        state: RequestState,
        block_ids: Sequence[Sequence[int]],
        external_tokens: int,
        refs: list[PageRef],
        pages: list[GroupPages],
    ) -> str | None:
        """Fill ``refs`` and ``pages`` (slots empty); the reason when it cannot be done."""
        lookup, tier = state.lookup, self._tier
        if lookup is None:
            return f"{external_tokens} tokens were taken without a lookup"
        boundary = lookup.local_tokens + external_tokens
        has = state.prefix.probe(tier.index.has, lookup.limit_tokens)
        if boundary != lookup.hit.boundary_tokens and not serves(
            tier.table, has, lookup.local_tokens, boundary
        ):
            return f"{boundary} tokens were taken of {lookup.hit.boundary_tokens} promised"
        for group in tier.table.groups:
            blocks = block_ids[group.group_id]
            wanted = _pages_to_fill(group, blocks, lookup.local_tokens, boundary)
            for page in wanted:
                if page >= len(blocks) or blocks[page] == NULL_BLOCK:
                    return f"group {group.group_id} got no block for page {page}"
                if not has(group.group_id, page):
                    return (
                        f"group {group.group_id} got a block for page {page}, which is not stored"
                    )
                refs.append(state.prefix.ref(group.group_id, page))
            pages.append(GroupPages(group.group_id, [blocks[page] for page in wanted], []))
        return None


def _pages_to_fill(
    group: GroupSpec, blocks: Sequence[int], local_tokens: int, boundary_tokens: int
) -> list[int]:
    """Needed pages, and any block of a window the engine gave below them.

    The engine will publish every real block under its hash, so a real block
    must hold its page even where attention no longer looks at it.
    """
    needed = needed_pages(group, local_tokens, boundary_tokens)
    if group.kind is not Kind.WINDOW:
        return list(needed)
    first = local_tokens // group.span_tokens
    below = [page for page in range(first, needed.start) if blocks[page] != NULL_BLOCK]
    return below + list(needed)
