"""The host buffer: pools apart, of the shapes that were asked for."""

from itertools import pairwise

import numpy as np
import pytest

from lmc_grouped.host.region import ExtentShape, HostRegion, PoolShape, RegionError


def addresses(pool: np.ndarray) -> range:
    start = pool.__array_interface__["data"][0]
    return range(start, start + pool.nbytes)


def test_every_group_has_a_pool_of_its_own_shape():
    region = HostRegion({0: PoolShape(3, 100), 2: PoolShape(5, 7)})
    assert region.pool(0).shape == (1, 3, 100)
    assert region.pool(2).shape == (1, 5, 7)
    assert region.pool(0).dtype == np.uint8
    with pytest.raises(KeyError):
        region.pool(1)


def test_pools_do_not_share_a_byte():
    region = HostRegion({g: PoolShape(11, 333 + g) for g in range(6)})
    for group_id in range(6):
        region.pool(group_id)[:] = group_id + 1
    for group_id in range(6):
        assert (region.pool(group_id) == group_id + 1).all()
    ranges = sorted((addresses(region.pool(g)) for g in range(6)), key=lambda r: r.start)
    assert all(a.stop <= b.start for a, b in pairwise(ranges))


def test_extents_hold_whole_pages_of_any_group_at_the_slots_they_are_asked_for():
    shapes = {0: PoolShape(9, 100), 1: PoolShape(21, 40)}
    region = HostRegion(shapes, extents=ExtentShape(300, 3, {0: 3, 1: 7}))
    assert region.size_bytes == 4096
    assert region.pool(0).shape == (3, 3, 100)
    region.page(1, 7)[:] = 7  # the first page of the second extent
    assert (region.page(0, 3)[:40] == 7).all()
    assert not region.page(0, 3)[40:].any()
    region.page(1, 20)[:] = 9
    assert (region.pool(1)[2, 6] == 9).all()
    assert region.pool(0)[2, 2, 40:80].tolist() == [9] * 40


def test_pools_start_on_memory_pages():
    region = HostRegion({0: PoolShape(1, 1), 1: PoolShape(3, 4097), 2: PoolShape(1, 8)})
    assert all(addresses(region.pool(g)).start % 4096 == 0 for g in range(3))
    assert region.size_bytes == 4096 + 4 * 4096 + 4096


def test_pools_start_empty_of_old_bytes_and_are_writable():
    region = HostRegion({0: PoolShape(2, 4096)})
    assert not region.pool(0).any()
    region.page(0, 1)[4095] = 9
    assert region.pool(0).sum() == 9


def test_groups_without_slots_or_bytes_have_empty_pools():
    region = HostRegion({0: PoolShape(0, 64), 1: PoolShape(4, 0)})
    assert region.pool(0).shape == (1, 0, 64)
    assert region.pool(1).shape == (1, 4, 0)
    assert HostRegion({}).size_bytes == 4096


@pytest.mark.parametrize("slots", [2**46, 2**70])
def test_a_size_the_machine_cannot_map_says_how_much_was_asked_for(slots):
    with pytest.raises(RegionError, match=rf"mapping {slots * 4096} bytes .*max_local_cpu_size"):
        HostRegion({0: PoolShape(slots, 4096)})
