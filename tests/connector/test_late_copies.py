"""Copies that end later, on a stream of their own: order, visibility, failures, the disk."""

import pytest

from lmc_grouped.core import extent_plan
from lmc_grouped.core.extents import ExtentPlan
from tests.connector.disk_lab import DiskEngine
from tests.connector.late_rung import copy_late
from tests.connector.scripted import ScriptedEngine
from tests.connector.test_overlap import BOUNDARY, SPECS, TOKENS, begin_load


def step_until_received(engine: ScriptedEngine, request) -> None:
    for _ in range(1000):
        if request.request_id in engine.step().received:
            return
    raise AssertionError("the load never ended")


def test_pages_that_move_while_copies_end_late_come_back_right(monkeypatch):
    """Moves run on the thread, copies of pages in a stream beside it."""
    monkeypatch.setattr(extent_plan, "_candidates", lambda groups, budget_bytes: iter([256]))
    monkeypatch.setattr(ExtentPlan, "reserve_extents", 1)
    engine = ScriptedEngine(
        *SPECS,
        retention=0,
        partition="auto",
        budget_bytes=256 * 14,
        num_blocks=1024,
        extra={"mamba_state_slots_reference_tokens": 64},
    )
    streams = copy_late(engine)
    for turn in range(30):
        tokens = 40 if turn % 7 else 200
        name = f"r{turn}"
        engine.finish(engine.prefill(name, tokens, prompt=f"p{turn % 9}", chunk=64))
        again = engine.request(f"{name} again", tokens, prompt=f"p{turn % 9}")
        external = engine.ask(again)
        engine.allocate(again, external)
        engine.wipe()
        if external:
            step_until_received(engine, again)
            assert engine.wrong_pages(again, external) == []
        engine.finish(again)
    assert sum(engine.stats.counter("moved_pages", group_id) for group_id in (0, 1, 2)) > 0
    assert streams[0].calls.count("load") > 10


def overwrite(engine: ScriptedEngine) -> None:
    """What the next step may do to blocks that were freed."""
    engine.wipe()


def test_a_store_that_ends_late_is_visible_late_and_has_the_right_bytes():
    engine = ScriptedEngine(*SPECS, world_size=2)
    for stream in copy_late(engine):
        stream.polls = 20
    engine.finish(engine.prefill("first", TOKENS))
    again = engine.request("again", TOKENS)
    assert engine.ask(again) == 0
    overwrite(engine)
    for _ in range(20):
        engine.step()
    assert engine.ask(again) == BOUNDARY
    engine.allocate(again, BOUNDARY)
    step_until_received(engine, again)
    assert engine.wrong_pages(again, BOUNDARY) == []
    assert not any(engine.held_slots().values())


def test_without_the_order_before_compute_the_bytes_would_be_wrong():
    """Control of the test above: the blocks are overwritten before they were read."""
    engine = ScriptedEngine(*SPECS)
    streams = copy_late(engine)
    streams[0].is_ordered = False
    streams[0].polls = 10**6
    engine.finish(engine.prefill("first", TOKENS))
    overwrite(engine)
    streams[0].flush()
    streams[0].polls = 0
    for ticket in tickets_under_way(engine):
        ticket._polls = 0
    engine.step()
    again = engine.request("again", TOKENS)
    engine.allocate(again, engine.ask(again))
    step_until_received(engine, again)
    assert engine.wrong_pages(again, BOUNDARY)


def tickets_under_way(engine: ScriptedEngine):
    line = engine.workers[0].worker_half.line
    return [ticket for future in line._under_way.values() for ticket in future.result().tickets]


def test_stores_and_loads_follow_the_engines_work_and_it_follows_the_stores():
    engine = ScriptedEngine(*SPECS)
    (stream,) = copy_late(engine)
    engine.finish(engine.prefill("first", TOKENS))
    assert stream.calls[:5] == ["after_compute", "store", "store", "store", "before_compute"]
    for _ in range(4):
        engine.step()
    stream.calls.clear()
    engine.step()
    assert stream.calls == []
    begin_load(engine)
    engine.step()
    assert stream.calls == ["after_compute", "load", "load", "load"]


def test_a_store_that_fails_late_is_never_visible():
    engine = ScriptedEngine(*SPECS)
    (stream,) = copy_late(engine)
    stream.failure = "the device said no"
    engine.finish(engine.prefill("first", TOKENS))
    for _ in range(4):
        engine.step()
    assert engine.stats.counter("failed_stores") > 0
    assert engine.ask(engine.request("again", TOKENS)) == 0
    assert not any(engine.held_slots().values())


def test_a_load_that_fails_late_is_a_failed_receive():
    engine = ScriptedEngine(*SPECS)
    engine.finish(engine.prefill("first", TOKENS))
    (stream,) = copy_late(engine)
    stream.failure = "the device said no"
    begin_load(engine)
    failed = set()
    for _ in range(4):
        failed |= engine.step().failed
    assert failed == {"second"}
    assert engine.stats.counter("failed_loads") == 1


# The disk gets pages when their stores have ended.


@pytest.fixture
def disk_engine(tmp_path):
    engine = DiskEngine(tmp_path, *SPECS)
    yield engine
    engine.close()


def test_a_page_goes_to_disk_when_its_late_store_has_ended(disk_engine):
    (stream,) = copy_late(disk_engine)
    stream.polls = 20
    disk_engine.finish(disk_engine.prefill("first", TOKENS))
    (tier,) = disk_engine.tiers
    tier.flush()
    assert list(tier.stored_pages()) == []
    assert disk_engine.disk.writes.writing_bytes > 0
    disk_engine.settle()
    assert len(list(tier.stored_pages())) > 0
    assert disk_engine.disk.writes.writing_bytes == 0


def test_a_late_store_of_before_a_reset_is_not_written(disk_engine):
    (stream,) = copy_late(disk_engine)
    stream.polls = 20
    disk_engine.finish(disk_engine.prefill("first", TOKENS))
    disk_engine.connector.reset_cache()
    disk_engine.settle()
    for _ in range(20):
        disk_engine.step()
    (tier,) = disk_engine.tiers
    tier.flush()
    assert list(tier.stored_pages()) == []
    assert disk_engine.stats.counter("not_written_pages", "dropped") > 0


def test_a_clean_stop_writes_the_pages_of_late_stores(tmp_path):
    engine = DiskEngine(tmp_path, *SPECS)
    (stream,) = copy_late(engine)
    stream.polls = 10**6
    engine.finish(engine.prefill("first", TOKENS))
    engine.close()
    again = DiskEngine(tmp_path, *SPECS)
    assert again.restore("again", TOKENS) == BOUNDARY
    again.close()
