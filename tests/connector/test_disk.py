"""Host memory and disk together: what is written, what comes back, what goes wrong."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.connector.disk_lab import DiskEngine, flip_byte, held_reads, held_writes
from tests.specs import full_spec, ring_spec, state_spec, window_spec

HYBRID = full_spec(), ring_spec(8), state_spec(), window_spec(16, 33)
"""Full attention, a scratch ring, recurrent state and a window of two pages and a token."""


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., DiskEngine]]:
    """Starts engines over one directory; those before are stopped cleanly first."""
    engines: list[DiskEngine] = []

    def start_one(*specs: Any, **options: Any) -> DiskEngine:
        for engine in engines:
            engine.close()
        engines.append(DiskEngine(tmp_path / "disk", *(specs or HYBRID), **options))
        return engines[-1]

    yield start_one
    for engine in engines:
        engine.close()


@pytest.mark.parametrize("world_size", [1, 2])
@pytest.mark.parametrize("partition", ["static", "auto", "off"])
def test_a_prefix_comes_back_after_a_restart(start, world_size, partition):
    engine = start(world_size=world_size, partition=partition)
    engine.store("first", 100)
    assert engine.stats.counter("written_bytes", 0) == engine.stats.counter("stored_bytes", 0) > 0
    again = start(world_size=world_size, partition=partition)
    assert all(pool.resident_pages == 0 for pool in again.index.residency().values())
    assert again.restore("second", 100) == 96
    assert again.stats.counter("read_tokens", 2) == 16
    assert again.nothing_is_held()


def test_a_prefix_comes_back_after_host_memory_was_flooded(start):
    engine = start(units=8)
    engine.store("first", 100)
    engine.flood(120, times=3)
    assert not engine.index.has(*engine.ref(engine.request("first", 100), 2, 5))
    assert engine.restore("second", 100) == 96
    assert engine.nothing_is_held()


def test_what_host_memory_holds_is_not_read_again(start):
    engine = start()
    engine.store("first", 100)
    request = engine.request("second", 100)
    assert engine.ask(request) == 96, "an answer at once"
    engine.finish(request)
    assert engine.stats.counter("read_tokens", 0) == 0


def test_only_the_pages_that_host_memory_lacks_are_read(start):
    engine = start(full_spec(), units=8)
    engine.store("first", 120)
    engine.store("other", 60, prompt="other")
    kept = sum(engine.index.has(*engine.ref(engine.request("r", 120), 0, n)) for n in range(7))
    assert 0 < kept < 7
    assert engine.restore("second", 120) == 112
    assert engine.stats.counter("read_tokens", 0) == 16 * (7 - kept)


def test_the_engines_own_prefix_does_not_hide_that_earlier_pages_are_needed(start):
    start(full_spec()).store("first", 100)
    again = start(full_spec())
    assert again.restore("second", 100, local=48) == 48
    assert again.restore("third", 100) == 96


def test_while_pages_are_read_the_engine_is_told_to_ask_again(start, monkeypatch):
    start().store("first", 100)
    again = start()
    request = again.request("second", 100)
    with held_reads(monkeypatch) as may_end:
        for _ in range(5):
            assert again.is_waiting(request)
            again.step()
        assert len(again.disk.promotions._reading) == 1, "asking again reads nothing twice"
        may_end.set()
        assert again.ask_until_answered(request) == 96
    again.finish(request)


def test_two_requests_that_wait_for_the_same_pages_read_them_once(start, monkeypatch):
    start().store("first", 100)
    again = start()
    requests = [again.request(name, 100) for name in ("second", "third")]
    with held_reads(monkeypatch) as may_end:
        assert all(again.is_waiting(request) for request in requests)
        may_end.set()
        assert [again.ask_until_answered(request) for request in requests] == [96, 96]
    assert again.stats.counter("read_tokens", 0) == 96
    for request in requests:
        again.finish(request)
    assert again.nothing_is_held()


def test_a_request_that_is_aborted_while_it_waits_leaves_nothing(start, monkeypatch):
    start().store("first", 100)
    again = start()
    request = again.request("second", 100)
    with held_reads(monkeypatch) as may_end:
        assert again.is_waiting(request)
        again.step()
        again.finish(request)
        may_end.set()
        again.until(lambda: not again.disk.promotions._reading)
    assert again.nothing_is_held()
    assert again.restore("third", 100) == 96


def test_a_request_does_not_wait_for_ever(start, monkeypatch):
    start().store("first", 100)
    again = start()
    clock = [0.0]
    again.disk.promotions.now = lambda: clock[0]
    request = again.request("second", 100)
    with held_reads(monkeypatch):
        assert again.is_waiting(request)
        again.step()
        clock[0] = 31.0
        assert again.ask(request) == 0
        assert again.stats.counter("failed_promotions", "timeout") == 1
    again.until(lambda: not again.disk.promotions._reading)
    again.finish(request)
    assert again.nothing_is_held()


def test_a_page_stored_behind_pages_that_are_being_read_waits_for_them(start, monkeypatch):
    start(full_spec()).store("first", 100)
    again = start(full_spec())
    waiting, computing = again.request("second", 100), again.request("third", 120)
    with held_reads(monkeypatch) as may_end:
        assert again.is_waiting(waiting)
        again.step()
        again.allocate(computing)
        again.compute(computing, 112)
        assert not again.index.has(*again.ref(computing, 0, 6))
        may_end.set()
        assert again.ask_until_answered(waiting) == 96
    assert again.index.has(*again.ref(computing, 0, 6))
    again.finish(waiting)
    again.finish(computing)
    again.settle()
    assert again.nothing_is_held()


def test_without_room_in_host_memory_the_answer_is_what_it_has(start):
    start(full_spec(), units=8).store("first", 100)
    again = start(full_spec(), units=8)
    running = again.request("running", 120, prompt="running")
    again.allocate(running)
    again.compute(running, 120)
    again.settle()
    request = again.request("second", 100)
    assert again.ask(request) == 0
    assert again.ask(request) == 0
    assert again.stats.counter("failed_promotions", "no_room") == 1
    again.finish(running)
    again.finish(request)
    assert again.restore("third", 100) == 96


def test_room_that_writes_will_give_is_waited_for(start, monkeypatch):
    start(full_spec(), units=8).store("first", 100)
    again = start(full_spec(), units=8)
    again.disk.writes._limit_bytes = 10**6
    running = again.request("running", 120, prompt="running")
    with held_writes(monkeypatch) as may_end:
        again.allocate(running)
        again.compute(running, 120)
        again.finish(running)
        request = again.request("second", 100)
        assert again.is_waiting(request)
        may_end.set()
        assert again.ask_until_answered(request) == 96
    again.finish(request)


def test_pages_that_were_read_stay_until_the_request_has_loaded_them(start):
    start(full_spec(), units=12).store("first", 100)
    again = start(full_spec(), units=12)
    request = again.request("second", 100)
    assert again.is_waiting(request)
    again.until(lambda: not again.disk.promotions._reading)
    again.flood(150, times=2)
    assert again.ask(request) == 96, "they were evicted before they were used"
    again.finish(request)


# What every rank has to have.


def test_a_page_that_one_rank_lacks_is_a_miss_for_the_boundary(start):
    engine = start(world_size=2)
    request = engine.store("first", 100)
    engine.tiers[1].drop([engine.ref(request, 2, 5)])
    again = start(world_size=2)
    assert again.restore("second", 100) == 80
    assert again.stats.counter("failed_promotions", "lost") == 0


def test_a_rank_that_could_not_store_a_page_does_not_write_it(start):
    engine = start(full_spec(), world_size=2)
    engine.failing = {(1, 0)}
    engine.store("first", 100)
    assert engine.stats.counter("not_written_pages", "store_failed") == 1
    assert engine.stats.counter("written_bytes", 0) == 0
    assert engine.nothing_is_held()
    assert start(full_spec(), world_size=2).restore("second", 100) == 0


# Damage.


@pytest.mark.parametrize(("group_id", "page", "left"), [(0, 3, 48), (2, 5, 80), (3, 5, 80)])
def test_a_damaged_page_costs_its_own_group_and_the_hit_shrinks(start, group_id, page, left):
    engine = start(world_size=2)
    request = engine.store("first", 100)
    group = engine.table.group(group_id)
    content = engine.content_of(1, group, engine.ref(request, group_id, page)[1])
    directory = engine.tiers[1].directory
    engine.close()
    flip_byte(directory, group_id, group.page_bytes, content.numpy().tobytes())
    again = start(world_size=2)
    assert again.restore("second", 100) == left
    assert again.stats.counter("damaged_pages", group_id) == 1
    assert again.stats.counter("failed_promotions", "lost") == 1
    assert again.tiers[1].stats().damaged_pages == 1
    others = {g.group_id for g in again.table.groups} - {group_id}
    for other in others:
        assert again.disk.index.has(*again.ref(request, other, 5)), f"group {other} lost a page"
    assert again.nothing_is_held()


def test_a_damaged_page_is_written_again_when_it_was_computed_again(start):
    engine = start(full_spec())
    request = engine.store("first", 100)
    directory = engine.tiers[0].directory
    content = engine.content_of(0, engine.table.group(0), engine.ref(request, 0, 3)[1])
    engine.close()
    flip_byte(directory, 0, 64, content.numpy().tobytes())
    again = start(full_spec())
    assert again.restore("second", 100) == 48
    again.store("third", 100)
    assert start(full_spec()).restore("fourth", 100) == 96


def test_a_page_that_left_the_disk_is_written_again_when_it_is_used(start):
    engine = start(full_spec())
    request = engine.store("first", 100)
    engine.tiers[0].drop([engine.ref(request, 0, 0)])
    engine.step()
    assert not engine.disk.index.has(*engine.ref(request, 0, 0))
    assert engine.restore("second", 100) == 96
    engine.settle()
    assert engine.disk.index.has(*engine.ref(request, 0, 0))


# The shape of what is written.


def test_beyond_the_bound_pages_wait_for_their_turn_without_being_held(start, monkeypatch):
    engine = start(full_spec(), units=16)
    assert engine.disk.writes._limit_bytes == 4 * 64
    with held_writes(monkeypatch) as may_end:
        request = engine.request("first", 180)
        engine.allocate(request)
        engine.compute(request, 180)
        engine.finish(request)
        assert engine.disk.writes.writing_bytes == 4 * 64
        assert engine.held_slots() == {0: 4}
        may_end.set()
        engine.settle()
    assert engine.stats.counter("written_tokens", 0) == 176


def test_a_page_that_leaves_memory_before_its_turn_is_counted(start, monkeypatch):
    engine = start(full_spec(), units=8)
    with held_writes(monkeypatch) as may_end:
        first = engine.prefill("first", 120)
        engine.finish(first)
        other = engine.prefill("other", 100, prompt="other")
        engine.finish(other)
        may_end.set()
        engine.settle()
    lost = engine.stats.counter("not_written_pages", "left_memory")
    assert lost > 0
    assert engine.stats.counter("written_tokens", 0) == 16 * (7 + 6 - lost)


def test_a_page_on_its_way_to_another_slot_is_written_when_it_has_arrived(start):
    engine = start(full_spec())
    request = engine.store("first", 100)
    ref = engine.ref(request, 0, 2)
    engine.tiers[0].drop([ref])
    engine.step()
    moving = {(0, engine.index.slots([ref])[0])}
    engine.disk.writes._moving_slots = lambda: moving
    engine.disk.writes.offer([ref])
    assert engine.disk.writes.take() == []
    moving.clear()
    engine.settle()
    assert engine.disk.index.has(*ref)


def test_a_full_disk_stops_writes_and_nothing_else(start, monkeypatch):
    import errno

    from lmc_grouped.host.disk.groupfile import GroupFile

    engine = start(full_spec())
    engine.store("first", 100)

    def full_disk(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(GroupFile, "write_pages", full_disk)
        patch.setattr("lmc_grouped.host.disk.writing.has_room", lambda *_: False)
        engine.store("second", 100, prompt="other")
    assert engine.stats.counter("not_written_pages", "no_space") == 6
    assert engine.stats.counter("stored_tokens", 0) == 192
    assert engine.nothing_is_held()
    assert engine.disk.writes._queued == {}
    assert engine.restore("third", 100, prompt="other") == 96
    again = start(full_spec())
    assert again.restore("fourth", 100) == 96
    assert again.restore("fifth", 100, prompt="other") == 0


def test_a_consumer_writes_nothing_and_a_producer_reads_nothing(start):
    start(full_spec(), role="kv_producer").store("first", 100)
    producer = start(full_spec(), role="kv_producer")
    request = producer.request("second", 100)
    assert producer.ask(request) == 0
    consumer = start(full_spec(), role="kv_consumer")
    assert consumer.restore("third", 100) == 96
    consumer.store("fourth", 100, prompt="other")
    assert consumer.stats.counter("written_tokens", 0) == 0


# Forgetting.


def test_a_reset_forgets_memory_and_disk(start):
    engine = start()
    engine.store("first", 100)
    assert engine.connector.reset_cache()
    assert engine.ask(engine.request("second", 100)) == 0
    engine.step()
    assert all(tier.stored_pages() == [] for tier in engine.tiers)
    assert engine.nothing_is_held()
    assert start().restore("third", 100) == 0


def test_what_was_on_its_way_when_the_cache_was_reset_does_not_come_back(start, monkeypatch):
    engine = start(full_spec(), units=16)
    with held_writes(monkeypatch) as may_end:
        engine.finish(engine.prefill("first", 100))
        writing = engine.disk.writes.writing_bytes // 64
        assert 0 < writing < 6
        engine.connector.reset_cache()
        engine.step()
        may_end.set()
        engine.settle()
    assert engine.stats.counter("not_written_pages", "dropped") == 6
    assert engine.disk.index.residency() == {0: (0, 0)}
    assert engine.nothing_is_held()
    engine.store("second", 60, prompt="other")
    again = start(full_spec())
    assert again.restore("third", 100) == 0
    assert again.restore("fourth", 60, prompt="other") == 48


def test_reports_that_are_older_than_a_reset_are_ignored(start):
    engine = start(full_spec())
    request = engine.request("first", 100)
    engine.allocate(request)
    engine.compute(request, 96, 100, acknowledge=False)
    engine.tiers[0].flush()
    late = engine.step(acknowledge=False)
    assert late.reports[0].disk.changes
    engine.connector.reset_cache()
    engine.connector.update_connector_output(_output(late.reports[0]))
    assert engine.disk.index.residency() == {0: (0, 0)}


def test_a_reset_while_a_request_waits_answers_it_from_nothing(start, monkeypatch):
    start().store("first", 100)
    again = start()
    request = again.request("second", 100)
    with held_reads(monkeypatch) as may_end:
        assert again.is_waiting(request)
        again.step()
        again.connector.reset_cache()
        may_end.set()
        assert again.ask_until_answered(request) == 0
    again.finish(request)
    assert again.nothing_is_held()


def test_attention_that_reaches_further_on_disk_marks_a_junction(start):
    engine = start(full_spec(), state_spec(), retention=0)
    engine.store("first", 100)
    again = start(full_spec(), state_spec(), retention=0)
    sibling = again.request("second", 100, prompt="other", shared=64)
    assert again.ask(sibling) == 0
    assert sibling.shared_prefix_boundary == 64


def test_gauges_tell_what_is_on_disk(start):
    engine = start(full_spec())
    engine.store("first", 100)
    stats = engine.half.take_stats()
    assert stats is not None
    assert stats.data["gauges"]["disk_pages"] == {"0": 6}
    assert stats.data["gauges"]["disk_bytes"] == {"0": 6 * 64}


def _output(report: Any) -> Any:
    from types import SimpleNamespace

    return SimpleNamespace(kv_connector_worker_meta=report)
