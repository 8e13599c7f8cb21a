"""The index: reservations, leases, eviction; pools that stay apart."""

import pytest

from lmc_grouped.core.index import PageIndex
from lmc_grouped.core.pool import NewPage, PageRef, Residency
from tests.factories import block_hash


def refs(group_id: int, *numbers: int) -> list[PageRef]:
    return [(group_id, block_hash(number)) for number in numbers]


def new(group_id: int, *numbers: int) -> list[NewPage]:
    """Pages that lean on nothing."""
    return [NewPage(*ref) for ref in refs(group_id, *numbers)]


def prefix(group_id: int, *numbers: int, after: int | None = None) -> list[NewPage]:
    """Pages that each lean on the one before."""
    before = [after, *numbers[:-1]]
    return [
        NewPage(group_id, block_hash(number), None if b is None else block_hash(b))
        for number, b in zip(numbers, before, strict=True)
    ]


def store(index: PageIndex, operation_id: int, pages: list[NewPage]) -> list[int] | None:
    slots = index.reserve(operation_id, pages)
    if slots is not None:
        index.commit(operation_id)
    return slots


def readable(index: PageIndex, group_id: int, count: int) -> list[int]:
    return [n for n in range(count) if index.has(group_id, block_hash(n))]


def test_a_page_is_readable_only_after_the_commit():
    index = PageIndex({0: 2})
    index.reserve(1, new(0, 5))
    assert not index.has(0, block_hash(5))
    assert index.knows(0, block_hash(5))
    index.commit(1)
    assert index.has(0, block_hash(5))


def test_an_aborted_operation_leaves_room_and_other_pages_as_they_were():
    index = PageIndex({0: 3})
    store(index, 1, new(0, 1))
    before = index.residency()
    index.reserve(2, new(0, 2, 3))
    index.abort(2)
    assert index.residency() == before
    assert readable(index, 0, 4) == [1]
    assert not index.knows(0, block_hash(2))
    assert store(index, 3, new(0, 2)) is not None


def test_a_reservation_that_fails_in_one_group_changes_nothing_in_any():
    index = PageIndex({0: 4, 1: 1})
    store(index, 1, new(0, 1, 2, 3, 4))
    index.lease("reader", [])
    version, before = index.version, index.residency()
    assert index.reserve(2, new(0, 5) + new(1, 6, 7)) is None
    assert index.residency() == before
    assert index.version == version
    assert readable(index, 0, 8) == [1, 2, 3, 4]
    assert not index.knows(0, block_hash(5))
    assert not index.knows(1, block_hash(6))


def test_a07_sixteen_keys_fit_sixteen_pages_and_the_seventeenth_evicts_one():
    # Two chunks of eight disjoint groups, one page each, in a budget of 16 pages.
    index = PageIndex(dict.fromkeys(range(8), 2))
    for chunk in range(2):
        assert store(index, chunk, [NewPage(g, block_hash(chunk)) for g in range(8)]) is not None
    assert all(readable(index, group_id, 2) == [0, 1] for group_id in range(8))
    assert sum(pool.free_slots for pool in index.residency().values()) == 0
    store(index, 99, new(3, 2))
    assert sum(pool.evicted_pages for pool in index.residency().values()) == 1
    assert readable(index, 3, 3) == [1, 2]
    assert all(readable(index, g, 3) == [0, 1] for g in range(8) if g != 3)


def test_flooding_one_group_leaves_the_others_alone():
    index = PageIndex({0: 2, 1: 2})
    store(index, 0, new(1, 0, 1))
    for number in range(100):
        store(index, 1 + number, new(0, number))
    assert readable(index, 1, 2) == [0, 1]
    assert index.residency()[0] == Residency(0, 2, 0, 2, 2, 2, 98)


def test_the_longest_idle_page_leaves_first_and_a_use_renews_it():
    index = PageIndex({0: 3})
    for number in range(3):
        store(index, number, new(0, number))
    index.lease("reader", refs(0, 0))
    index.release("reader")
    store(index, 3, new(0, 3))
    assert readable(index, 0, 4) == [0, 2, 3]


def test_a_prefix_leaves_from_its_end():
    index = PageIndex({0: 4})
    store(index, 0, prefix(0, 0, 1, 2, 3))
    store(index, 1, new(0, 7, 8))
    assert readable(index, 0, 9) == [0, 1, 7, 8]


def test_holding_the_end_of_a_prefix_holds_all_of_it():
    index = PageIndex({0: 4})
    store(index, 0, prefix(0, 0, 1, 2))
    index.lease("reader", refs(0, 2))
    assert index.room_slots(0) == 1
    assert index.reserve(1, new(0, 7, 8)) is None
    index.release("reader")
    assert store(index, 2, new(0, 7, 8)) is not None
    assert readable(index, 0, 9) == [0, 1, 7, 8]


def test_using_the_end_of_a_prefix_renews_all_of_it():
    index = PageIndex({0: 6})
    store(index, 0, prefix(0, 0, 1, 2))
    store(index, 1, prefix(0, 10, 11, 12))
    index.lease("reader", refs(0, 2))
    index.release("reader")
    store(index, 2, new(0, 20, 21, 22))
    assert readable(index, 0, 30) == [0, 1, 2, 20, 21, 22]


def test_a_branch_is_shortened_before_the_stem_it_leans_on():
    index = PageIndex({0: 6})
    store(index, 0, prefix(0, 0, 1))
    for operation_id, branch in ((1, (10, 11)), (2, (20, 21))):
        index.lease("writer", refs(0, 1))
        store(index, operation_id, prefix(0, *branch, after=1))
        index.release("writer")
    left = []
    for number in range(30, 35):
        before = readable(index, 0, 40)
        store(index, number, new(0, number))
        index.lease(f"keep {number}", refs(0, number))
        left += [page for page in before if page not in readable(index, 0, 40)]
    assert left == [11, 10, 21, 20, 1]


def test_a_page_is_not_reserved_behind_one_that_may_leave():
    index = PageIndex({0: 2})
    store(index, 0, prefix(0, 0))
    with pytest.raises(AssertionError, match="may leave"):
        index.reserve(1, prefix(0, 1, after=0))


def test_dropping_a_page_drops_what_leans_on_it_and_nothing_else():
    index = PageIndex({0: 9})
    store(index, 0, prefix(0, 0, 1, 2))
    store(index, 1, prefix(0, 10, 11))
    index.lease("reader", refs(0, 2))
    index.drop(refs(0, 1))
    assert readable(index, 0, 12) == [0, 10, 11]
    assert index.room_slots(0) == 9 - 1  # the reader named page 2 only
    index.release("reader")
    assert index.room_slots(0) == 9


def test_an_aborted_store_takes_what_was_stored_behind_it_along():
    index = PageIndex({0: 4})
    index.reserve(1, prefix(0, 0, 1))
    index.reserve(2, prefix(0, 2, after=1))
    index.abort(1)
    index.commit(2)
    assert not any(index.knows(0, block_hash(n)) for n in range(3))
    assert index.residency() == {0: Residency(0, 4, 4, 0, 0, 0, 0)}


# Families.


def ends(*pages: tuple[int, int]) -> list[tuple[int, list[bytes]]]:
    return [(group_id, [block_hash(number)]) for group_id, number in pages]


def test_what_nothing_can_use_leaves_before_the_oldest_that_serves():
    index = PageIndex({0: 3})
    store(index, 0, new(0, 0))
    index.join(ends((0, 0)))
    store(index, 1, new(0, 1))
    store(index, 2, new(0, 2))
    index.join(ends((0, 2)))
    assert index.residency()[0].useless_slots == 1
    store(index, 3, new(0, 3))
    assert readable(index, 0, 4) == [0, 2, 3]


def test_a_state_that_leaves_frees_the_attention_only_it_could_use():
    index = PageIndex({0: 8, 1: 1})
    # Two prompts share a stem of two pages; each has its state at its end.
    store(index, 0, prefix(0, 0, 1))
    index.lease("a", refs(0, 1))
    store(index, 1, prefix(0, 10, 11, after=1) + new(1, 11))
    assert index.join(ends((1, 11), (0, 11)))
    store(index, 2, prefix(0, 20, 21, after=1) + new(1, 21))  # the first state leaves
    assert index.join(ends((1, 21), (0, 21)))
    index.release("a")
    assert index.residency()[0].useless_slots == 2
    store(index, 3, new(0, 30, 31, 32, 33))
    assert readable(index, 0, 40) == [0, 1, 20, 21, 30, 31, 32, 33]


def test_a_state_leaves_with_the_attention_that_led_to_it():
    index = PageIndex({0: 4, 1: 2})
    store(index, 0, prefix(0, 0, 1) + new(1, 1))
    index.join(ends((1, 1), (0, 1)))
    store(index, 1, prefix(0, 10, 11) + new(1, 11))
    index.join(ends((1, 11), (0, 11)))
    index.lease("reader", refs(1, 1))  # the first state is the more recently used ...
    index.release("reader")
    store(index, 2, new(0, 20))  # ... but its attention is the older and loses its end
    assert index.residency()[1].useless_slots == 1
    store(index, 3, new(1, 30))
    assert readable(index, 1, 40) == [11, 30]


def test_a_shared_stem_stays_as_long_as_one_branch_is_served():
    index = PageIndex({0: 5, 1: 2})
    store(index, 0, prefix(0, 0, 1, 2) + new(1, 2))
    index.join(ends((1, 2), (0, 2)))
    index.lease("a", refs(0, 1))
    store(index, 1, prefix(0, 12, after=1) + new(1, 12))
    index.join(ends((1, 12), (0, 12)))
    index.release("a")
    index.drop(refs(1, 2))
    assert index.residency()[0].useless_slots == 1
    index.drop(refs(1, 12))
    assert index.residency()[0].useless_slots == 4


def test_a_tail_is_one_with_its_last_page():
    index = PageIndex({0: 4, 1: 9})
    store(index, 0, prefix(0, 0, 1, 2, 3) + new(1, 1, 2, 3))
    assert index.join([(1, [block_hash(n) for n in (1, 2, 3)]), *ends((0, 3))])
    assert index.residency()[1].useless_slots == 0
    store(index, 1, new(0, 9))  # the boundary has lost its attention
    assert index.residency()[1].useless_slots == 3


def test_overlapping_tails_lose_only_what_the_other_does_not_need():
    index = PageIndex({0: 9, 1: 9})
    store(index, 0, prefix(0, 0, 1, 2, 3) + new(1, 2, 3))
    index.join([(1, [block_hash(n) for n in (2, 3)]), *ends((0, 3))])
    # A shorter prompt ends one page earlier; its tail brings the page before.
    store(index, 1, new(1, 1))
    index.join([(1, [block_hash(n) for n in (1, 2)]), *ends((0, 2))])
    index.drop(refs(0, 3))
    assert index.residency()[1].useless_slots == 1
    index.drop(refs(0, 2))
    assert index.residency()[1].useless_slots == 3


def test_a_family_that_lacks_a_page_is_none():
    index = PageIndex({0: 2, 1: 2})
    store(index, 0, new(0, 0))
    assert not index.join(ends((1, 0), (0, 0)))
    assert index.residency()[0].useless_slots == 1
    store(index, 1, new(1, 0))
    assert index.join(ends((1, 0), (0, 0)))
    assert index.join(ends((1, 0), (0, 0)))
    assert index.residency()[0].useless_slots == 0
    index.drop(refs(1, 0))
    assert index.residency()[0].useless_slots == 1


def test_groups_that_share_rows_take_them_from_each_other():
    index = PageIndex({0: 3, 1: 3}, shared=True)
    assert store(index, 0, new(0, 0, 1)) == [0, 1]
    assert store(index, 1, new(1, 0)) == [2]
    assert index.reserve(2, new(0, 5, 6) + new(1, 5, 6)) is None
    assert store(index, 3, new(1, 5)) is not None
    assert readable(index, 0, 9) == [0]
    assert readable(index, 1, 9) == [0, 5]
    assert [pool.resident_pages for pool in index.residency().values()] == [1, 2]


def test_a_leased_page_stays_and_a_reservation_that_needs_its_slot_is_refused():
    index = PageIndex({0: 2})
    store(index, 0, new(0, 0, 1))
    index.lease("reader", refs(0, 0))
    assert index.room_slots(0) == 1
    assert index.reserve(1, new(0, 2, 3)) is None
    assert store(index, 2, new(0, 2)) is not None
    assert readable(index, 0, 4) == [0, 2]


def test_leases_of_several_owners_add_up():
    index = PageIndex({0: 1})
    store(index, 0, new(0, 0))
    index.lease("a", refs(0, 0))
    index.lease("b", refs(0, 0, 0))
    assert (index.leased_pages("a"), index.leased_pages("b")) == (1, 2)
    index.release("b")
    assert index.room_slots(0) == 0
    index.release("a")
    assert index.room_slots(0) == 1
    assert index.leased_pages("a") == 0


def test_releasing_twice_or_an_unknown_owner_changes_nothing():
    index = PageIndex({0: 1})
    store(index, 0, new(0, 0))
    index.lease("a", refs(0, 0))
    index.release("a")
    index.release("a")
    index.release("stranger")
    assert index.residency() == {0: Residency(0, 1, 0, 1, 1, 1, 0)}


def test_leasing_an_unknown_page_leases_nothing():
    index = PageIndex({0: 2})
    store(index, 0, new(0, 0))
    with pytest.raises(KeyError):
        index.lease("reader", refs(0, 0, 1))
    assert index.leased_pages("reader") == 0
    assert index.room_slots(0) == 2


def test_a_dropped_page_keeps_its_slot_until_its_readers_are_done():
    index = PageIndex({0: 1})
    (slot,) = store(index, 0, new(0, 0))
    index.lease("reader", refs(0, 0))
    index.drop(refs(0, 0))
    assert not index.has(0, block_hash(0))
    assert not index.knows(0, block_hash(0))
    assert index.reserve(1, new(0, 0)) is None
    index.release("reader")
    assert index.reserve(2, new(0, 0)) == [slot]


def test_dropping_what_is_unknown_or_being_written_changes_no_room():
    index = PageIndex({0: 2})
    index.reserve(1, new(0, 0))
    index.drop(refs(0, 0, 9))
    assert index.room_slots(0) == 1
    index.commit(1)
    assert index.has(0, block_hash(0))


def test_clear_forgets_every_page_of_every_group():
    index = PageIndex({0: 2, 1: 2})
    store(index, 0, new(0, 0, 1) + new(1, 0))
    index.lease("reader", refs(1, 0))
    index.clear()
    assert readable(index, 0, 2) == readable(index, 1, 2) == []
    assert index.room_slots(0) == 2
    assert index.room_slots(1) == 1
    index.release("reader")
    assert index.room_slots(1) == 2


def test_what_is_being_written_when_all_is_forgotten_never_becomes_readable():
    index = PageIndex({0: 2})
    index.reserve(1, new(0, 0))
    index.clear()
    assert not index.knows(0, block_hash(0))
    assert index.room_slots(0) == 1
    # Its slot is still being written to: the page stored again lies elsewhere.
    assert store(index, 2, new(0, 0)) == [1]
    index.drop(refs(0, 0))
    index.commit(1)
    assert not index.has(0, block_hash(0))
    assert index.room_slots(0) == 2
    index.reserve(3, new(0, 5))
    index.clear()
    index.abort(3)
    assert index.residency() == {0: Residency(0, 2, 2, 0, 0, 0, 0)}


def test_the_version_changes_with_every_answer_and_releases_with_every_room():
    index = PageIndex({0: 2})
    seen = [(index.version, index.releases)]

    def moved() -> tuple[bool, bool]:
        seen.append((index.version, index.releases))
        return seen[-1][0] != seen[-2][0], seen[-1][1] != seen[-2][1]

    index.reserve(1, new(0, 0))
    moved()
    index.commit(1)
    assert moved() == (True, True)
    index.lease("reader", refs(0, 0))
    moved()
    index.release("reader")
    assert moved()[1]
    index.drop(refs(0, 0))
    assert moved() == (True, True)


def test_an_operation_ends_once():
    index = PageIndex({0: 1})
    index.reserve(1, new(0, 0))
    index.commit(1)
    with pytest.raises(KeyError):
        index.commit(1)
    with pytest.raises(KeyError):
        index.abort(1)


def test_a_pool_without_slots_refuses_and_breaks_nothing():
    index = PageIndex({0: 0, 1: 1})
    assert index.reserve(1, new(0, 0)) is None
    assert index.reserve(2, []) == []
    index.commit(2)
    assert store(index, 3, new(1, 0)) == [0]
