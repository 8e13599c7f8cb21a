"""Copies beside forward passes: what waits, what does not, and which bytes arrive."""

from threading import Event, Thread

import pytest

from lmc_grouped.connector import worker
from lmc_grouped.connector.messages import GroupMoves, MoveOperation
from tests.connector.scripted import ScriptedEngine
from tests.specs import full_spec, state_spec, window_spec

SPECS = full_spec(16), window_spec(16, 40), state_spec(16, state_bytes=40)
TOKENS, BOUNDARY = 100, 96


class Gate:
    """Holds up every load of one rank until it is opened."""

    def __init__(self, engine: ScriptedEngine, rank: int = 0) -> None:
        self.entered, self._opened = Event(), Event()
        for copier in engine.workers[rank].worker_half.copiers.values():
            copier.load = self._held(copier.load)

    def _held(self, load):
        def held(*ids):
            self.entered.set()
            assert self._opened.wait(60)
            return load(*ids)

        return held

    def open(self) -> None:
        self._opened.set()


def holding_a_prompt(world_size: int = 1) -> ScriptedEngine:
    """An engine that holds one prompt in host memory only."""
    engine = ScriptedEngine(*SPECS, world_size=world_size)
    engine.finish(engine.prefill("first", TOKENS))
    engine.wipe()
    return engine


@pytest.fixture
def stored() -> ScriptedEngine:
    return holding_a_prompt()


def begin_load(engine: ScriptedEngine, name: str = "second"):
    """A request that waits for its load."""
    request = engine.request(name, TOKENS)
    external = engine.ask(request)
    engine.allocate(request, external)
    request.num_computed_tokens = external
    return request


def test_others_compute_and_store_while_a_load_is_under_way(stored):
    gate = Gate(stored)
    second = begin_load(stored)
    other = stored.request("other", TOKENS, prompt="q")
    stored.start_without_load(other)
    result = stored.step({other: 64}, settle=False)
    other.num_computed_tokens = 64
    assert gate.entered.wait(60)
    assert result.received == set()
    assert any(stored.held_slots().values())
    assert stored.wrong_pages(second, BOUNDARY)
    # The other request's pages are stored meanwhile, and visible.
    assert stored.ask(stored.request("third", TOKENS, prompt="q")) == 64
    gate.open()
    result = stored.step({other: 32})
    assert result.received == {"second"}
    assert stored.wrong_pages(second, BOUNDARY) == []


def test_a_step_that_computes_nothing_waits_for_loads_but_not_for_ever(stored, monkeypatch):
    monkeypatch.setattr(worker, "IDLE_WAIT_SECONDS", 0.001)
    gate = Gate(stored)
    second = begin_load(stored)
    assert stored.step(settle=False).received == set()
    monkeypatch.setattr(worker, "IDLE_WAIT_SECONDS", 60)
    opener = Thread(target=gate.open)
    opener.start()
    while "second" not in stored.step(settle=False).received:
        pass
    opener.join()
    assert stored.wrong_pages(second, BOUNDARY) == []


def test_slots_of_a_load_are_held_until_its_slowest_rank_has_ended():
    engine = holding_a_prompt(world_size=2)
    gate = Gate(engine, rank=1)
    begin_load(engine)
    engine.step(settle=False)
    fast = engine.workers[0].worker_half.line
    while fast.running:
        fast.wait_for_thread(60)
    engine.step(settle=False)
    assert any(engine.held_slots().values())
    gate.open()
    engine.step()
    assert not any(engine.held_slots().values())


def test_a_request_that_is_aborted_while_it_loads_holds_its_pages_until_the_load_has_ended(stored):
    gate = Gate(stored)
    second = begin_load(stored)
    stored.step(settle=False)
    stored.connector.request_finished_all_groups(second, ())
    assert any(stored.held_slots().values())
    gate.open()
    result = stored.step()
    assert "second" in result.received
    assert not any(stored.held_slots().values())


def test_an_error_that_is_no_failed_copy_stops_the_engine(stored):
    def bug(*ids):
        raise ZeroDivisionError

    begin_load(stored)
    for copier in stored.workers[0].worker_half.copiers.values():
        copier.load = bug
    with pytest.raises(ZeroDivisionError):
        stored.step()


def test_moves_run_behind_the_loads_planned_before_them(stored):
    half = stored.workers[0].worker_half
    order = []
    gate = Gate(stored)
    for copier in half.copiers.values():
        copier.load = noted(order, "load", copier.load)
        copier.move = noted(order, "move", copier.move)
    begin_load(stored)
    metadata = stored.step(settle=False).metadata
    group_id, *_ = half.copiers
    metadata.moves = [MoveOperation(10**6, (GroupMoves(group_id, [0], [1]),))]
    half.begin_moves(metadata)
    assert gate.entered.wait(60)
    gate.open()
    while half.line.running:
        half.line.wait_for_thread(60)
    assert order == ["load"] * len(half.copiers) + ["move"]


def noted(order, name, copy):
    def noted_copy(*ids):
        result = copy(*ids)
        order.append(name)
        return result

    return noted_copy


def test_a_worker_that_is_closed_ends_the_loads_it_has_begun(stored):
    second = begin_load(stored)
    stored.step(settle=False)
    for each in stored.workers:
        each.shutdown()
    assert stored.wrong_pages(second, BOUNDARY) == []
