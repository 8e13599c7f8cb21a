"""Every layout that vLLM produces, by every way that a CUDA device offers: all bytes, no others."""

import numpy as np
import pytest
import torch

from lmc_grouped.transfer.build import Transfers
from lmc_grouped.transfer.pages import PageCopier
from tests.transfer.cuda.lab import fake_device
from tests.transfer.fake_cuda import FakeCuda
from tests.transfer.fake_streams import shuffled
from tests.transfer.layouts import LAYOUTS, RoundTrip


class Device:
    """A fake device, and copiers of groups on it."""

    def __init__(self, rung: str) -> None:
        self.fake = FakeCuda(policy=shuffled(3))
        self._device = fake_device(self.fake)
        self._rung = rung

    def pinned(self, size_bytes: int) -> torch.Tensor:
        memory = torch.from_numpy(np.zeros(size_bytes, dtype=np.uint8))
        self.fake.registered[memory.data_ptr()] = size_bytes
        return memory

    def copier(self, group_id: int, views: list[torch.Tensor], pool: torch.Tensor) -> PageCopier:
        self.fake.device(*views)
        transfers = Transfers({group_id: views}, self._rung, self._device)
        rung = transfers.rungs({group_id: pool.numpy()})[group_id]
        assert rung.name == self._rung
        return PageCopier(group_id, views, pool, rung)


@pytest.mark.parametrize("page_bytes", [1_000, 16_384])
@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS.keys())
@pytest.mark.parametrize("rung", ["batch", "runs", "staged"])
def test_pages_go_out_and_come_back_and_no_other_byte_changes(rung, layout, page_bytes):
    device = Device(rung)
    trip = RoundTrip(layout(page_bytes), device.copier, seed=page_bytes, pool=device.pinned)
    trip.store()
    assert trip.wrong_bytes_in_pool() == 0
    trip.load()
    assert trip.wrong_bytes_in_cache() == 0
    assert device.fake.broken == []


def test_one_changed_byte_is_noticed():
    device = Device("batch")
    trip = RoundTrip(LAYOUTS["NHD"](1_000), device.copier, pool=device.pinned)
    trip.store()
    trip.extents[0, 17] ^= 1
    assert trip.wrong_bytes_in_pool() == 1
