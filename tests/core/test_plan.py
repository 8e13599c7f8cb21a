"""Store planning: positional, null-safe, cut at one token for all groups."""

from hypothesis import given
from hypothesis import strategies as st

from lmc_grouped.core.groups import GroupTable
from lmc_grouped.core.plan import (
    NULL_BLOCK,
    PlannedPage,
    StoreCursor,
    StorePlan,
    fit,
)
from lmc_grouped.core.retention import prompt_mask
from tests.factories import (
    EVERY_PAGE,
    full,
    nothing_known,
    plenty,
    recurrent,
    separate,
    table_of,
    window,
)


def ends(pages: list[PlannedPage], group_id: int) -> list[int]:
    return [page.end_tokens for page in pages if page.group_id == group_id]


def test_a01_a_scratch_ring_contributes_nothing_and_lowers_nothing():
    states = [recurrent(i, 1600) for i in (2, 3, 4, 5)]
    cursor = StoreCursor(table_of(full(0, 1600), *states, scratch_ids=(1,)))
    ring, normal = [7], [11, 12]
    plan = cursor.plan([normal, ring, *[normal] * 4], 3_200, nothing_known, EVERY_PAGE)
    assert [page.block_id for page in plan.new] == [11, 12]
    assert {page.group_id for page in plan.new} == {0}


def test_a01_the_computed_tokens_bound_the_pages_and_not_the_allocated_ones():
    groups = [full(0, 816), *(recurrent(i, 816) for i in range(2, 6))]
    cursor = StoreCursor(table_of(*groups, scratch_ids=(1,)))
    tables = [list(range(1, 13)), [40], *[list(range(50, 66))] * 4]
    plan = cursor.plan(tables, min(9_025, 9_792, 883), nothing_known, EVERY_PAGE)
    assert [(page.page_index, page.end_tokens) for page in plan.new] == [(0, 816)]


def test_a01_a_model_of_scratch_groups_only_plans_nothing():
    cursor = StoreCursor(GroupTable(groups=(), alignment_tokens=8, hash_block_tokens=8))
    assert not cursor.is_due(10_000)
    assert cursor.plan([[1], [2]], 10_000, nothing_known, EVERY_PAGE) == StorePlan()
    assert cursor.pages_left(10_000, EVERY_PAGE) == 0


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
        plan = cursor.plan(tables, computed, nothing_known, EVERY_PAGE)
        pages, limit = fit(plan.new, computed, 32, plenty)
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
    plan = cursor.plan([list(range(1, 513)), sliding_blocks], 8_192, nothing_known, EVERY_PAGE)
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
    plan = cursor.plan([[0, 0, 9]], 96, lambda group_id, page: page == 0, EVERY_PAGE)
    assert [page.page_index for page in plan.known] == [0]
    assert [page.page_index for page in plan.null] == [1]
    assert [page.page_index for page in plan.new] == [2]


def test_recurrent_states_are_never_taken_from_a_table():
    cursor = StoreCursor(table_of(full(0), recurrent(1)))
    plan = cursor.plan([[3, 4], [0, 9]], 32, nothing_known, EVERY_PAGE)
    assert {page.group_id for page in plan.new} == {0}


def test_tables_are_read_by_the_ids_of_the_engine():
    cursor = StoreCursor(table_of(full(0), full(2), scratch_ids=(1,)))
    plan = cursor.plan([[10, 11], [77], [20, 21]], 32, nothing_known, EVERY_PAGE)
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
    assert [p.block_id for p in cursor.plan(blocks, 31, nothing_known, EVERY_PAGE).new] == [5]
    cursor.advance(31)
    assert not cursor.is_due(31)
    assert cursor.pages_left(48, EVERY_PAGE) == 2
    assert [p.block_id for p in cursor.plan(blocks, 48, nothing_known, EVERY_PAGE).new] == [6, 7]


def test_a_cursor_never_goes_back_unless_it_is_rewound():
    cursor = StoreCursor(table_of(full(0)))
    cursor.advance(48)
    cursor.advance(16)
    assert not cursor.is_due(48)
    cursor.rewind()
    assert cursor.pages_left(48, EVERY_PAGE) == 3


def test_a_table_shorter_than_the_computed_tokens_is_not_read_past_its_end():
    cursor = StoreCursor(table_of(full(0)))
    assert len(cursor.plan([[5]], 64, nothing_known, EVERY_PAGE).new) == 1


def test_one_group_without_room_cuts_all_groups_at_the_same_token():
    cursor = StoreCursor(table_of(full(0, 16), full(1, 32)))
    tables = [list(range(1, 9)), list(range(11, 15))]
    plan = cursor.plan(tables, 128, nothing_known, EVERY_PAGE)
    pages, limit = fit(plan.new, 128, 32, separate(lambda group_id: 2 if group_id else 100))
    # Group 1 has no room for its third page, which ends at 96.
    assert limit == 64
    assert ends(pages, 1) == [32, 64]
    assert ends(pages, 0) == [16, 32, 48, 64]
    cursor.advance(limit)
    assert cursor.pages_left(128, EVERY_PAGE) == 4 + 2


def test_no_room_at_all_stores_nothing_and_leaves_everything_to_do():
    cursor = StoreCursor(table_of(full(0), window(1, 32)))
    plan = cursor.plan([[1, 2], [3, 4]], 32, nothing_known, EVERY_PAGE)
    pages, limit = fit(plan.new, 32, 32, separate(lambda group_id: 0 if group_id else 9))
    assert pages == []
    cursor.advance(limit)
    assert cursor.pages_left(32, EVERY_PAGE) == 4


def test_room_for_everything_cuts_nothing():
    cursor = StoreCursor(table_of(full(0)))
    plan = cursor.plan([[1, 2]], 40, nothing_known, EVERY_PAGE)
    assert fit(plan.new, 40, 16, plenty) == (plan.new, 40)


@given(
    spans=st.lists(st.sampled_from([2, 4, 6]), min_size=1, max_size=3),
    computed=st.integers(0, 60),
    rooms=st.lists(st.integers(0, 12), min_size=3, max_size=3),
    known=st.lists(st.integers(0, 30), min_size=3, max_size=3),
)
def test_what_fits_never_exceeds_the_room_and_leaves_no_gap(spans, computed, rooms, known):
    groups = [full(i, span) for i, span in enumerate(spans)]
    table = table_of(*groups, hash_block=2)
    cursor = StoreCursor(table)
    tables = [list(range(1, 40)) for _ in groups]

    def is_known(group_id: int, page: int) -> bool:
        return page < known[group_id]

    plan = cursor.plan(tables, computed, is_known, EVERY_PAGE)
    pages, limit = fit(plan.new, computed, table.alignment_tokens, separate(rooms.__getitem__))
    whole = min(limit, computed) // table.alignment_tokens * table.alignment_tokens
    for group in groups:
        mine = ends(pages, group.group_id)
        assert len(mine) <= rooms[group.group_id]
        # Every page of whole alignments up to the cut is stored or was known before.
        for page in range(whole // group.span_tokens):
            assert is_known(group.group_id, page) or (page + 1) * group.span_tokens in mine
    # The cut is as late as room allows: one page more would not fit somewhere.
    if limit < computed:
        more = limit + table.alignment_tokens
        assert any(
            len([e for e in ends(plan.new, g.group_id) if e <= more]) > rooms[g.group_id]
            for g in groups
        )


def test_groups_that_share_rows_share_the_room():
    cursor = StoreCursor(table_of(full(0), full(1)))
    plan = cursor.plan([[1, 2, 3], [4, 5, 6]], 48, nothing_known, EVERY_PAGE)
    pages, limit = fit(plan.new, 48, 16, lambda wanted: sum(wanted.values()) <= 4)
    assert limit == 32
    assert (ends(pages, 0), ends(pages, 1)) == ([16, 32], [16, 32])


def test_of_a_full_group_only_the_last_known_page_is_named():
    cursor = StoreCursor(table_of(full(0)))
    plan = cursor.plan([[1, 2, 3]], 48, lambda group_id, page: page < 2, EVERY_PAGE)
    assert [page.page_index for page in plan.known] == [1]
    assert [page.page_index for page in plan.new] == [2]


def test_finding_what_is_known_does_not_ask_for_every_page():
    cursor = StoreCursor(table_of(full(0)))
    asked: list[int] = []

    def is_known(group_id: int, page: int) -> bool:
        asked.append(page)
        return page < 3_000

    plan = cursor.plan([list(range(1, 4_097))], 65_536, is_known, EVERY_PAGE)
    assert len(plan.new) == 1_096
    assert len(asked) <= 13


def test_a_window_stores_only_what_its_mask_keeps():
    attention, sliding = full(0), window(1, 33)
    table = table_of(attention, sliding)
    masks = {group.group_id: prompt_mask(group, table, 160, 0, [64]) for group in table.groups}
    plan = StoreCursor(table).plan([list(range(1, 11))] * 2, 160, nothing_known, masks)
    # The repeat resumes at 144, a longer sibling at 160, the junction is at 64.
    assert [page.page_index for page in plan.new if page.group_id == 1] == [2, 3, 7, 8, 9]
    assert len(ends(plan.new, 0)) == 10


def test_pages_of_an_unfinished_alignment_wait_unless_a_drafter_reads_them():
    groups = full(0, 32), full(1, 16, drafter=True)
    cursor = StoreCursor(table_of(*groups, alignment=64))
    plan = cursor.plan([[1, 2, 3], [4, 5, 6, 7, 8, 9]], 96, nothing_known, EVERY_PAGE)
    assert ends(plan.new, 0) == [32, 64]
    assert ends(plan.new, 1) == [16, 32, 48, 64, 80, 96]
