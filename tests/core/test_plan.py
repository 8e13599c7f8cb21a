"""Store planning: positional, null-safe, cut at one token for all groups."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmc_grouped.core.groups import GroupTable
from lmc_grouped.core.plan import (
    NULL_BLOCK,
    PlannedPage,
    StoreCursor,
    StorePlan,
    fit,
    page_hash_index,
)
from tests.factories import full, nothing_known, plenty, recurrent, table_of, window


def ends(pages: list[PlannedPage], group_id: int) -> list[int]:
    return [page.end_tokens for page in pages if page.group_id == group_id]


def test_a01_a_scratch_ring_contributes_nothing_and_lowers_nothing():
    states = [recurrent(i, 1600) for i in (2, 3, 4, 5)]
    cursor = StoreCursor(table_of(full(0, 1600), *states, scratch_ids=(1,)))
    ring, normal = [7], [11, 12]
    plan = cursor.plan([normal, ring, *[normal] * 4], 3_200, nothing_known)
    assert [page.block_id for page in plan.new] == [11, 12]
    assert {page.group_id for page in plan.new} == {0}


def test_a01_the_computed_tokens_bound_the_pages_and_not_the_allocated_ones():
    groups = [full(0, 816), *(recurrent(i, 816) for i in range(2, 6))]
    cursor = StoreCursor(table_of(*groups, scratch_ids=(1,)))
    tables = [list(range(1, 13)), [40], *[list(range(50, 66))] * 4]
    plan = cursor.plan(tables, min(9_025, 9_792, 883), nothing_known)
    assert [(page.page_index, page.end_tokens) for page in plan.new] == [(0, 816)]


def test_a01_a_model_of_scratch_groups_only_plans_nothing():
    cursor = StoreCursor(GroupTable(groups=(), alignment_tokens=8, hash_block_tokens=8))
    assert not cursor.is_due(10_000)
    assert cursor.plan([[1], [2]], 10_000, nothing_known) == StorePlan()
    assert cursor.pages_left(10_000) == 0


def test_a17_a_sliding_window_does_not_stall_the_stores_of_full_attention():
    attention, sliding = full(0, 16), window(1, 1024, 32)
    cursor = StoreCursor(table_of(attention, sliding))
    stored: list[PlannedPage] = []
    null: list[PlannedPage] = []
    for computed in (2_048, 4_096, 6_144, 8_192):
        # As vLLM does: before each step, blocks wholly behind the window become null.
        first_kept = max(0, computed - 2_048 - 1_024 + 1) // 32
        tables = [
            list(range(1, computed // 16 + 1)),
            [NULL_BLOCK if page < first_kept else 1_000 + page for page in range(computed // 32)],
        ]
        plan = cursor.plan(tables, computed, nothing_known)
        pages, limit = fit(plan.new, computed, plenty)
        cursor.advance(limit)
        stored += pages
        null += plan.null
    assert limit == 8_192
    assert ends(stored, 0) == list(range(16, 8_193, 16))
    assert ends(stored, 1) == list(range(32, 8_193, 32))
    assert all(page.block_id == 1_000 + page.page_index for page in stored if page.group_id == 1)
    assert null == []


def test_a17_null_blocks_are_never_read_and_keep_their_place():
    attention, sliding = full(0, 16), window(1, 1024, 32)
    cursor = StoreCursor(table_of(attention, sliding))
    # One look at the whole prompt, long after the head of the window went.
    first_kept = (8_192 - 1_024 + 1) // 32
    sliding_blocks = [0 if page < first_kept else 1_000 + page for page in range(256)]
    plan = cursor.plan([list(range(1, 513)), sliding_blocks], 8_192, nothing_known)
    assert NULL_BLOCK not in [page.block_id for page in plan.new]
    assert ends(plan.null, 1) == list(range(32, first_kept * 32 + 1, 32))
    kept = [page for page in plan.new if page.group_id == 1]
    assert [page.page_index for page in kept] == list(range(first_kept, 256))
    assert [page.block_id for page in kept] == sliding_blocks[first_kept:]
    # Five chunks of 256 tokens hold the tail: ceil(1024 / 256) + 1.
    assert len(kept) * 32 <= 5 * 256
    assert len(ends(plan.new, 0)) == 8_192 // 16


def test_a17_a_null_page_that_another_request_stored_is_known_and_not_missing():
    cursor = StoreCursor(table_of(window(0, 64, 32)))
    plan = cursor.plan([[0, 0, 9]], 96, lambda group_id, page: page == 0)
    assert [page.page_index for page in plan.known] == [0]
    assert [page.page_index for page in plan.null] == [1]
    assert [page.page_index for page in plan.new] == [2]


def test_recurrent_states_are_never_taken_from_a_table():
    cursor = StoreCursor(table_of(full(0), recurrent(1)))
    plan = cursor.plan([[3, 4], [0, 9]], 32, nothing_known)
    assert {page.group_id for page in plan.new} == {0}


def test_tables_are_read_by_the_ids_of_the_engine():
    cursor = StoreCursor(table_of(full(0), full(2), scratch_ids=(1,)))
    plan = cursor.plan([[10, 11], [77], [20, 21]], 32, nothing_known)
    assert [(page.group_id, page.block_id) for page in plan.new] == [
        (0, 10),
        (0, 11),
        (2, 20),
        (2, 21),
    ]


def test_a_page_is_planned_once_and_only_when_all_its_tokens_are_computed():
    cursor = StoreCursor(table_of(full(0)))
    blocks = [[5, 6, 7]]
    assert not cursor.is_due(15)
    assert cursor.is_due(16)
    assert [p.block_id for p in cursor.plan(blocks, 31, nothing_known).new] == [5]
    cursor.advance(31)
    assert not cursor.is_due(31)
    assert cursor.pages_left(48) == 2
    assert [p.block_id for p in cursor.plan(blocks, 48, nothing_known).new] == [6, 7]


def test_a_cursor_never_goes_back_unless_it_is_rewound():
    cursor = StoreCursor(table_of(full(0)))
    cursor.advance(48)
    cursor.advance(16)
    assert not cursor.is_due(48)
    cursor.rewind()
    assert cursor.pages_left(48) == 3


def test_a_table_shorter_than_the_computed_tokens_is_not_read_past_its_end():
    cursor = StoreCursor(table_of(full(0)))
    assert len(cursor.plan([[5]], 64, nothing_known).new) == 1


def test_one_group_without_room_cuts_all_groups_at_the_same_token():
    cursor = StoreCursor(table_of(full(0, 16), full(1, 32)))
    tables = [list(range(1, 9)), list(range(11, 15))]
    plan = cursor.plan(tables, 128, nothing_known)
    pages, limit = fit(plan.new, 128, lambda group_id: 2 if group_id else 100)
    # Group 1 has no room for its third page, which ends at 96.
    assert limit == 95
    assert ends(pages, 1) == [32, 64]
    assert ends(pages, 0) == [16, 32, 48, 64, 80]
    cursor.advance(limit)
    assert cursor.pages_left(128) == 3 + 2


def test_no_room_at_all_stores_nothing_and_leaves_everything_to_do():
    cursor = StoreCursor(table_of(full(0), window(1, 32)))
    plan = cursor.plan([[1, 2], [3, 4]], 32, nothing_known)
    pages, limit = fit(plan.new, 32, lambda group_id: 0 if group_id else 9)
    assert pages == []
    cursor.advance(limit)
    assert cursor.pages_left(32) == 4


def test_room_for_everything_cuts_nothing():
    cursor = StoreCursor(table_of(full(0)))
    plan = cursor.plan([[1, 2]], 40, nothing_known)
    assert fit(plan.new, 40, plenty) == (plan.new, 40)


@given(
    spans=st.lists(st.sampled_from([2, 4, 6]), min_size=1, max_size=3),
    computed=st.integers(0, 60),
    rooms=st.lists(st.integers(0, 12), min_size=3, max_size=3),
    known=st.sets(st.tuples(st.integers(0, 2), st.integers(0, 30))),
)
def test_what_fits_never_exceeds_the_room_and_leaves_no_gap(spans, computed, rooms, known):
    groups = [full(i, span) for i, span in enumerate(spans)]
    cursor = StoreCursor(table_of(*groups, hash_block=2))
    tables = [list(range(1, 40)) for _ in groups]
    plan = cursor.plan(tables, computed, lambda group_id, page: (group_id, page) in known)
    pages, limit = fit(plan.new, computed, rooms.__getitem__)
    for group in groups:
        mine = ends(pages, group.group_id)
        assert len(mine) <= rooms[group.group_id]
        # Every page up to the cut is stored or was known before.
        for page in range(limit // group.span_tokens):
            assert (group.group_id, page) in known or (page + 1) * group.span_tokens in mine
    # The cut is as late as room allows: one page more would not fit somewhere.
    if limit < computed:
        assert any(
            len([e for e in ends(plan.new, g.group_id) if e <= limit + 1]) > rooms[g.group_id]
            for g in groups
        )


@pytest.mark.parametrize(("end", "unit", "index"), [(16, 16, 0), (3_584, 64, 55), (1648, 16, 102)])
def test_the_hash_of_a_page_is_the_one_of_its_last_unit(end, unit, index):
    assert page_hash_index(end, unit) == index
