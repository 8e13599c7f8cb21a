"""Replay: one trace through the real index, writer and hit code, on one set of pools.

It drives them as the connector does, for one request after the other. Every
copy succeeds at the end of the step that planned it.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count

from lmc_grouped.core.hits import Hit, longest_hit
from lmc_grouped.core.index import PageIndex
from lmc_grouped.core.moves import MOVE_LIMIT_BYTES, Rebalancer
from lmc_grouped.core.prefix import Prefix
from lmc_grouped.core.reader import has_junction, hold_hit
from lmc_grouped.core.writer import PrefixWriter
from lmc_grouped.tools.simulate.engine import ImitatedEngine
from lmc_grouped.tools.simulate.pools import Pools
from lmc_grouped.tools.simulate.trace import TraceRequest, block_hashes


@dataclass(slots=True)
class Tally:
    """What was counted while requests ran."""

    requests: int = 0
    prompt_tokens: int = 0
    hit_tokens: int = 0
    moved_pages: int = 0
    not_stored_pages: Counter[str] = field(default_factory=Counter)
    """By reason, under the connector's names."""


@dataclass(slots=True)
class _Running:
    """One request under way."""

    prefix: Prefix
    writer: PrefixWriter
    offered: dict[int, set[int]] = field(default_factory=dict)
    """boundary -> recurrent groups whose state waits for room."""


class Replay:
    """The host tier of one engine, its pools empty at first.

    Args:
        pools: the pools, and what is kept in them.
        step_tokens: most tokens of one prefill step.
    """

    def __init__(self, pools: Pools, step_tokens: int) -> None:
        self._rule = pools.rule
        self._table = pools.rule.table
        self._engine = ImitatedEngine(self._table, step_tokens)
        self._spans = {g.group_id: g.span_tokens for g in self._table.groups}
        self._operation_ids = count(1)
        self.index = PageIndex(
            pools.plan.slots_by_group, shared=pools.is_shared, extents=pools.plan.extents
        )
        page_bytes = {group.group_id: group.page_bytes for group in self._table.groups}
        self._rebalancer = Rebalancer(self.index, page_bytes) if pools.plan.extents else None
        self.tally = Tally()

    def serve(self, request: TraceRequest) -> int:
        """Run one request from lookup to end; the tokens that the tier restored."""
        block_tokens = self._table.hash_block_tokens
        prompt_tokens, computed_tokens = request.prompt_tokens, request.computed_tokens
        all_hashes = block_hashes((*request.prompt, request.output), block_tokens)
        hashes = all_hashes[: prompt_tokens // block_tokens]
        prefix = Prefix(self._table, hashes)
        writer = PrefixWriter(
            self.index, self._rule, prefix, f"run:{self.tally.requests}", prompt_tokens
        )
        running = _Running(prefix, writer)
        hit = self._look_up(prefix, prompt_tokens, self.index.has)
        self._load(prefix, hit.boundary_tokens)
        junction_tokens = self._record_junction(writer, hit)
        done = hit.boundary_tokens
        for end in self._engine.prefill_ends(prompt_tokens, done, junction_tokens):
            self._step(running, done, end)
            done = end
        for end in self._engine.decode_ends(prompt_tokens, computed_tokens):
            hashes += all_hashes[len(hashes) : end // block_tokens]
            self._step(running, end - 1, end)
        self._finish(running, computed_tokens)
        self.tally.requests += 1
        self.tally.prompt_tokens += prompt_tokens
        self.tally.hit_tokens += hit.boundary_tokens
        return hit.boundary_tokens

    def resume(self, request: TraceRequest) -> tuple[int, int]:
        """Where the same prompt would resume now, and where it could at best; changes nothing."""
        hashes = block_hashes(request.prompt, self._table.hash_block_tokens)
        return self.resume_prefix(Prefix(self._table, hashes), request.prompt_tokens)

    def resume_prefix(self, prefix: Prefix, prompt_tokens: int) -> tuple[int, int]:
        """As ``resume``, for a prompt whose hashes are known."""
        now = self._look_up(prefix, prompt_tokens, self.index.has)
        best = self._look_up(prefix, prompt_tokens, lambda *_: True)
        return now.boundary_tokens, best.boundary_tokens

    def _look_up(
        self, prefix: Prefix, prompt_tokens: int, has: Callable[[int, bytes], bool]
    ) -> Hit:
        """The hit; the last token is always recomputed, and the device holds nothing."""
        limit = min(prompt_tokens - 1, prefix.hashed_tokens)
        probe = prefix.probe(has, limit)
        return longest_hit(self._table, probe, local_tokens=0, limit_tokens=limit)

    def _load(self, prefix: Prefix, boundary_tokens: int) -> None:
        """Hold what is read back, for as long as that takes."""
        if boundary_tokens == 0:
            return
        owner = f"load:{self.tally.requests}"
        hold_hit(
            self.index,
            self._rule,
            prefix,
            owner,
            local_tokens=0,
            boundary_tokens=boundary_tokens,
        )
        self._end_step([], owner)

    def _record_junction(self, writer: PrefixWriter, hit: Hit) -> int:
        """Where a step is to end so that the next sibling can hit; 0 for nowhere."""
        if not has_junction(self._rule, hit):
            return 0
        writer.junctions.add(hit.attention_tokens)
        return hit.attention_tokens

    def _step(self, running: _Running, start_tokens: int, end_tokens: int) -> None:
        """One engine step: plan, then every copy succeeds."""
        operations: list[int] = []
        computed = min(end_tokens, running.prefix.hashed_tokens)
        if running.writer.is_due(computed):
            tables = self._engine.tables(start_tokens, end_tokens)
            store, null_pages = running.writer.plan_pages(tables, computed, self._next_id)
            self._count("null_block", null_pages)
            operations += [store.operation_id] if store else []
        self._take_offers(running, end_tokens)
        operations += self._plan_offers(running)
        self._end_step(operations)

    def _end_step(self, stores: list[int], load_owner: str | None = None) -> None:
        """Plan the moves of the step; then every copy of the step succeeds, moves last."""
        moves_id = self._next_id()
        moves = self._rebalancer.plan(moves_id, MOVE_LIMIT_BYTES) if self._rebalancer else []
        if load_owner is not None:
            self.index.release(load_owner)
        for operation_id in stores:
            self.index.commit(operation_id)
        if moves and self._rebalancer:
            self.tally.moved_pages += len(moves)
            self._rebalancer.finish(moves_id, None)

    def _take_offers(self, running: _Running, end_tokens: int) -> None:
        for group_id in self._engine.state_group_ids(end_tokens):
            if end_tokens % self._table.alignment_tokens:
                self._count("off_alignment", 1)
            elif not running.writer.keeps_state(group_id, end_tokens):
                self._count("not_retained", 1)
            else:
                running.offered.setdefault(end_tokens, set()).add(group_id)

    def _plan_offers(self, running: _Running) -> list[int]:
        """One operation per boundary; a boundary without room is tried again."""
        operations = []
        for boundary, group_ids in list(running.offered.items()):
            new = {
                group_id: 0
                for group_id in sorted(group_ids)
                if not self._knows_state(running.prefix, group_id, boundary)
            }
            if new:
                store = running.writer.plan_states(boundary, new, self._next_id)
                if store is None:
                    continue
                operations.append(store.operation_id)
            del running.offered[boundary]
        return operations

    def _knows_state(self, prefix: Prefix, group_id: int, boundary_tokens: int) -> bool:
        page = boundary_tokens // self._spans[group_id] - 1
        return self.index.knows(*prefix.ref(group_id, page))

    def _finish(self, running: _Running, computed_tokens: int) -> None:
        """The request ends: what still waited for room is dropped and counted."""
        self._count("request_gone", sum(map(len, running.offered.values())))
        writer = running.writer
        if writer.is_stalled:
            computed = min(computed_tokens, running.prefix.hashed_tokens)
            self._count("no_room", writer.pages_left(computed))
        writer.finish()

    def _count(self, reason: str, pages: int) -> None:
        if pages:
            self.tally.not_stored_pages[reason] += pages

    def _next_id(self) -> int:
        return next(self._operation_ids)
