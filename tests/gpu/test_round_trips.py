"""Every layout and page size, by every rung that the device can take: all bytes, and no others."""

from pathlib import Path

import pytest
import torch

from lmc_grouped.host.region import ExtentShape, HostRegion, PoolShape
from lmc_grouped.transfer.build import Transfers
from lmc_grouped.transfer.pages import PageCopier
from tests.gpu import machine
from tests.transfer.layouts import LAYOUTS, PAGE_BYTES, RoundTrip


@pytest.mark.parametrize("page_bytes", PAGE_BYTES)
@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS.keys())
def test_pages_go_out_and_come_back_and_no_other_byte_changes(worker, layout, page_bytes):
    trip = RoundTrip(
        layout(page_bytes), worker.copier, device="cuda", seed=page_bytes, pool=worker.pinned
    )
    trip.store()
    assert trip.wrong_bytes_in_pool() == 0
    trip.load()
    assert trip.wrong_bytes_in_cache() == 0


@pytest.mark.parametrize("layout", ["NHD", "HND, layers inside heads"])
def test_one_changed_byte_is_noticed(worker, layout):
    trip = RoundTrip(LAYOUTS[layout](65_536), worker.copier, device="cuda", pool=worker.pinned)
    trip.store()
    trip.extents[0, 17] ^= 1
    assert trip.wrong_bytes_in_pool() == 1


def test_pages_of_a_region_pinned_in_small_pieces_come_back(worker, tmp_path: Path):
    page_bytes, per_extent, extents = 3 * 40_960, 4, 40
    cut = ExtentShape(per_extent * page_bytes + 8_192, extents, {3: per_extent})
    region = HostRegion({3: PoolShape(extents * per_extent, page_bytes)}, extents=cut)
    cache = torch.randint(0, 256, (170, page_bytes), dtype=torch.uint8, device=machine.DEVICE)
    views = [cache[:, start : start + 40_960] for start in range(0, page_bytes, 40_960)]
    transfers = Transfers({3: views}, worker.rung, machine.device())
    borders = region.pin(worker.registrar, 0, piece_bytes=2**20, lock_path=tmp_path / "lock")
    assert len(borders) > 10
    pool = region.pool(3)
    rung = transfers.rungs({3: pool}, borders)[3]
    assert transfers.stream is not None
    copier = PageCopier(3, views, torch.from_numpy(pool), machine.Ordered(rung, transfers.stream))
    blocks, slots = list(range(1, 161)), list(range(160))
    before = cache.clone()
    copier.store(blocks, slots).wait()
    cache.zero_()
    copier.load(blocks, slots).wait()
    assert torch.equal(cache[1:161], before[1:161])
    region.close()
