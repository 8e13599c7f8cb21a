"""Extents: who owns which, what may be taken from whom, and how large they are."""

import pytest

from lmc_grouped.core.extent_plan import expected_waste, plan_extents
from lmc_grouped.core.extents import ExtentPlan
from lmc_grouped.core.index import PageIndex
from lmc_grouped.core.moves import EVICTIONS_PER_STEP, Rebalancer
from lmc_grouped.core.pool import NewPage
from tests.core.test_sizing import A08_BUDGET_BYTES, a08_table
from tests.factories import block_hash, full, recurrent, table_of, window

PAGE_BYTES = {0: 30, 1: 20}


def elastic(extents: int, *, floors: tuple[int, int] = (1, 1)) -> PageIndex:
    """Extents of 60 bytes: two pages of group 0, or three of group 1."""
    plan = ExtentPlan(60, extents, {0: 2, 1: 3}, dict(enumerate(floors)))
    return PageIndex({0: 2 * extents, 1: 3 * extents}, extents=plan)


def store(index: PageIndex, group_id: int, *numbers: int, useful: bool = True) -> list[int] | None:
    """Pages that lean on nothing, each serving a boundary of its own."""
    slots = index.reserve(numbers[0] + 1, [NewPage(group_id, block_hash(n)) for n in numbers])
    if slots is not None:
        index.commit(numbers[0] + 1)
        for number in numbers if useful else ():
            index.join([(group_id, [block_hash(number)])])
    return slots


def readable(index: PageIndex, group_id: int) -> list[int]:
    return [n for n in range(1_000) if index.has(group_id, block_hash(n))]


def owned(index: PageIndex) -> dict[int, int]:
    assert index.arena
    return {group_id: len(room.extents) for group_id, room in index.arena.rooms.items()}


def test_a_slot_says_which_extent_it_lies_in():
    index = elastic(4)
    assert store(index, 0, 0, 1, 2) == [0, 1, 2]
    # The third extent, with three pages of group 1 to an extent.
    assert store(index, 1, 10, 11, 12, 13) == [6, 7, 8, 9]
    assert owned(index) == {0: 2, 1: 2}


def test_an_extent_without_pages_belongs_to_nobody_again():
    index = elastic(2)
    store(index, 0, 0, 1)
    index.drop([(0, block_hash(0)), (0, block_hash(1))])
    assert owned(index) == {0: 0, 1: 0}
    assert store(index, 1, 10, 11, 12) is not None


def test_the_budget_goes_to_whoever_stores():
    index = elastic(10)
    for number in range(0, 60, 2):
        store(index, 0, number, number + 1)
    assert owned(index) == {0: 9, 1: 0}
    for number in range(100, 160, 3):
        store(index, 1, number, number + 1, number + 2)
        Rebalancer(index, PAGE_BYTES).plan(number, 10**6)
    assert owned(index)[1] > 1
    assert owned(index)[0] >= 1


def test_a_floor_is_kept_for_a_group_that_has_stored_nothing():
    index = elastic(4, floors=(1, 2))
    assert store(index, 0, 0, 1, 2, 3) is not None
    assert index.room_slots(0) == 4  # its own idle pages; two extents wait for group 1
    assert store(index, 0, 4, 5) is not None
    assert owned(index) == {0: 2, 1: 0}
    assert store(index, 1, 10, 11, 12, 13, 14, 15) is not None
    assert owned(index) == {0: 2, 1: 2}


def test_a_group_at_its_floor_loses_no_page_to_others():
    index = elastic(3, floors=(2, 1))
    store(index, 0, 0, 1, 2, 3)
    store(index, 1, 10, 11, 12)
    assert store(index, 1, 13, 14, 15, 16) is None
    assert readable(index, 0) == [0, 1, 2, 3]
    assert store(index, 1, 13) is not None
    assert readable(index, 1) == [11, 12, 13]


def test_a_reservation_that_is_refused_changes_nothing_and_asks_for_room():
    index = elastic(3)
    store(index, 0, 0, 1, 2, 3)
    index.lease("reader", [(0, block_hash(n)) for n in range(4)])
    before = index.residency()
    assert store(index, 1, 10, 11, 12, 13) is None
    assert index.residency() == before
    assert index.arena is not None
    index.note_shortage({1: 4})
    assert (index.arena.shortage_extents, index.arena.stalls) == (1, 1)


def test_what_nothing_can_use_makes_way_before_anything_useful_of_any_group():
    index = elastic(4)
    store(index, 0, 0, 1, useful=False)
    store(index, 0, 2, 3)
    store(index, 1, 10, 11, 12)
    store(index, 1, 13, 14, 15)
    store(index, 1, 16)
    assert readable(index, 0) == [2, 3]
    assert readable(index, 1) == [10, 11, 12, 13, 14, 15, 16]


# Moves.


def scattered() -> PageIndex:
    """Two extents of group 1, each with one page that is still useful."""
    index = elastic(5)
    store(index, 1, 10, 11, 12, 13, 14, 15)
    index.drop([(1, block_hash(n)) for n in (10, 11, 14, 15)])
    return index


def test_an_extent_is_emptied_by_moving_what_is_left_in_it():
    index = scattered()
    arena = index.arena
    assert arena is not None
    rebalancer = Rebalancer(index, PAGE_BYTES)
    arena.shortage_extents = 3
    moves = rebalancer.plan(99, 10**6)
    assert [(move.source_slot, move.target_slot) for move in moves] == [(2, 4)]
    # Until every rank has copied it, the page is read where it was, and both slots are taken.
    assert index.slots([(1, block_hash(12))]) == [2]
    assert owned(index)[1] == 2
    rebalancer.finish(99, None)
    assert index.slots([(1, block_hash(12)), (1, block_hash(13))]) == [4, 3]
    assert owned(index)[1] == 1
    assert readable(index, 1) == [12, 13]


def test_a_move_that_a_rank_refuses_leaves_the_page_where_it_is():
    index = scattered()
    arena = index.arena
    assert arena is not None
    rebalancer = Rebalancer(index, PAGE_BYTES)
    arena.shortage_extents = 3
    rebalancer.plan(99, 10**6)
    rebalancer.finish(99, "refused")
    assert index.slots([(1, block_hash(12))]) == [2]
    assert readable(index, 1) == [12, 13]
    assert index.residency()[1].held_slots == 0
    # It is not tried again: that group's extents are emptied by eviction.
    arena.shortage_extents = 3
    assert rebalancer.plan(100, 10**6) == []
    assert readable(index, 1) == [13]


def test_a_page_that_is_forgotten_on_its_way_gives_both_slots_back():
    index = scattered()
    assert index.arena is not None
    rebalancer = Rebalancer(index, PAGE_BYTES)
    index.arena.shortage_extents = 4
    rebalancer.plan(99, 10**6)
    index.clear()
    rebalancer.finish(99, None)
    assert len(index.arena.empty) == 5


def test_a_page_that_is_read_when_its_move_ends_stays_and_keeps_its_slot():
    """Its load may still be reading the source slot, which must not get another owner."""
    index = scattered()
    assert index.arena is not None
    rebalancer = Rebalancer(index, PAGE_BYTES)
    index.arena.shortage_extents = 3
    assert len(rebalancer.plan(99, 10**6)) == 1
    index.lease("reader", [(1, block_hash(12))])
    assert rebalancer.finish(99, None) == []
    assert index.slots([(1, block_hash(12))]) == [2]
    assert owned(index)[1] == 2
    # Nothing stays taken: an extent is emptied when the reader has ended.
    index.release("reader")
    index.arena.shortage_extents = 3
    assert len(rebalancer.plan(100, 10**6)) == 1
    assert len(rebalancer.finish(100, None)) == 1
    assert owned(index)[1] == 1


def test_a_page_that_is_read_does_not_move():
    index = scattered()
    assert index.arena is not None
    index.lease("reader", [(1, block_hash(12))])
    index.arena.shortage_extents = 4
    moves = Rebalancer(index, PAGE_BYTES).plan(99, 10**6)
    assert [move.source_slot for move in moves] == [3]


def test_nothing_moves_and_nothing_leaves_while_enough_is_empty():
    index = scattered()
    assert Rebalancer(index, PAGE_BYTES).plan(99, 10**6) == []
    assert readable(index, 1) == [12, 13]


def test_the_work_of_one_step_is_bounded():
    plan = ExtentPlan(60, 4_000, {0: 2, 1: 3}, {0: 1, 1: 1})
    index = PageIndex({0: 8_000, 1: 12_000}, extents=plan)
    for number in range(0, 7_900, 100):
        store(index, 0, *range(number, number + 100))
    assert index.arena is not None
    index.arena.shortage_extents = 3_000
    Rebalancer(index, PAGE_BYTES).plan(9_999, 10**6)
    assert index.residency()[0].evicted_pages == EVICTIONS_PER_STEP


def test_stalls_and_floors_that_held_are_counted_once():
    index = elastic(3, floors=(1, 2))
    store(index, 0, 0)
    store(index, 1, 10, 11, 12, 13, 14, 15)
    rebalancer = Rebalancer(index, PAGE_BYTES)
    index.note_shortage({0: 9})
    rebalancer.plan(99, 10**6)
    assert rebalancer.take_counts() == {"stalls": 1, "floor_hits": 0}
    assert rebalancer.take_counts() == {"stalls": 0, "floor_hits": 0}


# Sizes.


def test_extents_of_the_field_geometry_are_its_largest_page():
    plan = plan_extents(a08_table(), A08_BUDGET_BYTES, retention_tokens=0, reference_tokens=65_536)
    assert plan is not None
    assert (plan.extent_bytes, plan.extents) == (10_235_904, 419)
    assert plan.slots_per_extent == {0: 1, 2: 1, 3: 1, 4: 1, 5: 12}
    assert plan.floor_extents == {0: 83, 2: 3, 5: 1}
    assert plan.shares == {3: 2, 4: 2}
    assert plan.reserve_extents == 2


def test_a_size_is_chosen_that_pages_of_every_group_fill():
    groups = full(0, page_bytes=6_000), recurrent(1, page_bytes=4_500)
    table = table_of(*groups)
    plan = plan_extents(table, 10**9, retention_tokens=0, reference_tokens=160)
    assert plan is not None
    assert plan.extent_bytes % 18_000 == 0
    pages = {0: 10, 1: 1}
    assert expected_waste(groups, pages, 10**9, plan.extent_bytes) < 0.001
    assert expected_waste(groups, pages, 10**9, 6_000) > 0.01


def test_waste_counts_what_pages_leave_over_what_is_half_filled_and_the_rest():
    groups = full(0, page_bytes=60), recurrent(1, page_bytes=25)
    pages = {0: 5, 1: 4}  # 300 and 100 bytes
    # 60 is filled by one page of group 0; two of group 1 leave 10 of 60 and are half filled.
    assert expected_waste(groups, pages, 1_000, 60) == pytest.approx(
        0.25 * 10 / 60 + (25 / 2 + 1_000 % 60) / 1_000
    )


def test_groups_that_are_alike_share_extents_and_are_half_filled_once():
    groups = (
        full(0, page_bytes=60),
        recurrent(1, page_bytes=20),
        recurrent(2, page_bytes=20),
        recurrent(3, page_bytes=30),
    )
    plan = plan_extents(table_of(*groups), 6_000, retention_tokens=0, reference_tokens=160)
    assert plan is not None
    assert (plan.extent_bytes, plan.shares) == (60, {2: 1})
    assert plan.floor_extents == {0: 10, 1: 1, 3: 1}
    assert (plan.sharers(1), plan.owner_of(2), plan.owner_of(3)) == ([1, 2], 1, 3)
    pages = {0: 10, 1: 1, 2: 1, 3: 1}
    assert expected_waste(groups, pages, 6_000, 60) == pytest.approx((40 + 30) / 2 / 6_000)


@pytest.mark.parametrize(
    "other",
    [window(1, 96), window(1, 64, span=32), window(1, 64, page_bytes=32),
     window(1, 64, drafter=True), full(1), recurrent(1)],
)  # fmt: skip
def test_groups_that_may_keep_other_pages_of_a_request_share_no_extents(other):
    table = table_of(window(0, 64), other)
    plan = plan_extents(table, 10**6, retention_tokens=0, reference_tokens=160)
    assert plan is not None
    assert plan.shares == {}


def test_slots_of_groups_that_share_extents_lie_in_one_extent():
    plan = ExtentPlan(60, 3, {0: 2, 1: 3, 2: 3}, {0: 1, 1: 1}, {2: 1})
    index = PageIndex({}, extents=plan)
    assert store(index, 1, 1) == [0]
    assert store(index, 2, 2, 3) == [1, 2]
    assert owned(index) == {0: 0, 1: 1}
    residency = index.residency()
    assert {g: pool.owner_id for g, pool in residency.items()} == {0: 0, 1: 1, 2: 1}
    assert {g: pool.resident_pages for g, pool in residency.items()} == {0: 0, 1: 1, 2: 2}


def test_pages_of_groups_that_share_extents_move_together_each_as_its_own():
    index = PageIndex({}, extents=ExtentPlan(60, 3, {0: 2, 1: 3, 2: 3}, {0: 1, 1: 1}, {2: 1}))
    store(index, 1, 1, 2, 3)
    store(index, 2, 4, 5, 6)
    index.drop([(1, block_hash(1)), (2, block_hash(5)), (2, block_hash(6))])
    assert owned(index) == {0: 0, 1: 2}
    rebalancer = Rebalancer(index, {0: 30, 1: 20, 2: 20})
    index.arena.shortage_extents = 1
    (move,) = rebalancer.plan(99, 10**6)
    assert (move.group_id, move.source_slot // 3, move.target_slot // 3) == (2, 1, 0)
    assert rebalancer.moving_slots == {(2, move.source_slot)}
    rebalancer.finish(99, None)
    assert owned(index) == {0: 0, 1: 1}
    assert index.slots([(2, block_hash(4))]) == [move.target_slot]


@pytest.mark.parametrize("budget", [10_000, 64 * 11, 64 * 10])
def test_a_budget_below_the_floors_gets_no_extents(budget):
    table = table_of(full(0), recurrent(1))
    plan = plan_extents(table, budget, retention_tokens=0, reference_tokens=160)
    assert (plan is None) == (budget < 64 * 11)


def test_a_rank_without_layers_of_a_group_gets_no_extents():
    table = table_of(full(0), recurrent(1, page_bytes=0))
    assert plan_extents(table, 10**6, retention_tokens=0, reference_tokens=160) is None
