"""Lookups and loads: promises, leases, failures, junctions."""

from types import SimpleNamespace

import pytest

from lmc_grouped.connector.messages import GroupPages, Operation, StepMetadata
from lmc_grouped.core.hits import needed_pages
from tests.connector.scripted import RequestWithoutJunction, ScriptedEngine
from tests.specs import full_spec, ring_spec, state_spec, window_spec

NOTHING_HELD = {0: 0, 2: 0}


def hybrid(**more) -> ScriptedEngine:
    return ScriptedEngine(full_spec(), ring_spec(), state_spec(), **more)


def with_prefix(**more) -> ScriptedEngine:
    """An engine whose host tier holds 96 tokens of prompt "p", states at 64 and 96."""
    engine = hybrid(**more)
    request = engine.request("first", 100)
    engine.start(request)
    engine.compute(request, 64, 96)
    engine.finish(request)
    engine.wipe()
    assert engine.held_slots() == NOTHING_HELD
    return engine


# Promises.


@pytest.mark.parametrize(("tokens", "expected"), [(32, 16), (48, 32), (31, 16), (33, 32)])
def test_a12_the_last_token_is_always_recomputed(tokens, expected):
    engine = hybrid()
    engine.finish(engine.prefill("first", tokens, chunk=16))
    assert engine.ask(engine.request("again", tokens)) == expected


def test_a12_a_large_block_hits_the_edge_below_the_last_token():
    engine = ScriptedEngine(full_spec(2112), state_spec(2112), world_size=2, units=8)
    engine.finish(engine.prefill("first", 10_560))
    engine.wipe()
    again = engine.request("again", 10_560)
    assert engine.start(again) == 8_448
    assert engine.wrong_pages(again, 8_448) == []


def test_a15c_attention_without_a_state_promises_nothing():
    engine = ScriptedEngine(full_spec(1600), state_spec(1600))
    request = engine.request("first", 6_500)
    engine.start(request)
    engine.compute(request, 6_400, offers={})
    engine.finish(request)
    assert engine.ask(engine.request("again", 6_500)) == 0


def test_a15d_a_host_hit_goes_beyond_a_local_one_only_to_an_edge_of_all_groups():
    engine = ScriptedEngine(full_spec(1024), state_spec(1024), num_blocks=512)
    request = engine.request("first", 50_000)
    engine.start(request)
    engine.compute(request, 34_816, 49_152)
    engine.finish(request)
    again = engine.request("again", 50_000)
    assert engine.ask(again, local=34_816) == 49_152 - 34_816
    state = again.block_hashes[49_152 // 1024 - 1]
    engine.index.drop([(1, state)])
    assert engine.ask(again, local=34_816) == 0


@pytest.mark.parametrize(("ring", "alignment", "expected"), [(256, 256, 768), (16, 32, 992)])
def test_a24_a_hit_ends_where_the_scratch_ring_can_be_rebuilt(ring, alignment, expected):
    engine = ScriptedEngine(full_spec(32), window_spec(32, 64), ring_spec(ring))
    assert engine.table.alignment_tokens == alignment
    engine.finish(engine.prefill("first", 1_000, chunk=32))
    assert engine.ask(engine.request("again", 1_000)) == expected


def test_repeated_lookups_of_a_waiting_request_do_not_add_up():
    engine = with_prefix()
    waiting = engine.request("waiting", 100)
    for _ in range(75):
        assert engine.ask(waiting) == 96
    assert engine.index.leased_pages("wait:waiting") == 1 + 1
    assert engine.held_slots() == {0: 6, 2: 1}
    engine.finish(waiting)
    assert engine.held_slots() == NOTHING_HELD


def test_repeated_lookups_see_what_was_stored_meanwhile():
    engine = hybrid()
    waiting = engine.request("waiting", 100)
    assert engine.ask(waiting) == 0
    engine.finish(engine.prefill("first", 50))
    assert engine.ask(waiting) == 48
    engine.finish(engine.prefill("longer", 100))
    assert engine.ask(waiting) == 96
    assert engine.held_slots() == {0: 6, 2: 1}


def test_a_promised_prefix_cannot_be_evicted():
    engine = with_prefix(units=6)
    waiting = engine.request("waiting", 100)
    assert engine.ask(waiting) == 96
    engine.finish(engine.prefill("other", 200, prompt="q"))
    assert engine.ask(waiting) == 96
    engine.allocate(waiting, 96)
    engine.step()
    assert engine.wrong_pages(waiting, 96) == []


def test_what_was_reset_is_not_promised_again():
    engine = with_prefix()
    waiting = engine.request("waiting", 100)
    assert engine.ask(waiting) == 96
    engine.connector.reset_cache()
    assert engine.ask(waiting) == 0
    assert engine.held_slots() == NOTHING_HELD


def test_a_request_that_must_not_read_the_cache_gets_nothing():
    engine = with_prefix()
    request = SimpleNamespace(
        request_id="r",
        num_tokens=100,
        num_prompt_tokens=100,
        block_hashes=engine.request("x", 100).block_hashes,
        skip_reading_prefix_cache=True,
        shared_prefix_boundary=None,
    )
    assert engine.ask(request) == 0


# Releasing: A23.


def test_a23a_a_request_aborted_before_allocation_holds_nothing():
    engine = with_prefix(world_size=2)
    waiting = engine.request("waiting", 100)
    assert engine.ask(waiting) == 96
    engine.finish(waiting)
    assert engine.held_slots() == NOTHING_HELD
    assert engine.step().metadata.loads == []
    assert engine.half.tier.requests == {}


def test_a23b_blocks_with_no_external_tokens_release_the_promise_and_load_nothing():
    engine = with_prefix(world_size=2)
    request = engine.request("r", 100, prompt="other", shared=96)
    assert engine.ask(request) == 96
    # Another connector was chosen: real blocks, and 0 tokens for us.
    engine.give_blocks(request, 96)
    engine.announce(request, 0)
    assert engine.held_slots() == NOTHING_HELD
    assert engine.step().metadata.loads == []
    # Stores are still allowed.
    longer = engine.request("r", 130, prompt="other", shared=96)
    request.num_tokens = longer.num_tokens
    request.block_hashes += longer.block_hashes[len(request.block_hashes) :]
    engine.compute(request, 128)
    assert engine.index.has(0, request.block_hashes[7])
    engine.finish(request)
    assert engine.held_slots() == NOTHING_HELD


def test_a23c_a_load_releases_its_pages_once_all_ranks_are_done():
    engine = with_prefix(world_size=2)
    request = engine.request("r", 100)
    assert engine.ask(request) == 96
    engine.allocate(request, 96)
    assert engine.held_slots() == {0: 6, 2: 1}
    assert engine.index.leased_pages("wait:r") == 0
    result = engine.step(acknowledge=lambda rank: rank == 0)
    assert result.received == {"r"}
    assert engine.held_slots() == {0: 6, 2: 1}
    engine.acknowledge(result.reports[1])
    assert engine.held_slots() == NOTHING_HELD
    engine.announce(request, 0)
    engine.finish(request)
    assert engine.held_slots() == NOTHING_HELD
    assert engine.pool.get_num_free_blocks() == engine.pool.num_gpu_blocks - 1


def test_a_request_aborted_while_it_loads_releases_its_pages_when_the_load_is_over():
    engine = with_prefix(world_size=2)
    request = engine.request("r", 100)
    engine.ask(request)
    engine.allocate(request, 96)
    result = engine.step(acknowledge=False)
    engine.finish(request)
    # The copy may still be running on some rank.
    assert engine.held_slots() == {0: 6, 2: 1}
    engine.acknowledge(*result.reports)
    assert engine.held_slots() == NOTHING_HELD


def test_a_page_dropped_while_it_is_read_keeps_its_slot_until_the_load_is_over():
    engine = with_prefix(units=6)
    request = engine.request("r", 100)
    engine.ask(request)
    engine.allocate(request, 96)
    engine.connector.reset_cache()
    assert engine.index.room_slots(0) == 0
    engine.step()
    assert engine.wrong_pages(request, 96) == []
    assert engine.index.room_slots(0) == 6


# Fewer tokens than promised.


def test_fewer_tokens_than_promised_are_loaded_where_a_state_ends():
    engine = with_prefix()
    request = engine.request("r", 100)
    assert engine.ask(request) == 96
    engine.allocate(request, 64)
    result = engine.step()
    assert (result.received, result.failed) == ({"r"}, set())
    assert engine.wrong_pages(request, 64) == []
    assert engine.held_slots() == NOTHING_HELD


def test_fewer_tokens_than_promised_without_a_state_there_is_a_failed_receive():
    engine = with_prefix()
    request = engine.request("r", 100)
    assert engine.ask(request) == 96
    engine.allocate(request, 80)
    result = engine.step()
    assert result.received == result.failed == {"r"}
    assert "80 tokens were taken of 96 promised" in result.metadata.loads[0].refused
    assert engine.held_slots() == NOTHING_HELD
    # Nothing stored was wrong: others still hit, this request recomputes.
    assert engine.ask(request) == 0
    assert engine.ask(engine.request("other", 100)) == 96


def test_tokens_taken_without_a_lookup_are_a_failed_receive():
    engine = with_prefix()
    request = engine.request("r", 100)
    engine.allocate(request, 96)
    result = engine.step()
    assert result.failed == {"r"}
    assert engine.held_slots() == NOTHING_HELD


def test_a_group_that_got_no_block_for_a_needed_page_is_a_failed_receive():
    engine = with_prefix()
    request = engine.request("r", 100)
    engine.ask(request)
    engine.give_blocks(request, 96, restored=96)
    engine.free([engine.tables["r"][2][5]])
    engine.tables["r"][2][5] = 0
    engine.announce(request, 96)
    result = engine.step()
    assert result.failed == {"r"}
    assert "group 2 got no block for page 5" in result.metadata.loads[0].refused


def test_a_refused_load_names_the_blocks_that_were_given_for_it():
    engine = with_prefix()
    request = engine.request("r", 100)
    engine.allocate(request, 64, local=32)  # without a lookup
    result = engine.step()
    assert result.failed == {"r"}
    attention, _, state = engine.tables["r"]
    (load,) = result.metadata.loads
    given = {pages.group_id: pages.block_ids for pages in load.pages}
    assert given == {0: attention[2:6], 2: state[5:6]}
    assert all(not pages.slots for pages in load.pages)


def test_a_worker_that_fails_a_load_names_its_blocks():
    engine = with_prefix()
    (worker,) = engine.workers
    blocks = [GroupPages(0, [5, 6], [10**9, 10**9]), GroupPages(2, [7], [0])]
    step = StepMetadata(loads=[Operation(77, "r", tuple(blocks))])
    half = worker.worker_half
    half.begin_loads(step)
    while half.line.running:
        half.line.wait_for_thread(60)
    receives = half.take_receives(step)
    assert (receives.requests, receives.failed) == ({"r"}, {"r"})
    assert receives.failed_blocks == {5, 6, 7}
    assert half.take_receives(step).failed_blocks == set()


def test_blocks_below_the_window_are_filled_too_because_the_engine_publishes_them():
    engine = ScriptedEngine(full_spec(), window_spec(16, 20))
    engine.finish(engine.prefill("first", 100, chunk=16))
    engine.wipe()
    request = engine.request("r", 100)
    assert engine.ask(request) == 96
    engine.give_blocks(request, 96)  # real blocks for the whole window group
    engine.announce(request, 96)
    assert engine.step().failed == set()
    window = engine.table.group(1)
    assert needed_pages(window, 0, 96) == range(4, 6)
    assert all(engine._is_right(0, request, window, page) for page in range(6))


def test_only_the_tail_of_a_window_is_loaded():
    engine = ScriptedEngine(full_spec(128), window_spec(128, 256), num_blocks=64)
    engine.finish(engine.prefill("first", 1_500, chunk=128))
    engine.wipe()
    request = engine.request("r", 1_500)
    assert engine.ask(request) == 1_408
    engine.allocate(request, 1_408)
    assert [block == 0 for block in engine.tables["r"][1]] == [True] * 9 + [False] * 2
    (load,) = engine.step().metadata.loads
    assert {pages.group_id: len(pages.slots) for pages in load.pages} == {0: 11, 1: 2}
    assert engine.wrong_pages(request, 1_408) == []


def test_only_what_the_engine_does_not_hold_is_loaded():
    engine = with_prefix()
    request = engine.request("r", 100)
    assert engine.ask(request, local=32) == 64
    engine.allocate(request, external=64, local=32)
    (load,) = engine.step().metadata.loads
    assert {pages.group_id: len(pages.slots) for pages in load.pages} == {0: 4, 2: 1}
    assert engine.wrong_pages(request, 96, local=32) == []


# Failures.


@pytest.mark.parametrize("failing", [(0, 0), (1, 2)])
def test_a_load_that_fails_on_one_rank_drops_its_keys_and_is_not_repeated(failing):
    engine = with_prefix(world_size=2)
    request = engine.request("r", 100)
    assert engine.ask(request) == 96
    engine.allocate(request, 96)
    engine.failing = {failing}
    result = engine.step()
    engine.failing = set()
    assert result.received == {"r"}
    assert result.failed == {"r"}
    assert engine.stats.counter("failed_loads") == 1
    assert engine.stats.counter("restored_tokens", 0) == 0
    assert engine.held_slots() == NOTHING_HELD
    assert [engine.ask(request) for _ in range(10)] == [0] * 10
    # The keys are gone for everybody, until somebody stores them again.
    other = engine.request("other", 100)
    assert engine.ask(other) == 0
    engine.finish(engine.prefill("third", 100))
    assert engine.ask(other) == 96
    assert engine.ask(request) == 0


def test_requests_of_other_prompts_are_not_touched_by_a_failed_load():
    engine = with_prefix()
    engine.finish(engine.prefill("q1", 50, prompt="q"))
    bad, good = engine.request("bad", 100), engine.request("good", 50, prompt="q")
    for request, tokens in ((bad, 96), (good, 48)):
        assert engine.ask(request) == tokens
        engine.allocate(request, tokens)
    engine.failing, engine.spared = {(0, 0)}, {"good"}
    result = engine.step()
    assert (result.received, result.failed) == ({"bad", "good"}, {"bad"})
    assert engine.wrong_pages(good, 48) == []
    assert engine.ask(engine.request("q2", 50, prompt="q")) == 48


def test_a_request_whose_load_failed_stores_what_it_recomputes():
    engine = with_prefix()
    request = engine.request("r", 100)
    engine.ask(request)
    engine.allocate(request, 96)
    engine.failing = {(0, 0)}
    engine.step()
    engine.failing = set()
    engine.preempt(request)
    assert engine.start(request) == 0
    engine.compute(request, 96)
    engine.finish(request)
    assert engine.ask(engine.request("other", 100)) == 96


def test_a_failed_load_of_an_aborted_request_still_drops_the_keys():
    engine = with_prefix()
    request = engine.request("r", 100)
    engine.ask(request)
    engine.allocate(request, 96)
    engine.failing = {(0, 0)}
    result = engine.step(acknowledge=False)
    engine.finish(request)
    engine.acknowledge(*result.reports)
    assert engine.held_slots() == NOTHING_HELD
    assert engine.ask(engine.request("other", 100)) == 0
    assert engine.half.tier.requests.keys() == {"other"}


# Junctions.


def test_a16_a_junction_found_in_the_host_tier_lets_the_next_sibling_hit():
    states = [state_spec(784) for _ in range(4)]
    engine = ScriptedEngine(full_spec(784), *states, units=200, num_blocks=512)
    engine.finish(engine.prefill("a", 60_000))
    sibling = engine.request("b", 60_000, prompt="b", shared=39_200)
    assert engine.ask(sibling) == 0
    assert sibling.shared_prefix_boundary == 39_200
    # The scheduler ends a chunk there, and the state is handed off.
    engine.start(sibling)
    engine.compute(sibling, sibling.shared_prefix_boundary, 60_000)
    engine.finish(sibling)
    engine.wipe()
    third = engine.request("c", 60_000, prompt="c", shared=39_200)
    assert engine.start(third) == 39_200
    assert engine.wrong_pages(third, 39_200) == []


def test_a16_a_junction_the_engine_found_further_is_kept():
    engine = hybrid()
    engine.finish(engine.prefill("a", 100))
    sibling = engine.request("b", 100, prompt="b", shared=48)
    sibling.shared_prefix_boundary = 64
    assert engine.ask(sibling) == 0
    assert sibling.shared_prefix_boundary == 64


def test_a16_an_engine_without_the_field_is_served_without_junctions():
    engine = hybrid()
    engine.finish(engine.prefill("a", 100))
    sibling = RequestWithoutJunction(engine.request("b", 100, prompt="b", shared=48))
    assert engine.ask(sibling) == 0
    assert not hasattr(sibling, "shared_prefix_boundary")


def test_a16_a_model_without_states_records_no_junction():
    engine = ScriptedEngine(full_spec(16), window_spec(16, 40))
    engine.finish(engine.prefill("a", 100))
    engine.index.drop([(1, engine.request("a", 100).block_hashes[5])])
    again = engine.request("b", 100)
    engine.ask(again)
    assert again.shared_prefix_boundary is None


def test_a_hit_at_the_full_reach_of_attention_records_no_junction():
    engine = with_prefix()
    request = engine.request("r", 100)
    assert engine.ask(request) == 96
    assert request.shared_prefix_boundary is None
