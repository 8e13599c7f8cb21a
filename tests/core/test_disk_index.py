"""The scheduler's view of the file tiers."""

import pytest

from lmc_grouped.core.disk_index import DiskIndex
from tests.factories import block_hash, full, recurrent

GROUPS = full(0, page_bytes=100), recurrent(2, page_bytes=7)
A, B = (0, block_hash(1)), (2, block_hash(1))


@pytest.fixture
def disk() -> DiskIndex:
    return DiskIndex(GROUPS, {0: (0, 1), 2: (0, 1)})


def test_a_page_is_on_disk_when_every_rank_has_it(disk):
    assert disk.apply(0, [(A, True)]) == []
    assert not disk.has(*A)
    assert disk.apply(1, [(A, True), (B, True)]) == [A]
    assert disk.has(*A)
    assert not disk.has(*B)
    assert disk.residency() == {0: (1, 100), 2: (0, 0)}


def test_a_page_that_one_rank_loses_is_gone_until_that_rank_has_it_again(disk):
    for rank in (0, 1):
        disk.apply(rank, [(A, True)])
    disk.apply(0, [(A, False)])
    assert not disk.has(*A)
    assert disk.residency()[0] == (0, 0)
    assert disk.apply(0, [(A, True)]) == [A]
    assert disk.has(*A)


def test_saying_it_twice_changes_nothing(disk):
    disk.apply(0, [(A, True), (A, True), (B, False)])
    version = disk.version
    disk.apply(0, [(A, True), (B, False)])
    assert disk.version == version
    assert disk.apply(1, [(A, True)]) == [A]


def test_changes_of_one_rank_count_in_their_order(disk):
    disk.apply(1, [(A, True)])
    assert disk.apply(0, [(A, True), (A, False)]) == [A]
    assert not disk.has(*A)


def test_a_rank_without_layers_of_a_group_is_not_asked_for_its_pages():
    disk = DiskIndex(GROUPS, {0: (0, 1), 2: (1,)})
    assert disk.apply(1, [(B, True)]) == [B]
    assert disk.has(*B)


def test_clearing_forgets_everything(disk):
    for rank in (0, 1):
        disk.apply(rank, [(A, True)])
    disk.clear()
    assert not disk.has(*A)
    assert disk.residency() == {0: (0, 0), 2: (0, 0)}
