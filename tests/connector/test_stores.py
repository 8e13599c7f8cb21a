"""What is stored, when it becomes visible, and what is counted when it is not stored."""

import pytest

from tests.connector.scripted import ScriptedEngine, stored_blocks
from tests.specs import full_spec, ring_spec, state_spec, window_spec


def hybrid(**more) -> ScriptedEngine:
    return ScriptedEngine(full_spec(), ring_spec(), state_spec(), **more)


def test_a_stored_prefix_comes_back_byte_for_byte():
    engine = ScriptedEngine(
        full_spec(32), window_spec(16, 40), ring_spec(), state_spec(64, state_bytes=200)
    )
    first = engine.prefill("first", 300)
    engine.finish(first)
    engine.wipe()
    second = engine.request("second", 300)
    assert engine.start(second) == 256
    assert engine.wrong_pages(second, 256) == []


def test_a_corrupted_host_page_is_seen_by_the_comparison():
    engine = hybrid()
    engine.finish(engine.prefill("first", 100))
    for group_id in engine.table.group_ids:
        engine.workers[0].worker_half.region.page(group_id, 0)[3] ^= 0xFF
    second = engine.request("second", 100)
    engine.start(second)
    assert {group_id for _, group_id, _ in engine.wrong_pages(second, 96)} == {0, 2}


def test_a_store_is_visible_only_after_every_rank_has_confirmed_it():
    engine = hybrid(world_size=2)
    first = engine.request("first", 100)
    engine.start(first)
    result = engine.compute(first, 96, acknowledge=lambda rank: rank == 0)
    waiting = engine.request("waiting", 100)
    assert engine.ask(waiting) == 0
    engine.acknowledge(result.reports[1])
    assert engine.ask(waiting) == 96
    engine.allocate(waiting, 96)
    engine.wipe()
    engine.step()
    assert engine.wrong_pages(waiting, 96) == []


@pytest.mark.parametrize("failing", [(0, 0), (1, 0), (1, 2)])
def test_a23d_a_store_that_one_rank_cannot_make_is_never_visible(failing):
    engine = hybrid(world_size=2)
    first = engine.request("first", 100)
    engine.start(first)
    engine.failing = {failing}
    engine.compute(first, 96)
    engine.failing = set()
    assert engine.ask(engine.request("second", 100)) == 0
    assert engine.stats.counter("failed_stores") == 1
    assert engine.not_stored("store_failed") == (6 if failing[1] == 0 else 1)
    engine.finish(first)
    assert engine.held_slots() == {0: 0, 2: 0}
    # The next request with the prompt stores it again.
    engine.finish(engine.prefill("third", 100))
    assert engine.ask(engine.request("fourth", 100)) == 96


def test_a_store_that_every_rank_fails_is_counted_once():
    engine = ScriptedEngine(full_spec(), world_size=2)
    engine.failing = {(0, 0), (1, 0)}
    engine.finish(engine.prefill("first", 40))
    assert engine.stats.counter("failed_stores") == 1
    assert engine.not_stored("store_failed") == 2
    assert engine.index.room_slots(0) == 64


def test_a01_two_chunks_are_stored_and_the_ring_contributes_nothing():
    states = [state_spec(1600) for _ in range(4)]
    engine = ScriptedEngine(full_spec(1600), ring_spec(8), *states, world_size=2)
    request = engine.request("r", 3_300)
    engine.start(request)
    blocks = stored_blocks(engine.compute(request, 3_200))
    assert {group_id: len(ids) for group_id, ids in blocks.items()} == {
        0: 2,
        2: 1,
        3: 1,
        4: 1,
        5: 1,
    }
    assert blocks[0] == engine.tables["r"][0]


def test_a01_a_model_of_scratch_groups_only_warns_and_misses(our_log):
    engine = ScriptedEngine(ring_spec(8), ring_spec(8), budget_bytes=2**20)
    assert "no group of this model can be stored" in our_log.text
    request = engine.request("r", 100)
    assert engine.start(request) == 0
    assert stored_blocks(engine.compute(request, 96)) == {}
    engine.finish(request)


def test_a17_stores_go_on_beyond_the_window():
    engine = ScriptedEngine(
        full_spec(16), window_spec(32, 1024), units=1024, num_blocks=1024, extra={}
    )
    request = engine.request("r", 8_200)
    engine.start(request)
    stored: dict[int, int] = {}
    for end in (2_048, 4_096, 6_144, 8_192):
        engine.slide(request)
        for group_id, ids in stored_blocks(engine.compute(request, end)).items():
            assert 0 not in ids
            stored[group_id] = stored.get(group_id, 0) + len(ids)
    assert stored == {0: 512, 1: 256}
    assert engine.not_stored("null_block") == 0
    engine.finish(request)
    engine.wipe()
    again = engine.request("again", 8_200)
    assert engine.start(again) == 8_192
    assert engine.wrong_pages(again, 8_192) == []


def test_window_pages_that_were_null_when_they_were_due_are_counted():
    engine = ScriptedEngine(full_spec(16), window_spec(16, 20))
    request = engine.request("r", 70)
    engine.start(request)
    engine.give_blocks(request, 64)
    engine.free(engine.tables["r"][1][:2])
    engine.tables["r"][1][:2] = [0, 0]
    blocks = stored_blocks(engine.compute(request, 64))
    assert (len(blocks[0]), len(blocks[1])) == (4, 2)
    assert engine.not_stored("null_block") == 2


def test_a23_a_state_offered_twice_is_stored_once():
    engine = hybrid()
    request = engine.request("r", 100)
    engine.start(request)
    engine.compute(request, 96)
    state = (2, engine.tables["r"][2][-1], 96)
    for _ in range(3):
        again = engine.step({request: 1}, offers={"r": [state, state]})
        assert stored_blocks(again) == {}
    assert engine.index.residency()[2].resident_pages == 1
    engine.finish(request)
    assert engine.pinned_blocks() == 0


def test_two_requests_that_offer_the_same_state_in_one_step_store_it_once():
    engine = hybrid()
    twins = [engine.request(name, 100) for name in ("one", "two")]
    for twin in twins:
        engine.start(twin)
    result = engine.step(dict.fromkeys(twins, 96))
    assert {g: len(ids) for g, ids in stored_blocks(result).items()} == {0: 6, 2: 1}
    for twin in twins:
        twin.num_computed_tokens = 96
        engine.finish(twin)
    assert engine.pinned_blocks() == 0
    assert engine.held_slots() == {0: 0, 2: 0}
    assert engine.ask(engine.request("third", 100)) == 96


def test_a_state_offered_from_two_blocks_is_stored_once():
    engine = hybrid()
    request = engine.request("r", 100)
    engine.start(request)
    engine.give_blocks(request, 96)
    block, other = engine.tables["r"][2][-1], engine.tables["r"][0][0]
    engine.compute(request, 96, offers={"r": [(2, block, 96), (2, other, 96)]})
    assert engine.index.residency()[2].resident_pages == 1
    engine.finish(request)
    assert engine.pinned_blocks() == 0


def full_state_pool() -> ScriptedEngine:
    """Two slots a group; both states are held by a reader, the attention pages are idle."""
    engine = hybrid(units=2)
    engine.finish(engine.prefill("old", 34, chunk=16))
    old = engine.request("old", 34)
    engine.index.lease("reader", [(2, block_hash) for block_hash in old.block_hashes])
    assert engine.index.room_slots(2) == 0
    return engine


def test_an_offer_without_room_stays_pinned_and_is_stored_when_there_is_room():
    engine = full_state_pool()
    request = engine.request("r", 40, prompt="q")
    engine.start(request)
    assert set(stored_blocks(engine.compute(request, 16))) == {0}
    block = engine.pool.blocks[engine.tables["r"][2][0]]
    assert block.ref_cnt == 2
    for _ in range(5):
        assert stored_blocks(engine.step({request: 1}, offers={})) == {}
        assert block.ref_cnt == 2
    engine.index.release("reader")
    assert stored_blocks(engine.step({request: 1}, offers={})) == {2: [block.block_id]}
    assert block.ref_cnt == 1
    assert engine.ask(engine.request("s", 20, prompt="q")) == 16


def test_a_store_of_a_step_that_computes_nothing_is_carried_out_by_every_engine():
    engine = full_state_pool()
    engine.ends_only_forwards = True
    request = engine.request("r", 40, prompt="q")
    engine.start(request)
    engine.compute(request, 16)
    engine.index.release("reader")
    block = engine.tables["r"][2][0]
    assert stored_blocks(engine.step()) == {2: [block]}
    assert engine.held_slots()[2] == 0, "the store has ended"
    assert engine.ask(engine.request("s", 20, prompt="q")) == 16


def test_an_offer_whose_page_another_request_stored_meanwhile_is_let_go():
    engine = full_state_pool()
    twins = [engine.request(name, 40, prompt="q") for name in ("one", "two")]
    for twin in twins:
        engine.start(twin)
    engine.step(dict.fromkeys(twins, 16))
    assert engine.pinned_blocks() == 0
    blocks = [engine.pool.blocks[engine.tables[twin.request_id][2][0]] for twin in twins]
    assert [block.ref_cnt for block in blocks] == [2, 2]
    engine.index.release("reader")
    result = engine.step()
    assert len(stored_blocks(result)[2]) == 1
    assert [block.ref_cnt for block in blocks] == [1, 1]


def test_an_offer_that_never_found_room_is_dropped_and_counted_at_the_end():
    engine = full_state_pool()
    request = engine.request("r", 40, prompt="q")
    engine.start(request)
    engine.compute(request, 16, 32)
    engine.finish(request)
    assert engine.not_stored("request_gone") == 2
    assert engine.pinned_blocks() == 0
    assert engine.half.tier.requests == {}


def test_offers_without_room_are_given_up_when_the_device_runs_out_of_blocks():
    engine = hybrid(units=2, num_blocks=64)
    engine.finish(engine.prefill("old", 34, chunk=16))
    old = engine.request("old", 34)
    engine.index.lease("reader", [(2, block_hash) for block_hash in old.block_hashes])
    request = engine.request("r", 40, prompt="q")
    engine.start(request)
    engine.compute(request, 16)
    assert engine.not_stored("device_pressure") == 0
    taken = engine.pool.get_new_blocks(engine.pool.get_num_free_blocks() - 3)
    engine.step({request: 1}, offers={})
    assert engine.not_stored("device_pressure") == 1
    assert engine.pool.blocks[engine.tables["r"][2][0]].ref_cnt == 1
    engine.pool.free_blocks(taken)
    engine.finish(request)
    assert engine.not_stored("request_gone") == 0
    assert engine.pinned_blocks() == 0


def test_an_offer_for_a_request_that_is_gone_is_counted():
    engine = hybrid()
    engine.step(offers={"gone": [(2, 7, 16)]})
    assert engine.not_stored("request_gone") == 1
    assert engine.pinned_blocks() == 0


@pytest.mark.parametrize("boundary", [0, 8, 112])
def test_an_offer_that_no_block_hash_covers_is_counted(boundary):
    engine = hybrid()
    request = engine.request("r", 100)
    engine.start(request)
    engine.compute(request, 96, offers={"r": [(2, 9, boundary)]})
    assert engine.not_stored("no_hash") == 1


def test_an_offer_between_two_hit_boundaries_is_counted():
    engine = ScriptedEngine(full_spec(32), state_spec(16))
    request = engine.request("r", 100)
    engine.start(request)
    engine.compute(request, 48)
    assert engine.not_stored("off_alignment") == 1
    engine.compute(request, 64)
    assert engine.index.residency()[1].resident_pages == 1


def test_an_offer_of_a_group_that_is_not_stored_is_ignored():
    engine = hybrid()
    request = engine.request("r", 100)
    engine.start(request)
    engine.compute(request, 96, offers={"r": [(1, 9, 96)]})
    assert engine.stats.data["counters"].get("not_stored_pages") is None
    assert engine.index.residency()[2].resident_pages == 0


@pytest.mark.parametrize("chunk", [16, 48, 1_000])
def test_a_prompt_larger_than_the_pool_stores_its_head_and_counts_the_rest(chunk):
    engine = ScriptedEngine(full_spec(), units=4)
    request = engine.prefill("large", 170, chunk=chunk)
    assert engine.index.residency()[0].evicted_pages == 0
    engine.finish(request)
    assert engine.not_stored("no_room") == 6
    assert engine.ask(engine.request("again", 170)) == 64
    assert engine.index.residency()[0].evicted_pages == 0


def test_a_prompt_larger_than_the_pool_keeps_a_head_that_was_there_before():
    engine = ScriptedEngine(full_spec(), units=4)
    engine.finish(engine.prefill("short", 50))
    request = engine.prefill("large", 170)
    engine.finish(request)
    assert engine.index.residency()[0].evicted_pages == 0
    assert engine.ask(engine.request("again", 170)) == 64


def test_a_stalled_prompt_goes_on_when_another_one_ends():
    engine = ScriptedEngine(full_spec(), units=4)
    other = engine.prefill("other", 50, prompt="q")
    request = engine.prefill("r", 70)
    assert engine.index.residency()[0].free_slots == 0
    engine.finish(other)
    engine.step({request: 1})
    engine.finish(request)
    assert engine.not_stored("no_room") == 0
    assert engine.ask(engine.request("again", 70)) == 64


def test_a_resumed_request_starts_again_from_its_first_page():
    engine = hybrid()
    request = engine.request("r", 100)
    engine.start(request)
    engine.compute(request, 48)
    # Preempted: its blocks go back, and the host tier loses its pages meanwhile.
    engine.preempt(request)
    assert engine.connector.reset_cache() is True
    assert engine.start(request) == 0
    blocks = stored_blocks(engine.compute(request, 96))
    assert blocks[0] == engine.tables["r"][0]
    engine.finish(request)
    assert engine.held_slots() == {0: 0, 2: 0}
    assert engine.ask(engine.request("again", 100)) == 96


def test_a_store_under_way_at_a_reset_never_becomes_visible():
    engine = hybrid(world_size=2)
    request = engine.request("r", 100)
    engine.start(request)
    result = engine.compute(request, 96, acknowledge=lambda rank: rank == 0)
    engine.connector.reset_cache()
    engine.acknowledge(result.reports[1])
    assert engine.ask(engine.request("again", 100)) == 0
    engine.finish(request)
    assert engine.held_slots() == {0: 0, 2: 0}
    assert engine.index.room_slots(0) == 64


def test_a_preempted_request_lets_its_waiting_offers_go():
    engine = full_state_pool()
    request = engine.request("r", 40, prompt="q")
    engine.start(request)
    engine.compute(request, 16)
    engine.preempt(request)
    assert engine.pinned_blocks() == 1
    engine.step()
    assert engine.not_stored("request_gone") == 1
    assert engine.pinned_blocks() == 0


def test_draft_tokens_that_may_be_rejected_are_not_stored():
    engine = ScriptedEngine(full_spec())
    request = engine.request("r", 30)
    engine.start(request)
    # One page and 14 tokens are known; the step also runs four draft tokens.
    blocks = stored_blocks(engine.step({request: 34}))
    assert len(blocks[0]) == 1


def test_a_request_that_grows_while_it_decodes_stores_its_new_pages():
    engine = ScriptedEngine(full_spec())
    request = engine.prefill("r", 30)
    longer = engine.request("r", 48)
    request.num_tokens = longer.num_tokens
    request.block_hashes += longer.block_hashes[len(request.block_hashes) :]
    assert len(stored_blocks(engine.compute(request, 48))[0]) == 2


def test_a_connector_that_only_consumes_stores_nothing():
    engine = hybrid(role="kv_consumer")
    request = engine.request("r", 100)
    engine.start(request)
    assert engine.compute(request, 96).metadata.stores == []


def test_a_connector_that_only_produces_promises_nothing():
    engine = hybrid(role="kv_producer")
    engine.finish(engine.prefill("first", 100))
    assert engine.index.residency()[0].resident_pages == 6
    assert engine.ask(engine.request("second", 100)) == 0


def test_pages_of_other_prompts_leave_when_room_is_needed_and_are_counted():
    engine = hybrid(units=6)
    engine.finish(engine.prefill("first", 100))
    engine.finish(engine.prefill("other", 50, prompt="q"))
    stats = engine.connector.get_kv_connector_stats()
    assert stats.counter("evicted_pages", 0) == 3
    # The end of the first prefix left: its head is still whole, its state has no attention.
    assert engine.ask(engine.request("again", 100)) == 0
    assert engine.ask(engine.request("other", 50, prompt="q")) == 48


def test_a_chunk_size_in_the_extra_keys_sets_where_hits_end():
    engine = ScriptedEngine(full_spec(16), extra={"lmcache.chunk_size": 64})
    engine.finish(engine.prefill("first", 200))
    assert engine.ask(engine.request("second", 180)) == 128


@pytest.mark.parametrize(
    ("specs", "hash_block", "prompt"),
    [
        # (a): recurrent blocks of 3584, a ring of 4, a drafter of 64, hash 64
        (
            [
                full_spec(3584),
                ring_spec(4),
                *[state_spec(3584) for _ in range(4)],
                full_spec(64),
            ],
            64,
            8_000,
        ),
        # (c): rings of 4, and of 8 with three draft tokens
        ([full_spec(800), ring_spec(4), state_spec(800)], 800, 2_500),
        ([full_spec(800), ring_spec(8), state_spec(800)], 800, 2_500),
        # (d): target 256, drafter 64
        ([full_spec(256), full_spec(64)], 64, 1_000),
    ],
)
def test_a11_small_rings_and_drafters_pass_init_and_the_first_transfer(specs, hash_block, prompt):
    engine = ScriptedEngine(*specs, units=8, num_blocks=512)
    assert engine.table.hash_block_tokens == hash_block
    engine.finish(engine.prefill("first", prompt))
    engine.wipe()
    again = engine.request("again", prompt)
    expected = (prompt - 1) // engine.table.alignment_tokens * engine.table.alignment_tokens
    assert engine.start(again) == expected > 0
    assert engine.wrong_pages(again, expected) == []


def test_a11b_a_long_prompt_of_two_ranks_goes_through_every_site():
    states = [state_spec(4480) for _ in range(3)]
    engine = ScriptedEngine(
        full_spec(4480), ring_spec(4), *states, world_size=2, hash_block=4480, units=32
    )
    request = engine.prefill("long", 105_000, chunk=8_960)
    assert [len(blocks) for blocks in engine.tables["long"]] == [24, 1, 24, 24, 24]
    engine.finish(request)
    engine.wipe()
    again = engine.request("again", 105_000)
    assert engine.start(again) == 103_040
    assert engine.wrong_pages(again, 103_040) == []


def test_a11d_a_chunk_is_counted_in_the_blocks_of_each_group():
    engine = ScriptedEngine(full_spec(256), full_spec(64), extra={"lmcache.chunk_size": 256})
    request = engine.request("r", 300)
    engine.start(request)
    blocks = stored_blocks(engine.compute(request, 256))
    assert {group_id: len(ids) for group_id, ids in blocks.items()} == {0: 1, 1: 4}


def test_a18_groups_of_different_page_sizes_keep_their_own_rows():
    engine = ScriptedEngine(full_spec(16, heads=64), full_spec(16, heads=16))
    assert [group.page_bytes for group in engine.table.groups] == [4_096, 1_024]
    pools = [engine.workers[0].worker_half.region.pool(g) for g in (0, 1)]
    assert [pool.shape for pool in pools] == [(1, 64, 4_096), (1, 64, 1_024)]
    engine.finish(engine.prefill("first", 70))
    engine.wipe()
    again = engine.request("again", 70)
    assert engine.start(again) == 64
    assert engine.wrong_pages(again, 64) == []


def test_a14_every_page_of_a_prompt_computed_in_many_steps_is_stored():
    engine = ScriptedEngine(full_spec(16), state_spec(16), units=400, num_blocks=2048)
    request = engine.prefill("r", 390 * 16 + 5, chunk=48)
    assert engine.index.residency()[0].resident_pages == 390
    engine.finish(request)
    assert engine.ask(engine.request("again", 390 * 16 + 5)) == 390 * 16
