"""The whole connector under random load: many requests, slow and failing ranks, resets.

Whatever happens, every byte that a request gets back is right, every page that
can be found holds what it must on every rank, and in the end nothing is held.
"""

from random import Random
from typing import Any

import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.connector.scripted import Request, ScriptedEngine, StepResult
from tests.specs import full_spec, ring_spec, state_spec, window_spec

RANKS = 2
MODELS = {
    "attention": [full_spec(16)],
    "window": [window_spec(16, 40), full_spec(32)],
    "states": [full_spec(16), ring_spec(8), state_spec(16), state_spec(16, state_bytes=50)],
    "everything": [full_spec(32), ring_spec(8), window_spec(16, 40), state_spec(32)],
}


class ConnectorMachine(RuleBasedStateMachine):
    """Requests wait, load, run, are preempted, end; reports arrive when they like."""

    @initialize(
        model=st.sampled_from(sorted(MODELS)),
        units=st.integers(1, 9),
        retention=st.sampled_from(["none", 0, 64]),
        partition=st.sampled_from(["auto", "static", "off"]),
    )
    def start(self, model: str, units: int, retention: int | str, partition: str) -> None:
        self.engine = self.make_engine(
            MODELS[model],
            units=units,
            world_size=RANKS,
            num_blocks=1024,
            retention=retention,
            partition=partition,
            extra={"mamba_state_slots_reference_tokens": 32 if partition == "auto" else 128},
        )
        self.waiting: list[Request] = []
        self.running: list[Request] = []
        self.loading: dict[str, tuple[Request, int]] = {}
        self.late: list[StepResult] = []
        self.failed: set[str] = set()
        self.count = 0

    def make_engine(self, specs: list[Any], **options: Any) -> ScriptedEngine:
        return ScriptedEngine(*specs, **options)

    def ask(self, request: Request) -> int | None:
        """One lookup; `None`: the request has to wait."""
        return self.engine.ask(request)

    def start_alone(self, request: Request) -> None:
        """Look up, allocate and load, with nobody in its way."""
        self.engine.start(request)

    @rule(
        prompt=st.sampled_from("pq"),
        tokens=st.integers(1, 150),
        shared=st.sampled_from([0, 32, 64, 96]),
    )
    def arrive(self, prompt: str, tokens: int, shared: int) -> None:
        if len(self.waiting) + len(self.running) + len(self.loading) < 6:
            self.count += 1
            request = self.engine.request(f"r{self.count}", tokens, prompt, shared)
            self.waiting.append(request)

    @rule(tokens=st.integers(80, 150), shared=st.sampled_from([32, 64, 96, 150]))
    def serve(self, tokens: int, shared: int) -> None:
        """A request from its start to its end, with nobody in its way."""
        self.deliver()
        self.count += 1
        request = self.engine.request(f"r{self.count}", tokens, "q", shared)
        self.engine.failing = set()
        self.start_alone(request)
        restored = request.num_computed_tokens
        if restored:
            assert self.engine.wrong_pages(request, restored) == []
        for end in (*range(restored // 32 * 32 + 32, tokens, 32), tokens):
            self.engine.slide(request)
            self.engine.compute(request, end)
        self.engine.finish(request)

    @rule(seed=st.integers(0, 2**32 - 1), failures=st.sampled_from([0, 0, 0, 1, 2]))
    def step(self, seed: int, failures: int) -> None:
        """One engine step; loads of admitted requests go out with it."""
        engine, rng = self.engine, Random(seed)
        for request in list(self.waiting):
            self._admit(request, rng)
        scheduled = {}
        for request in self.running:
            left = request.num_tokens - request.num_computed_tokens
            new = min(left, rng.choice([0, 1, 16, 17, 32, 64, 200]))
            if new:
                engine.slide(request)
                scheduled[request] = new
        groups = engine.table.group_ids
        engine.failing = {(rng.randrange(RANKS), rng.choice(groups)) for _ in range(failures)}
        result = engine.step(scheduled, acknowledge=False)
        for request, new in scheduled.items():
            request.num_computed_tokens += new
        self.late.append(result)
        if rng.random() < 0.5:
            self.deliver()

    @rule()
    def deliver(self) -> None:
        """All reports so far arrive."""
        for result in self.late:
            self.engine.acknowledge(*result.reports)
            for request_id in result.received:
                self._received(request_id, failed=request_id in result.failed)
        self.late.clear()

    @rule()
    def one_rank_is_early(self) -> None:
        """The first rank's reports of the oldest step arrive alone."""
        if self.late and self.late[0].reports[0] is not None:
            self.engine.acknowledge(self.late[0].reports[0])
            self.late[0].reports[0] = None

    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        everybody = self.waiting + self.running
        if everybody:
            request = data.draw(st.sampled_from(everybody))
            (self.waiting if request in self.waiting else self.running).remove(request)
            self.engine.finish(request)

    @rule(data=st.data())
    def preempt(self, data: st.DataObject) -> None:
        if self.running:
            request = data.draw(st.sampled_from(self.running))
            self.running.remove(request)
            self.engine.preempt(request)
            self.waiting.append(request)

    @rule()
    def reset(self) -> None:
        self.engine.connector.reset_cache()

    def _admit(self, request: Request, rng: Random) -> None:
        engine = self.engine
        promised = self.ask(request)
        if promised is None:
            return
        assert promised < request.num_tokens
        assert promised % engine.table.alignment_tokens == 0
        if request.request_id in self.failed:
            assert promised == 0
        choice = rng.choice(["wait", "none", "less", "all", "all", "all"])
        if choice == "wait":
            return
        taken = promised if choice == "all" else 0
        if choice == "less" and promised:
            taken = rng.randint(1, promised // 16) * 16
        engine.allocate(request, taken)
        self.waiting.remove(request)
        if taken:
            self.loading[request.request_id] = (request, taken)
        else:
            self.running.append(request)

    def _received(self, request_id: str, *, failed: bool) -> None:
        engine = self.engine
        request, taken = self.loading.pop(request_id)
        if failed:
            self.failed.add(request_id)
            engine.preempt(request)
            self.waiting.append(request)
            return
        assert engine.wrong_pages(request, taken) == []
        engine.announce(request, 0)
        request.num_computed_tokens = taken
        self.running.append(request)

    @invariant()
    def every_page_that_can_be_found_is_right_on_every_rank(self) -> None:
        engine = self.engine
        for group in engine.table.groups:
            for block_hash, page in engine.index._pools[group.group_id].pages.items():
                if not page.ready:
                    continue
                for rank, worker in enumerate(engine.workers):
                    row = worker.worker_half.region.page(group.group_id, page.slot)
                    expected = engine.content_of(rank, group, block_hash)
                    assert torch.equal(torch.from_numpy(row), expected)

    @invariant()
    def nothing_is_readable_before_every_rank_confirmed_it(self) -> None:
        for store in self.engine.half.stores._storing.values():
            assert not any(self.engine.index.has(*ref) for ref in store.refs)

    @invariant()
    def the_engine_gets_every_block_back(self) -> None:
        offers = {
            offer.block_id
            for state in self.engine.half.tier.requests.values()
            for offer in state.offers
        }
        assert 0 <= self.engine.pinned_blocks() <= len(offers)

    def teardown(self) -> None:
        if not hasattr(self, "engine"):
            return
        self.deliver()
        for request in self.waiting + self.running:
            self.engine.finish(request)
        half: Any = self.engine.half
        assert not half.tier.requests
        assert not half.stores._storing
        assert not half.lookups._loading
        assert not half._acknowledged
        assert not half._failures
        assert set(self.engine.held_slots().values()) == {0}
        assert self.engine.pinned_blocks() == 0
        assert self.engine.pool.get_num_free_blocks() == self.engine.pool.num_gpu_blocks - 1


TestConnectorMachine = ConnectorMachine.TestCase
TestConnectorMachine.settings = settings(
    max_examples=40,
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
