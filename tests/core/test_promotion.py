"""Host memory and disk as one: which boundary they serve together, and what has to be read."""

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmc_grouped.core.disk_index import DiskIndex
from lmc_grouped.core.groups import GroupTable
from lmc_grouped.core.hits import Hit
from lmc_grouped.core.index import PageIndex
from lmc_grouped.core.pool import NewPage
from lmc_grouped.core.prefix import Prefix
from lmc_grouped.core.promotion import find_union_hit, plan_promotion
from lmc_grouped.core.reader import find_hit
from lmc_grouped.core.rule import RetentionRule
from tests.factories import block_hash, full, recurrent, table_of, window

PAGES = 8


class Tiers:
    """A prompt of eight pages of 16 tokens, in host memory and on disk."""

    def __init__(self, table: GroupTable) -> None:
        self.rule = RetentionRule(table, None)
        self.index = PageIndex(dict.fromkeys(table.group_ids, 16))
        self.disk = DiskIndex(table.groups, dict.fromkeys(table.group_ids, (0,)))
        self.prefix = Prefix(table, [block_hash(n) for n in range(PAGES)])
        self._operations = 0

    def keep(self, group_id: int, pages: Iterable[int], *, chained: bool = False) -> None:
        """Put pages into host memory."""
        new = [
            NewPage(
                *self.prefix.ref(group_id, page),
                self.prefix.block_hash(group_id, page - 1) if chained and page else None,
            )
            for page in pages
        ]
        self._operations += 1
        self.index.reserve(self._operations, new)
        self.index.commit(self._operations)

    def write(self, group_id: int, pages: Iterable[int]) -> None:
        """Put pages on disk."""
        self.disk.apply(0, [(self.prefix.ref(group_id, page), True) for page in pages])

    def hit(self, local: int = 0, limit: int = 16 * PAGES) -> Hit:
        return find_union_hit(
            self.index, self.disk, self.rule, self.prefix, local_tokens=local, limit_tokens=limit
        )

    def memory_hit(self, local: int = 0) -> int:
        hit = find_hit(
            self.index, self.rule, self.prefix, local_tokens=local, limit_tokens=16 * PAGES
        )
        return hit.boundary_tokens

    def plan(self, boundary: int, local: int = 0):
        return plan_promotion(
            self.index, self.rule, self.prefix, local_tokens=local, boundary_tokens=boundary
        )

    def promote(self, boundary: int, local: int = 0) -> None:
        """Carry out the plan."""
        plan = self.plan(boundary, local)
        self.index.lease("test", plan.held)
        self._operations += 1
        assert self.index.reserve(self._operations, plan.missing) is not None
        self.index.commit(self._operations)


def test_a_prefix_goes_on_where_host_memory_ends():
    tiers = Tiers(table_of(full(0)))
    tiers.keep(0, range(3), chained=True)
    tiers.write(0, range(2, 6))
    assert tiers.memory_hit() == 48
    assert tiers.hit() == Hit(96, 96)
    assert tiers.hit(limit=80).boundary_tokens == 80
    assert [page.block_hash for page in tiers.plan(96).missing] == [
        block_hash(n) for n in (3, 4, 5)
    ]


def test_a_hole_on_disk_ends_the_prefix_even_where_later_pages_are_there():
    tiers = Tiers(table_of(full(0)))
    tiers.write(0, [0, 1, 3, 4, 5, 6, 7])
    assert tiers.hit() == Hit(32, 32)


def test_a_full_group_is_wanted_from_its_start_whatever_the_engine_holds_itself():
    tiers = Tiers(table_of(full(0)))
    tiers.write(0, range(2, 6))
    assert tiers.hit(local=32).boundary_tokens == 32
    tiers.write(0, range(2))
    assert tiers.hit(local=32).boundary_tokens == 96
    assert len(tiers.plan(96, local=32).missing) == 6


def test_the_groups_of_a_boundary_may_come_from_different_tiers():
    tiers = Tiers(table_of(full(0), recurrent(1), window(2, 33, 16)))
    tiers.keep(1, [5])
    tiers.write(0, range(8))
    tiers.keep(2, [4])
    tiers.write(2, [5])
    assert tiers.hit() == Hit(96, 128)
    plan = tiers.plan(96)
    assert {(new.group_id, new.block_hash) for new in plan.missing} == {
        *((0, block_hash(page)) for page in range(6)),
        (2, block_hash(5)),
    }
    assert plan.held == [(1, block_hash(5)), (2, block_hash(4))]


def test_a_drafters_page_beyond_the_boundary_is_read_too():
    tiers = Tiers(table_of(full(0, drafter=True)))
    tiers.write(0, range(5))
    assert tiers.hit().boundary_tokens == 64
    assert len(tiers.plan(64).missing) == 5
    tiers.promote(64)
    assert tiers.memory_hit() == 64


pages = st.sets(st.integers(0, PAGES - 1))


@given(
    in_memory=st.integers(0, PAGES),
    full_disk=pages,
    states=pages,
    state_disk=pages,
    tails=pages,
    tail_disk=pages,
    local=st.integers(0, 3),
)
def test_what_is_promised_is_what_host_memory_serves_after_reading(
    in_memory, full_disk, states, state_disk, tails, tail_disk, local
):
    tiers = Tiers(table_of(full(0), recurrent(1), window(2, 33, 16)))
    tiers.keep(0, range(in_memory), chained=True)
    for group_id, kept, written in ((1, states, state_disk), (2, tails, tail_disk)):
        tiers.keep(group_id, sorted(kept))
        tiers.write(group_id, written)
    tiers.write(0, full_disk)
    boundary = tiers.hit(local * 16).boundary_tokens
    assert boundary >= tiers.memory_hit(local * 16)
    if boundary > local * 16:
        tiers.promote(boundary, local * 16)
        assert tiers.memory_hit(local * 16) == boundary


def test_a_page_that_leans_on_one_being_read_waits_for_it():
    tiers = Tiers(table_of(full(0)))
    index, prefix = tiers.index, tiers.prefix
    first, second = (prefix.ref(0, page) for page in (0, 1))
    index.reserve(1, [NewPage(*first)])
    index.reserve(2, [NewPage(*second, first[1])])
    index.commit(2)
    assert not index.has(*second)
    index.commit(1)
    assert index.has(*first)
    assert index.has(*second)
    assert index.residency()[0].held_slots == 0


@pytest.mark.parametrize("end", ["abort", "clear"])
def test_a_page_that_waited_goes_with_the_one_it_leaned_on(end):
    tiers = Tiers(table_of(full(0)))
    index, prefix = tiers.index, tiers.prefix
    first, second = (prefix.ref(0, page) for page in (0, 1))
    index.reserve(1, [NewPage(*first)])
    index.reserve(2, [NewPage(*second, first[1])])
    index.commit(2)
    if end == "clear":
        index.clear()
    index.abort(1)
    assert not index.knows(*second)
    assert index.residency()[0].free_slots == 16
