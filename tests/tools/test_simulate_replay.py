"""The replay: the steps of an engine, and the same pages and hits as the connector's."""

from itertools import pairwise
from types import SimpleNamespace

import pytest

from lmc_grouped.core.groups import GroupTable, Kind
from lmc_grouped.core.hits import needed_pages
from lmc_grouped.core.plan import NULL_BLOCK
from lmc_grouped.core.pools import PoolPlan
from lmc_grouped.core.prefix import Prefix
from lmc_grouped.core.rule import RetentionRule
from lmc_grouped.tools.simulate.contexts import contexts
from lmc_grouped.tools.simulate.engine import ImitatedEngine
from lmc_grouped.tools.simulate.pools import Pools, Scheme
from lmc_grouped.tools.simulate.replay import Replay
from lmc_grouped.tools.simulate.trace import Segment, TraceRequest, block_hashes
from lmc_grouped.tools.simulate.traces import generate
from tests.connector.scripted import Request, ScriptedEngine
from tests.factories import full, recurrent, table_of, window
from tests.specs import full_spec, ring_spec, state_spec, window_spec

HYBRID = (full(0), recurrent(2), window(3, 40))


def pools_of(
    table: GroupTable, slots: int | dict[int, int], retention: int | None = 0, *, shared=False
) -> Pools:
    """Pools of so many slots each."""
    by_group = dict.fromkeys(table.group_ids, slots) if isinstance(slots, int) else slots
    scheme = Scheme.SHARED if shared else Scheme.SIZED
    return Pools(scheme, PoolPlan(by_group, 0, 0, 0), RetentionRule(table, retention))


def replay_of(*groups, slots: int | dict[int, int] = 10_000, retention=0, step_tokens=64, **pools):
    return Replay(pools_of(table_of(*groups), slots, retention, **pools), step_tokens)


def asked(*texts: str, output: str = "out:1") -> TraceRequest:
    """A request whose segments are written ``name:tokens``."""

    def segment(text: str) -> Segment:
        name, _, tokens = text.partition(":")
        return Segment(name, int(tokens))

    return TraceRequest(0.0, tuple(map(segment, texts)), segment(output))


def ends(engine: ImitatedEngine, prompt: int, start: int = 0, junction: int = 0) -> list[int]:
    return list(engine.prefill_ends(prompt, start, junction))


# Steps.


def test_attention_alone_is_stepped_by_the_token_budget():
    assert ends(ImitatedEngine(table_of(full(0)), 100), 250) == [100, 200, 250]


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        (200, [96, 192, 200]),
        (192, [96, 176, 192]),
        (193, [96, 192, 193]),
        (10, [10]),
        (16, [16]),
        (17, [16, 17]),
    ],
)
def test_steps_of_recurrent_groups_end_on_blocks_and_at_the_last_resume_point(prompt, expected):
    assert ends(ImitatedEngine(table_of(full(0), recurrent(1)), 100), prompt) == expected


def test_a_step_ends_at_a_junction():
    engine = ImitatedEngine(table_of(full(0), recurrent(1)), 1_000)
    assert ends(engine, 200, 32, 96) == [96, 192, 200]
    assert ends(engine, 200, 96, 96) == [192, 200]


def test_a_drafter_makes_the_last_state_one_block_earlier():
    engine = ImitatedEngine(table_of(full(0, drafter=True), recurrent(1)), 1_000)
    assert ends(engine, 200) == [176, 200]
    assert ends(engine, 192) == [176, 192]
    assert ends(engine, 31) == [31]


def test_a_block_wider_than_a_step_is_reached_in_several():
    engine = ImitatedEngine(table_of(full(0, 96), recurrent(1, 96)), 40)
    assert ends(engine, 200) == [40, 80, 96, 136, 176, 192, 200]


def test_decode_is_looked_at_where_a_page_is_complete_and_at_its_end():
    engine = ImitatedEngine(table_of(*HYBRID), 100)
    assert list(engine.decode_ends(100, 130)) == [112, 128, 130]
    assert list(engine.decode_ends(100, 128)) == [112, 128]
    assert list(engine.decode_ends(100, 100)) == []


def test_a_window_lets_go_of_what_no_token_of_the_step_looks_at():
    tables = ImitatedEngine(table_of(*HYBRID), 100).tables(120, 200)
    assert [len(blocks) for blocks in tables] == [13, 0, 0, 13]
    assert NULL_BLOCK not in list(tables[0])
    # The token at 120 sees 40 tokens with itself: from 81 on, which lies in page 5.
    assert tables[3].index(NULL_BLOCK + 1) == 5


# Hits.


@pytest.mark.parametrize("retention", [None, 0, 64])
@pytest.mark.parametrize("name", ["chats", "agents", "documents"])
def test_a_trace_that_fits_loses_nothing_when_it_is_asked_again(name, retention):
    requests = generate(name, requests=25, context_tokens=1_000, seed=5).requests
    replay = replay_of(*HYBRID, retention=retention)
    for request in requests:
        replay.serve(request)
    for request in requests:
        now, best = replay.resume(request)
        assert now == best == (request.prompt_tokens - 1) // 16 * 16
        assert replay.serve(request) == best
    assert all(pool.evicted_pages == 0 for pool in replay.index.residency().values())


@pytest.mark.parametrize(("slots", "kept"), [(8, 0), (9, 1), (25, 2), (60, 4)])
def test_what_a_trace_loses_is_what_the_pool_cannot_hold(slots, kept):
    """A context of ten pages resumes with nine, since its last token is recomputed."""
    replay = replay_of(full(0), slots=slots)
    trace = contexts(4, 160)
    assert [replay.serve(request) for request in trace.requests[:4]] == [0] * 4
    restorable = [replay.resume(r) for r in trace.requests[:4]]
    assert [now == best for now, best in restorable] == [False] * (4 - kept) + [True] * kept


def test_one_recurrent_slot_holds_the_state_of_the_latest_prompt_only():
    replay = replay_of(full(0), recurrent(1), slots={0: 1_000, 1: 1})
    first, second = asked("a:100"), asked("b:100")
    for request in (first, second):
        replay.serve(request)
    assert [replay.resume(r)[0] for r in (first, second)] == [0, 96]


def test_the_third_sibling_hits_at_the_junction_that_the_second_has_found():
    replay = replay_of(full(0), recurrent(1))
    siblings = [asked("shared:96", f"own-{i}:60") for i in range(3)]
    assert [replay.serve(request) for request in siblings] == [0, 0, 96]


def test_what_was_generated_is_hit_by_the_next_turn():
    replay = replay_of(full(0), window(1, 40), retention=None)
    replay.serve(asked("question:50", output="answer:60"))
    # The last generated token is never computed: 109 tokens are, in 6 blocks.
    assert replay.serve(asked("question:50", "answer:60", "more:50")) == 96


def test_generated_states_are_kept_by_the_retention_interval():
    for retention, hit in ((0, 48), (32, 96), (None, 96)):
        replay = replay_of(full(0), recurrent(1), retention=retention)
        replay.serve(asked("question:50", output="answer:60"))
        assert replay.serve(asked("question:50", "answer:60", "more:50")) == hit


# What is not stored.


def test_states_outside_the_retention_interval_are_counted():
    replay = replay_of(full(0), recurrent(1), recurrent(2))
    replay.serve(asked("a:200"))
    assert replay.tally.not_stored_pages == {"not_retained": 4}


def test_pages_that_found_no_room_are_counted_with_the_states_behind_them():
    replay = replay_of(full(0), recurrent(1), slots={0: 5, 1: 0})
    replay.serve(asked("a:200"))
    assert replay.tally.not_stored_pages == {"no_room": 7, "not_retained": 2, "request_gone": 1}


def test_states_between_boundaries_are_counted():
    replay = replay_of(full(0, 32), recurrent(1, 16), step_tokens=48, retention=None)
    replay.serve(asked("a:50"))
    assert replay.tally.not_stored_pages == {"off_alignment": 1}


def test_nothing_stays_leased_when_requests_have_ended():
    replay = replay_of(*HYBRID, slots=20)
    for request in generate("agents", requests=40, context_tokens=1_000, seed=0).requests:
        replay.serve(request)
    assert {replay.index.room_slots(group) for group in (0, 2, 3)} == {20}


def useless_pages(
    replay: Replay, table: GroupTable, request: TraceRequest, boundary_tokens: int
) -> list[tuple[int, int]]:
    """(group_id, page) that resuming there reads and that the index thinks nothing can use."""
    prefix = Prefix(table, block_hashes(request.prompt, table.hash_block_tokens))
    pages = {
        (group.group_id, page): replay.index._pools[group.group_id].pages[
            prefix.block_hash(group.group_id, page)
        ]
        for group in table.groups
        for page in needed_pages(group, 0, boundary_tokens)
    }
    return [key for key, page in pages.items() if not page.uses]


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("name", ["agents", "documents"])
@pytest.mark.parametrize(
    "groups",
    [
        HYBRID,
        (full(0, 32), recurrent(1), window(2, 70)),
        (full(0, drafter=True), recurrent(1)),
        (full(0), window(1, 40, drafter=True), recurrent(2)),
    ],
    ids=["hybrid", "unequal spans", "drafter", "window drafter"],
)
def test_where_every_boundary_is_kept_no_hit_reads_what_nothing_can_use(groups, name, shared):
    table = table_of(*groups)
    replay = Replay(pools_of(table, 90, None, shared=shared), 96)
    hits = 0
    for request in generate(name, requests=80, context_tokens=1_000, seed=1).requests:
        boundary, _ = replay.resume(request)
        hits += boundary > 0
        assert boundary == 0 or useless_pages(replay, table, request, boundary) == []
        replay.serve(request)
    assert hits > 10


# The connector.


def prefill_only(request: TraceRequest) -> TraceRequest:
    return TraceRequest(0.0, request.prompt, Segment("none", 0))


class ConnectorRun:
    """The same requests through the connector's own halves, by the same steps."""

    def __init__(
        self, *specs, retention: int | None, partition: str, units: int, has_drafter: bool = False
    ) -> None:
        speculative = SimpleNamespace(use_eagle_block_drop=lambda: True) if has_drafter else None
        self.scripted = ScriptedEngine(
            *specs,
            units=units,
            retention="none" if retention is None else retention,
            extra={"cpu_group_partition": partition, "mamba_state_slots_reference_tokens": 320},
            num_blocks=1_024,
            max_model_tokens=100_000,
            speculative=speculative,
        )
        self.table = self.scripted.table
        self.served = 0

    def serve(self, request: TraceRequest, steps: ImitatedEngine) -> int:
        prompt = request.prompt_tokens
        hashes = block_hashes(request.prompt, self.table.hash_block_tokens)
        running = Request(f"request {self.served}", prompt, hashes)
        self.served += 1
        hit = self.scripted.start(running)
        junction = running.shared_prefix_boundary or 0
        for end in steps.prefill_ends(prompt, hit, junction):
            self.scripted.compute(running, end)
            self.scripted.slide(running)
        self.scripted.finish(running)
        return hit

    def pages(self) -> dict[int, set[bytes]]:
        return known_pages(self.scripted.index, self.table)

    def pools(self, retention: int | None, *, shared: bool) -> Pools:
        """The same pools, cut as the connector's were."""
        index = self.scripted.index
        if index.arena:
            plan = PoolPlan({}, 0, 0, 0, extents=index.arena.plan)
            return Pools(Scheme.ELASTIC, plan, RetentionRule(self.table, retention))
        slots = {group_id: pool.capacity_slots for group_id, pool in index.residency().items()}
        return pools_of(self.table, slots, retention, shared=shared)

    def moved_pages(self) -> int:
        self.scripted.half.balance.take_stats()
        return sum(
            self.scripted.stats.counter("moved_pages", group_id)
            for group_id in self.table.group_ids
        )


def known_pages(index, table: GroupTable) -> dict[int, set[bytes]]:
    return {group_id: set(index._pools[group_id].pages) for group_id in table.group_ids}


MODELS = {
    "recurrent": (full_spec(), ring_spec(), state_spec(), state_spec()),
    "window": (full_spec(), window_spec(16, 70)),
    "drafter": (full_spec(), window_spec(16, 70), state_spec()),
    "all": (full_spec(32), window_spec(16, 70), ring_spec(), state_spec(64, state_bytes=200)),
}


TRACE = [
    *generate("agents", requests=15, context_tokens=1_200, seed=1).requests,
    *generate("documents", requests=15, context_tokens=900, seed=2).requests,
]


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("partition", ["auto", "static", "off"])
@pytest.mark.parametrize("retention", [None, 0, 128])
def test_the_connector_hits_keeps_and_evicts_the_same(model, partition, retention):
    connector = ConnectorRun(
        *MODELS[model],
        retention=retention,
        partition=partition,
        units=40,
        has_drafter=model == "drafter",
    )
    table = connector.table
    assert any(group.is_drafter for group in table.groups) == (model == "drafter")
    replay = Replay(connector.pools(retention, shared=partition == "off"), 128)
    steps = ImitatedEngine(table, 128)
    hits = 0
    for request in map(prefill_only, TRACE):
        hit = replay.serve(request)
        assert hit == connector.serve(request, steps)
        assert known_pages(replay.index, table) == connector.pages()
        hits += hit > 0
    assert hits > 5
    assert any(pool.evicted_pages for pool in replay.index.residency().values())
    for reason in ("no_room", "not_retained", "request_gone", "null_block", "off_alignment"):
        assert replay.tally.not_stored_pages[reason] == connector.scripted.not_stored(reason)


def test_the_connector_moves_as_many_pages_where_extents_hold_several():
    connector = ConnectorRun(*MODELS["all"], retention=0, partition="auto", units=80)
    replay = Replay(connector.pools(0, shared=False), 128)
    steps = ImitatedEngine(connector.table, 128)
    assert replay.index.arena.plan.slots_per_extent[1] > 1
    for request in map(prefill_only, [*TRACE, *contexts(60, 200).requests, *TRACE]):
        assert replay.serve(request) == connector.serve(request, steps)
        assert known_pages(replay.index, connector.table) == connector.pages()
    assert replay.tally.moved_pages == connector.moved_pages() > 0


def test_the_comparison_sees_another_step():
    connector = ConnectorRun(*MODELS["recurrent"], retention=None, partition="static", units=40)
    replay = Replay(pools_of(connector.table, 40, None), 128)
    request = asked("a:500", output="none:0")
    replay.serve(request)
    connector.serve(request, ImitatedEngine(connector.table, 64))
    assert known_pages(replay.index, connector.table) != connector.pages()


def test_every_recurrent_state_is_offered_where_a_step_ends():
    table = table_of(full(0), recurrent(1, 16), recurrent(2, 32))
    engine = ImitatedEngine(table, 100)
    assert [g.group_id for g in table.groups if g.kind is Kind.RECURRENT] == [1, 2]
    assert [engine.state_group_ids(end) for end in (16, 32, 40)] == [[1], [1, 2], []]
    assert all(a < b for a, b in pairwise(ends(engine, 333)))
