"""The index: reservations, leases, eviction; pools that stay apart."""

import pytest

from lmc_grouped.core.index import PageIndex, PageRef, Residency
from tests.factories import block_hash


def refs(group_id: int, *numbers: int) -> list[PageRef]:
    return [(group_id, block_hash(number)) for number in numbers]


def store(index: PageIndex, operation_id: int, pages: list[PageRef]) -> list[int] | None:
    slots = index.reserve(operation_id, pages)
    if slots is not None:
        index.commit(operation_id)
    return slots


def readable(index: PageIndex, group_id: int, count: int) -> list[int]:
    return [n for n in range(count) if index.has(group_id, block_hash(n))]


def test_a_page_is_readable_only_after_the_commit():
    index = PageIndex({0: 2})
    index.reserve(1, refs(0, 5))
    assert not index.has(0, block_hash(5))
    assert index.knows(0, block_hash(5))
    index.commit(1)
    assert index.has(0, block_hash(5))


def test_an_aborted_operation_leaves_room_and_other_pages_as_they_were():
    index = PageIndex({0: 3})
    store(index, 1, refs(0, 1))
    before = index.residency()
    index.reserve(2, refs(0, 2, 3))
    index.abort(2)
    assert index.residency() == before
    assert readable(index, 0, 4) == [1]
    assert not index.knows(0, block_hash(2))
    assert store(index, 3, refs(0, 2)) is not None


def test_a_reservation_that_fails_in_one_group_changes_nothing_in_any():
    index = PageIndex({0: 4, 1: 1})
    store(index, 1, refs(0, 1, 2, 3, 4))
    index.lease("reader", [])
    version, before = index.version, index.residency()
    assert index.reserve(2, refs(0, 5) + refs(1, 6, 7)) is None
    assert index.residency() == before
    assert index.version == version
    assert readable(index, 0, 8) == [1, 2, 3, 4]
    assert not index.knows(0, block_hash(5))
    assert not index.knows(1, block_hash(6))


def test_a07_sixteen_keys_fit_sixteen_pages_and_the_seventeenth_evicts_one():
    # Two chunks of eight disjoint groups, one page each, in a budget of 16 pages.
    index = PageIndex(dict.fromkeys(range(8), 2))
    for chunk in range(2):
        assert store(index, chunk, [(g, block_hash(chunk)) for g in range(8)]) is not None
    assert all(readable(index, group_id, 2) == [0, 1] for group_id in range(8))
    assert sum(pool.free_slots for pool in index.residency().values()) == 0
    store(index, 99, refs(3, 2))
    assert sum(pool.evicted_pages for pool in index.residency().values()) == 1
    assert readable(index, 3, 3) == [1, 2]
    assert all(readable(index, g, 3) == [0, 1] for g in range(8) if g != 3)


def test_flooding_one_group_leaves_the_others_alone():
    index = PageIndex({0: 2, 1: 2})
    store(index, 0, refs(1, 0, 1))
    for number in range(100):
        store(index, 1 + number, refs(0, number))
    assert readable(index, 1, 2) == [0, 1]
    assert index.residency()[0] == Residency(2, 0, 2, 98)


def test_the_longest_idle_page_leaves_first_and_a_use_renews_it():
    index = PageIndex({0: 3})
    for number in range(3):
        store(index, number, refs(0, number))
    index.lease("reader", refs(0, 0))
    index.release("reader")
    store(index, 3, refs(0, 3))
    assert readable(index, 0, 4) == [0, 2, 3]


def test_a_prefix_leaves_from_its_end():
    index = PageIndex({0: 4})
    store(index, 0, refs(0, 0, 1, 2, 3))
    index.lease("reader", refs(0, 0, 1, 2, 3))
    index.release("reader")
    store(index, 1, refs(0, 7, 8))
    assert readable(index, 0, 9) == [0, 1, 7, 8]


def test_a_leased_page_stays_and_a_reservation_that_needs_its_slot_is_refused():
    index = PageIndex({0: 2})
    store(index, 0, refs(0, 0, 1))
    assert index.lease("reader", refs(0, 0)) == [0]
    assert index.room_slots(0) == 1
    assert index.reserve(1, refs(0, 2, 3)) is None
    assert store(index, 2, refs(0, 2)) is not None
    assert readable(index, 0, 4) == [0, 2]


def test_leases_of_several_owners_add_up():
    index = PageIndex({0: 1})
    store(index, 0, refs(0, 0))
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
    store(index, 0, refs(0, 0))
    index.lease("a", refs(0, 0))
    index.release("a")
    index.release("a")
    index.release("stranger")
    assert index.residency() == {0: Residency(1, 0, 1, 0)}


def test_leasing_an_unknown_page_leases_nothing():
    index = PageIndex({0: 2})
    store(index, 0, refs(0, 0))
    with pytest.raises(KeyError):
        index.lease("reader", refs(0, 0, 1))
    assert index.leased_pages("reader") == 0
    assert index.room_slots(0) == 2


def test_a_dropped_page_keeps_its_slot_until_its_readers_are_done():
    index = PageIndex({0: 1})
    (slot,) = store(index, 0, refs(0, 0))
    index.lease("reader", refs(0, 0))
    index.drop(refs(0, 0))
    assert not index.has(0, block_hash(0))
    assert not index.knows(0, block_hash(0))
    assert index.reserve(1, refs(0, 0)) is None
    index.release("reader")
    assert index.reserve(2, refs(0, 0)) == [slot]


def test_dropping_what_is_unknown_or_being_written_changes_no_room():
    index = PageIndex({0: 2})
    index.reserve(1, refs(0, 0))
    index.drop(refs(0, 0, 9))
    assert index.room_slots(0) == 1
    index.commit(1)
    assert index.has(0, block_hash(0))


def test_clear_forgets_every_page_of_every_group():
    index = PageIndex({0: 2, 1: 2})
    store(index, 0, refs(0, 0, 1) + refs(1, 0))
    index.lease("reader", refs(1, 0))
    index.clear()
    assert readable(index, 0, 2) == readable(index, 1, 2) == []
    assert index.room_slots(0) == 2
    assert index.room_slots(1) == 1
    index.release("reader")
    assert index.room_slots(1) == 2


def test_what_is_being_written_when_all_is_forgotten_never_becomes_readable():
    index = PageIndex({0: 2})
    index.reserve(1, refs(0, 0))
    index.clear()
    assert not index.knows(0, block_hash(0))
    assert index.room_slots(0) == 1
    # Its slot is still being written to: the page stored again lies elsewhere.
    assert store(index, 2, refs(0, 0)) == [1]
    index.drop(refs(0, 0))
    index.commit(1)
    assert not index.has(0, block_hash(0))
    assert index.room_slots(0) == 2
    index.reserve(3, refs(0, 5))
    index.clear()
    index.abort(3)
    assert index.residency() == {0: Residency(2, 2, 0, 0)}


def test_the_version_changes_with_every_answer_and_releases_with_every_room():
    index = PageIndex({0: 2})
    seen = [(index.version, index.releases)]

    def moved() -> tuple[bool, bool]:
        seen.append((index.version, index.releases))
        return seen[-1][0] != seen[-2][0], seen[-1][1] != seen[-2][1]

    index.reserve(1, refs(0, 0))
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
    index.reserve(1, refs(0, 0))
    index.commit(1)
    with pytest.raises(KeyError):
        index.commit(1)
    with pytest.raises(KeyError):
        index.abort(1)


def test_a_pool_without_slots_refuses_and_breaks_nothing():
    index = PageIndex({0: 0, 1: 1})
    assert index.reserve(1, refs(0, 0)) is None
    assert index.reserve(2, []) == []
    index.commit(2)
    assert store(index, 3, refs(1, 0)) == [0]
