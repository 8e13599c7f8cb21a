"""What `simulate` answers: one trace through every scheme at every budget."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from lmc_grouped.core.groups import Kind
from lmc_grouped.tools.plan.layout import Layout
from lmc_grouped.tools.simulate.contexts import Ceiling, ceiling, cost_of
from lmc_grouped.tools.simulate.pools import Pools, Scheme, cut_pools
from lmc_grouped.tools.simulate.replay import Replay
from lmc_grouped.tools.simulate.trace import Trace


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked about a layout."""

    layout: Layout
    trace: Trace
    workers: int
    budgets_bytes: tuple[int, ...]
    """Over all workers, ascending."""
    schemes: tuple[Scheme, ...]
    retention_tokens: int
    reference_tokens: int
    step_tokens: int


class GroupRun(msgspec.Struct, frozen=True, kw_only=True):
    """One group's pool at the end. With shared rows `slots` is all rows."""

    group_id: int
    kind: Kind
    slots: int
    resident_pages: int
    evicted_pages: int
    """During the whole trace."""


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One scheme at one budget. Bytes are those of one worker."""

    partition: Scheme
    budget_bytes_per_worker: int
    used_bytes_per_worker: int
    requests: int
    prompt_tokens: int
    hit_tokens: int
    hit_rate: float
    """Hit tokens per prompt token."""
    evicted_pages: int
    moved_pages: int
    """To empty an extent for another group; 0 unless pools are elastic."""
    not_stored_pages: dict[str, int]
    """By reason; the names are those of the connector's counters."""
    resident_bytes: int
    """Of the slots or rows that hold a page at the end."""
    usable_bytes: int
    """Of those whose page serves some boundary that can still be resumed."""
    usable_share: float
    """`usable_bytes` of `resident_bytes`; 1 where nothing is resident."""
    restorable_contexts: int | None
    """Contexts that would resume at their last resume point; null for other traces."""
    restorable_tokens: int | None
    """Tokens of these contexts."""
    resumable_tokens: int | None
    """Sum over all contexts of where each would resume, those included that lost their end."""
    bytes_per_restorable_token: float | None
    """Budget of one worker per restorable token; null where there is none."""
    ceiling_contexts: float | None
    """Contexts, those asked last, that the budget would hold if no byte were lost."""
    ceiling_tokens: int | None
    """Tokens of these contexts, the part of the last included."""
    ceiling_share: float | None
    """`restorable_tokens` per token of the ceiling; null for other traces."""
    groups: tuple[GroupRun, ...]


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What `simulate --json` prints."""

    layout: str
    trace: str
    workers: int
    retention_tokens: int
    """Of all but the dense pools, which keep everything, and of the ceiling."""
    reference_tokens: int
    step_tokens: int
    runs: tuple[Run, ...]
    """By budget, then in the order of `--partitions`."""


class Held(NamedTuple):
    """What is left of a trace of contexts."""

    contexts: int
    tokens: int
    resumable_tokens: int
    ceiling: Ceiling


def answer(question: Question, say: Callable[[str], None]) -> Answer:
    """Cut all pools, then run the trace through each; `say` gets a line before each run.

    Raises ToolError naming the argument that makes a pool impossible.
    """
    pools = [
        cut_pools(
            scheme,
            question.layout,
            budget_bytes // question.workers,
            retention_tokens=question.retention_tokens,
            reference_tokens=question.reference_tokens,
        )
        for budget_bytes in question.budgets_bytes
        for scheme in question.schemes
    ]
    runs = []
    for number, some in enumerate(pools, 1):
        say(f"{number} of {len(pools)}: {some.scheme}, {some.plan.budget_bytes:,} bytes per worker")
        runs.append(_run(some, question))
    return Answer(
        layout=question.layout.name,
        trace=question.trace.name,
        workers=question.workers,
        retention_tokens=question.retention_tokens,
        reference_tokens=question.reference_tokens,
        step_tokens=question.step_tokens,
        runs=tuple(runs),
    )


def _run(pools: Pools, question: Question) -> Run:
    replay = Replay(pools, question.step_tokens)
    for request in question.trace.requests:
        replay.serve(request)
    tally = replay.tally
    groups = _groups(pools, replay)
    resident_bytes, useless_bytes = _resident(pools, replay, groups)
    held = _held(replay, question, pools.plan.budget_bytes)
    tokens = held.tokens if held else 0
    return Run(
        partition=pools.scheme,
        budget_bytes_per_worker=pools.plan.budget_bytes,
        used_bytes_per_worker=pools.plan.used_bytes,
        requests=tally.requests,
        prompt_tokens=tally.prompt_tokens,
        hit_tokens=tally.hit_tokens,
        hit_rate=tally.hit_tokens / tally.prompt_tokens,
        evicted_pages=sum(group.evicted_pages for group in groups),
        moved_pages=tally.moved_pages,
        not_stored_pages=dict(sorted(tally.not_stored_pages.items())),
        resident_bytes=resident_bytes,
        usable_bytes=resident_bytes - useless_bytes,
        usable_share=1 - useless_bytes / resident_bytes if resident_bytes else 1.0,
        restorable_contexts=held.contexts if held else None,
        restorable_tokens=held.tokens if held else None,
        resumable_tokens=held.resumable_tokens if held else None,
        bytes_per_restorable_token=pools.plan.budget_bytes / tokens if tokens else None,
        ceiling_contexts=held.ceiling.contexts if held else None,
        ceiling_tokens=int(held.ceiling.tokens) if held else None,
        ceiling_share=_share_of(held) if held else None,
        groups=tuple(groups),
    )


def _share_of(held: Held) -> float:
    return held.tokens / held.ceiling.tokens if held.ceiling.tokens else 0.0


def _groups(pools: Pools, replay: Replay) -> list[GroupRun]:
    residency = replay.index.residency()
    return [
        GroupRun(
            group_id=group.group_id,
            kind=group.kind,
            slots=residency[group.group_id].capacity_slots,
            resident_pages=residency[group.group_id].resident_pages,
            evicted_pages=residency[group.group_id].evicted_pages,
        )
        for group in pools.rule.table.groups
    ]


def _resident(pools: Pools, replay: Replay, groups: Sequence[GroupRun]) -> tuple[int, int]:
    """Bytes of the slots that hold a page, and of those whose page nothing can use."""
    resident = sum(pools.slot_bytes(g.group_id) * g.resident_pages for g in groups)
    residency = replay.index.residency()
    useless = sum(
        pools.slot_bytes(group_id) * pool.useless_slots
        for group_id, pool in residency.items()
        if pool.owner_id == group_id
    )
    return resident, useless


def _held(replay: Replay, question: Question, budget_bytes: int) -> Held | None:
    trace = question.trace
    if not trace.are_contexts:
        return None
    contexts = tokens = resumable_tokens = 0
    latest = list({request.prompt: request for request in reversed(trace.requests)}.values())
    for request in latest:
        now, best = replay.resume(request)
        resumable_tokens += now
        if 0 < now == best:
            contexts += 1
            tokens += request.prompt_tokens
    table, retention_tokens = question.layout.table, question.retention_tokens
    costs = (cost_of(table, request.prompt_tokens, retention_tokens) for request in latest)
    return Held(contexts, tokens, resumable_tokens, ceiling(costs, budget_bytes))
