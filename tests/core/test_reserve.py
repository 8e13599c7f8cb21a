"""The reserve of empty extents: what it costs, and what must not leave for it."""

from lmc_grouped.core.extents import ExtentPlan
from lmc_grouped.core.index import PageIndex
from lmc_grouped.core.moves import Rebalancer
from tests.core.test_index import new, readable, refs, store
from tests.factories import block_hash

TWO_PAGES = ExtentPlan(2, 200, {0: 2, 1: 2}, {0: 1, 1: 1})


def full_of_scattered_leases() -> PageIndex:
    """198 extents of group 0, half of each leased, and two extents of useful pages of group 1."""
    index = PageIndex({0: 400, 1: 400}, extents=TWO_PAGES)
    store(index, 1, new(1, *range(4)))
    for number in range(4):
        index.join([(1, [block_hash(number)])])
    store(index, 2, new(0, *range(396)))
    index.lease("running", refs(0, *range(0, 396, 2)))
    return index


def test_the_reserve_is_one_extent_in_two_hundred():
    assert TWO_PAGES.reserve_extents == 1


def test_extents_of_one_page_need_no_reserve():
    assert ExtentPlan(1, 1_000, {0: 1, 1: 1}, {0: 1, 1: 1}).reserve_extents == 0


def test_useful_pages_stay_when_it_is_others_that_cannot_move():
    index = full_of_scattered_leases()
    assert Rebalancer(index, {0: 1, 1: 1}).plan(3, 100) == []
    assert readable(index, 1, 4) == list(range(4))


def test_useful_pages_leave_when_somebody_waits_for_room():
    index = full_of_scattered_leases()
    index.note_shortage({0: 400})
    Rebalancer(index, {0: 1, 1: 1}).plan(3, 100)
    assert readable(index, 1, 4) == [2, 3]
