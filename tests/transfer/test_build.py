"""Each group of a worker gets its way of copying, on whatever device the cache lies."""

import logging
from dataclasses import replace

import numpy as np
import pytest
import torch

from lmc_grouped.transfer.build import Transfers
from lmc_grouped.transfer.copies import Rung, TransferError
from lmc_grouped.transfer.cuda import kernel_module
from lmc_grouped.transfer.cuda.device import CudaDevice, device_facts, open_device
from lmc_grouped.transfer.cuda.driver import Driver
from lmc_grouped.transfer.cuda.kernel_nvrtc import KernelError
from lmc_grouped.transfer.cuda.staged import STAGING_BYTES
from lmc_grouped.transfer.cuda.torch_work import ID_ROOM
from lmc_grouped.transfer.ladder import DeviceFacts, LadderError
from lmc_grouped.transfer.pages import PageCopier
from tests.transfer.cuda.lab import fake_device
from tests.transfer.fake_cuda import FakeCuda

LONG, SHORT, NONE = 0, 2, 5
BLOCKS, SLOTS = 6, 4


def new_views(device: str = "cpu") -> dict[int, list[torch.Tensor]]:
    """A group of long runs, one of short ones, and one whose layers other ranks hold."""

    def cache(*shape: int) -> torch.Tensor:
        return torch.randint(0, 256, shape, dtype=torch.uint8).to(device)

    return {LONG: [cache(BLOCKS, 65536)], SHORT: [cache(BLOCKS, 3, 40)[..., :32]], NONE: []}


class Device:
    """A fake CUDA device that holds these views."""

    def __init__(self, views: dict[int, list[torch.Tensor]], **settings: object) -> None:
        self.fake = FakeCuda(**settings)
        for layers in views.values():
            self.fake.device(*layers)
        made = fake_device(self.fake)
        self.asked_bytes: list[int] = []

        def memory(size_bytes: int) -> torch.Tensor:
            self.asked_bytes.append(size_bytes)
            return made.memory(size_bytes)

        self.device = replace(made, memory=memory)


def new_pools(views: dict[int, list[torch.Tensor]]) -> dict[int, np.ndarray]:
    page_bytes = {i: sum(v[0].numel() for v in layers) for i, layers in views.items()}
    return {i: np.zeros((1, SLOTS, size), dtype=np.uint8) for i, size in page_bytes.items()}


def names(transfers: Transfers) -> dict[int, str]:
    return {group_id: choice.rung for group_id, choice in transfers.choices.items()}


def test_a_cache_in_host_memory_is_copied_by_the_cpu_and_needs_no_device():
    views = new_views()
    transfers = Transfers.of(views, "auto")
    assert names(transfers) == {LONG: "cpu", SHORT: "cpu", NONE: "cpu"}
    assert transfers.stream is None
    assert transfers.registrar is None
    rungs = transfers.rungs(new_pools(views))
    assert {group_id: rung.name for group_id, rung in rungs.items()} == names(transfers)


def test_a_device_of_another_kind_is_copied_by_torch_itself():
    transfers = Transfers.of(new_views("meta"), None)
    assert names(transfers) == {LONG: "torch", SHORT: "torch", NONE: "cpu"}
    assert "the engine's cache is on a meta device" in transfers.choices[LONG].reason
    assert transfers.registrar is None


def test_a_rank_without_layers_needs_no_device():
    assert names(Transfers.of({NONE: []}, "auto")) == {NONE: "cpu"}


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, {LONG: "batch", SHORT: "staged"}),
        ({"version": 12040}, {LONG: "runs", SHORT: "staged"}),
        ({"version": 13000}, {LONG: "batch", SHORT: "staged"}),
    ],
)
def test_on_a_cuda_device_run_size_and_driver_decide(settings, expected):
    views = new_views()
    transfers = Transfers(views, None, Device(views, **settings).device)
    assert names(transfers) == {**expected, NONE: "cpu"}


def test_a_device_with_other_addresses_for_host_memory_gets_no_batches():
    views = new_views()
    device = Device(views)
    device.fake.attributes[91] = 0
    facts = device_facts(device.device.driver, 0)
    assert facts == DeviceFacts("cuda", (7, 0), 12080, has_host_addresses=False)


@pytest.mark.parametrize(
    ("forced", "version"),
    [(forced, 12080) for forced in ("auto", "batch", "runs", "kernel", "staged", "torch")]
    + [(forced, 12040) for forced in ("auto", "runs", "kernel", "staged", "torch")],
)
def test_pages_of_all_groups_come_back_by_every_way(forced, version, monkeypatch):
    monkeypatch.setattr(kernel_module, "compiled", lambda capability: b"\x7fELF")
    views = new_views()
    device = Device(views, version=version)
    transfers = Transfers(views, forced, device.device)
    pools = new_pools(views)
    if transfers.registrar is not None:
        for pool in pools.values():
            assert transfers.registrar.register(pool.ctypes.data, max(pool.nbytes, 1)) == 0
    rungs = transfers.rungs(pools, [pool.ctypes.data for pool in pools.values()])
    copiers = {
        i: PageCopier(i, views[i], torch.from_numpy(pools[i]), rungs[i]) for i in (LONG, SHORT)
    }
    before = {i: views[i][0].clone() for i in copiers}
    tickets = [copier.store([5, 1, 2], [3, 0, 1]) for copier in copiers.values()]
    for ticket in tickets:
        ticket.wait()
    for i in copiers:
        views[i][0].zero_()
    tickets = [copier.load([5, 1, 2], [3, 0, 1]) for copier in copiers.values()]
    for ticket in tickets:
        ticket.wait()
    for i in copiers:
        for block in range(BLOCKS):
            expected = before[i][block] if block in (5, 1, 2) else torch.zeros_like(before[i][0])
            assert torch.equal(views[i][0][block], expected)
    assert device.fake.broken == []


def pinned_rungs(transfers: Transfers, views: dict[int, list[torch.Tensor]]) -> dict[int, Rung]:
    pools = new_pools(views)
    assert transfers.registrar is not None
    for pool in pools.values():
        assert transfers.registrar.register(pool.ctypes.data, max(pool.nbytes, 1)) == 0
    return transfers.rungs(pools, [pool.ctypes.data for pool in pools.values()])


def test_staging_is_made_once_for_each_direction_and_holds_the_largest_page():
    def cache(*shape: int) -> torch.Tensor:
        return torch.zeros(shape, dtype=torch.uint8)[..., :-1]

    ids, large = 8 * ID_ROOM, STAGING_BYTES // 4096 + 1
    for views, size_bytes in (
        ({1: [cache(2, 5, 8)], 2: [cache(2, 10, 8)]}, STAGING_BYTES),
        ({1: [cache(1, large, 4097)], 2: [cache(2, 10, 8)]}, 4096 * large),
    ):
        device = Device(views)
        transfers = Transfers(views, None, device.device)
        assert names(transfers) == {1: "staged", 2: "staged"}
        pinned_rungs(transfers, views)
        assert device.asked_bytes == [ids, ids, size_bytes, size_bytes]
    views = new_views()
    device = Device(views)
    pinned_rungs(Transfers(views, "runs", device.device), views)
    assert device.asked_bytes == []


def test_a_pool_that_has_to_be_page_locked_and_is_not_is_refused():
    views = new_views()
    transfers = Transfers(views, None, Device(views).device)
    with pytest.raises(TransferError, match=r"group 0: byte 0 of its pool .* is not page-locked"):
        transfers.rungs(new_pools(views))


def test_a_way_that_the_device_cannot_take_is_refused_with_those_it_can():
    views = new_views()
    with pytest.raises(LadderError, match=r"is 'batch', which cannot be had .* auto, cpu, torch"):
        Transfers.of(views, "batch")
    with pytest.raises(
        LadderError, match=r"12\.4, and cuMemcpyBatchAsync came with 12\.8; allowed"
    ):
        Transfers(views, "batch", Device(views, version=12040).device)


def test_the_kernel_is_compiled_for_the_device_and_only_when_it_is_asked_for(monkeypatch):
    asked = []
    monkeypatch.setattr(kernel_module, "compiled", lambda c: asked.append(c) or b"\x7fELF")
    views = new_views()
    assert names(Transfers(views, None, Device(views).device))[SHORT] == "staged"
    assert asked == []
    transfers = Transfers(views, "kernel", Device(views).device)
    assert names(transfers) == {LONG: "kernel", SHORT: "kernel", NONE: "cpu"}
    assert asked == [(7, 0)]


def test_a_kernel_that_cannot_be_had_is_refused_with_the_reason(monkeypatch):
    def compiled(capability: tuple[int, int]) -> bytes:
        raise KernelError("no NVRTC compiles for compute capability 7.0; found: none")

    views = new_views()
    monkeypatch.setattr(kernel_module, "compiled", compiled)
    with pytest.raises(LadderError, match=r"'kernel', which cannot be had here: no NVRTC compiles"):
        Transfers(views, "kernel", Device(views).device)
    monkeypatch.setattr(kernel_module, "compiled", lambda capability: b"of another architecture")
    with pytest.raises(LadderError, match="loading the gather kernel of 23 bytes: cuModuleLoadDat"):
        Transfers(views, "kernel", Device(views).device)


def test_lmcaches_operation_is_opened_for_the_device_and_only_when_it_is_asked_for():
    asked = []

    def open_lmcache(capability: tuple[int, int]) -> str:
        asked.append(capability)
        return "lmcache.cuda_ops holds nothing for sm_70"

    views = new_views()
    Transfers(views, None, Device(views).device, open_lmcache)
    assert asked == []
    with pytest.raises(
        LadderError, match=r"'lmcache', which cannot be had here: lmcache\.cuda_ops"
    ):
        Transfers(views, "lmcache", Device(views).device, open_lmcache)
    assert asked == [(7, 0)]
    with pytest.raises(LadderError, match="LMCache's operations were not asked for"):
        Transfers(views, "lmcache", Device(views).device)
    operation = object()
    transfers = Transfers(views, "lmcache", Device(views).device, lambda capability: operation)
    assert names(transfers) == {LONG: "lmcache", SHORT: "lmcache", NONE: "cpu"}
    pools = new_pools(views)
    for pool in pools.values():
        assert transfers.registrar.register(pool.ctypes.data, max(pool.nbytes, 1)) == 0
    assert {i: rung.name for i, rung in transfers.rungs(pools).items()} == names(transfers)


def test_one_line_per_group_says_the_way_and_why(caplog):
    with caplog.at_level(logging.INFO, logger="lmc_grouped"):
        Transfers(new_views(), "runs", Device(new_views()).device)
    assert [record.message for record in caplog.records] == [
        "lmc_grouped group 0: copied by runs (asked for by lmc_grouped.transfer)",
        "lmc_grouped group 2: copied by runs (asked for by lmc_grouped.transfer)",
        "lmc_grouped group 5: copied by cpu (this rank holds no layer of the group)",
    ]


def test_a_device_whose_driver_does_not_answer_is_known_by_the_reason(monkeypatch):
    monkeypatch.setattr("lmc_grouped.transfer.cuda.driver.LIBRARY", "libno-cuda-here.so.1")
    facts = open_device(torch.device("cuda", 0))
    assert isinstance(facts, DeviceFacts)
    transfers = Transfers(new_views(), None, facts)
    assert names(transfers) == {LONG: "torch", SHORT: "torch", NONE: "cpu"}
    assert "libno-cuda-here.so.1 cannot be loaded" in transfers.choices[LONG].reason


def test_a_device_is_opened_in_the_context_that_the_thread_has(monkeypatch):
    fake = FakeCuda(version=13000)
    driver = Driver(fake)
    monkeypatch.setattr("lmc_grouped.transfer.cuda.device.Driver", lambda: driver)
    device = open_device(torch.device("cuda", 1))
    assert isinstance(device, CudaDevice)
    assert device.facts == DeviceFacts("cuda", (7, 0), 13000)
    assert fake.named("cuDeviceGet")[0] == ("cuDeviceGet", 1)
    assert fake.context == 0xC0
