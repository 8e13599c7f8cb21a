"""The gather kernel's launches, on the fake driver: what they are told, and what goes wrong.

Round trips, order and refusals of all rungs are in the modules beside this one; they
run a reading of ``gather.cu`` in Python. ``test_kernel_source.py`` runs the source.
"""

import numpy as np
import pytest
import torch

from lmc_grouped.transfer.copies import TransferError
from lmc_grouped.transfer.cuda import kernel_block
from lmc_grouped.transfer.cuda.kernel_block import Geometry, operation
from lmc_grouped.transfer.cuda.kernel_module import Kernels
from lmc_grouped.transfer.plan import HostPool, PagePlan
from tests.transfer.cuda.lab import BLOCKS, SLOTS, Lab, ids
from tests.transfer.cuda.shapes import SHAPES, contiguous, noise
from tests.transfer.fake_cuda import FakeCuda
from tests.transfer.fake_kernels import ILLEGAL_ADDRESS, MISALIGNED_ADDRESS

CPU = torch.device("cpu")


def aligned(tensor: torch.Tensor) -> torch.Tensor:
    """The same shape in memory that begins at a multiple of 64."""
    room = torch.zeros(tensor.numel() + 64, dtype=torch.uint8)
    start = -room.data_ptr() % 64
    return room[start : start + tensor.numel()].view(tensor.shape)


def pool_of(page_bytes: int, address: int = 0x10000, extent_bytes: int | None = None) -> HostPool:
    return HostPool(address, 20, 5, extent_bytes or 5 * page_bytes, page_bytes)


def test_a_launch_is_told_the_table_the_direction_and_each_page() -> None:
    block = operation(0x7000, ids(4, 9), ids(0x100, 0x200), to_host=True)
    assert block.nbytes == kernel_block.OPERATION_BYTES == 4096
    assert block[:6].tolist() == [0x7000, 1, 4, 0x100, 9, 0x200]
    assert not block[6:].any()
    assert operation(0x7000, ids(4), ids(0x100), to_host=False)[1] == 0


def test_as_many_pages_as_the_parameters_hold_go_into_one_launch() -> None:
    count = kernel_block.PAGES_PER_LAUNCH
    block = operation(1, np.arange(count), np.arange(count), to_host=True)
    assert block[-2:].tolist() == [count - 1, count - 1]
    assert 2 + 2 * count == len(block)


@pytest.mark.parametrize(
    ("sizes", "address", "extent_bytes", "word"),
    [
        ((64, 128), 0x10000, None, 16),
        ((64, 72), 0x10000, None, 8),
        ((64, 68), 0x10000, None, 4),
        ((64, 66), 0x10000, None, 2),
        ((64, 65), 0x10000, None, 1),
        ((64, 64), 0x10008, None, 8),
        ((64, 64), 0x10000, 644, 4),
        ((64, 64), 0x10001, None, 1),
    ],
)
def test_the_word_is_the_widest_that_both_sides_allow(
    sizes: tuple[int, ...], address: int, extent_bytes: int | None, word: int
) -> None:
    views = [aligned(view) for view in contiguous(*sizes)(BLOCKS, CPU)]
    plan = PagePlan.of(0, views)
    geometry = Geometry.of(plan, pool_of(plan.page_bytes, address, extent_bytes))
    assert geometry.word_bytes == word


@pytest.mark.parametrize(
    ("run_bytes", "pieces"), [(16, 1), (16384, 1), (16400, 2), (2**20, 64), (2**23, 64)]
)
def test_long_runs_are_shared_by_more_threads(run_bytes: int, pieces: int) -> None:
    view = aligned(torch.zeros(2, run_bytes, dtype=torch.uint8))
    plan = PagePlan.of(0, [view])
    assert Geometry.of(plan, pool_of(run_bytes)).grid(7) == (pieces, 1, 7)


def test_more_runs_than_a_grid_can_number_are_refused() -> None:
    view = torch.zeros(2, 65536, 2, dtype=torch.uint8)[:, :, :1]
    plan = PagePlan.of(5, [view])
    with pytest.raises(ValueError, match=r"group 5: 65536 runs .* numbers 65535 runs"):
        Geometry.of(plan, pool_of(65536))


def test_longer_runs_than_a_thread_can_count_are_refused() -> None:
    long = np.array([2**32], dtype=np.int64)
    zero = np.zeros(1, dtype=np.int64)
    plan = PagePlan(5, 4, 2**32, zero + 0x1001, long, zero, long)
    with pytest.raises(ValueError, match="group 5: 1 runs of up to 4294967296 words"):
        Geometry.of(plan, pool_of(2**32))


def test_pages_that_one_launch_cannot_hold_take_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_block, "PAGES_PER_LAUNCH", 8)
    lab = Lab(SHAPES["two outer dimensions"](BLOCKS, CPU))
    before = [lab.block(block) for block in range(SLOTS)]
    lab.rung("kernel").store(ids(*range(SLOTS)), ids(*range(SLOTS))).wait()
    assert [lab.slot(slot) for slot in range(SLOTS)] == before
    assert [grid[1:] for _, grid, _ in lab.fake.launches] == [(6, 8), (6, 8), (6, 4)]
    assert len(lab.fake.named("cuEventRecord")) == 1
    lab.finish()


def test_a_whole_operation_of_many_short_runs_is_one_call() -> None:
    lab = Lab([noise(CPU, BLOCKS, 64, 2, 96)[:, :, :, :48]])
    lab.rung("kernel").load(ids(*range(SLOTS)), ids(*range(SLOTS))).wait()
    assert [name for name, *_ in lab.fake.calls].count("cuLaunchKernel") == 1
    assert not lab.fake.named("cuMemcpyAsync")
    lab.finish()


@pytest.mark.parametrize("shape", ["one byte", "offset by an odd byte"])
def test_a_cache_at_odd_addresses_is_copied_byte_by_byte(shape: str) -> None:
    lab = Lab(SHAPES[shape](BLOCKS, CPU))
    lab.rung("kernel").store(ids(3), ids(1)).wait()
    assert [name for name, *_ in lab.fake.launches] == ["copy_pages_1"]
    lab.finish()


def test_a_word_that_is_too_wide_is_noticed_by_the_fake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_block, "_widest", lambda runs, pool: 16)
    lab = Lab(SHAPES["offset by an odd byte"](BLOCKS, CPU))
    ticket = lab.rung("kernel").store(ids(3), ids(1))
    with pytest.raises(TransferError, match=f"with {MISALIGNED_ADDRESS}"):
        ticket.wait()


@pytest.mark.parametrize("wrong", ["block", "slot"])
def test_an_address_that_is_nobodys_is_an_error_of_the_ticket(wrong: str) -> None:
    lab = Lab(SHAPES["contiguous"](BLOCKS, CPU))
    block, slot = (10**6, 0) if wrong == "block" else (0, 10**6)
    ticket = lab.rung("kernel").load(ids(block), ids(slot))
    with pytest.raises(TransferError, match=rf"loading 1 pages: .* with {ILLEGAL_ADDRESS} "):
        ticket.wait()


def test_a_launch_that_is_refused_says_how_large_it_was() -> None:
    lab = Lab(SHAPES["layers of different sizes"](BLOCKS, CPU))
    way = lab.rung("kernel")
    lab.fake.fail("cuLaunchKernel", 1)
    text = (
        r"^group 3: storing 3 pages: cuLaunchKernel of 3 pages with 2 runs each failed with 1 "
        r"\(CUDA_ERROR_INVALID_VALUE: invalid argument\)$"
    )
    with pytest.raises(TransferError, match=text):
        way.store(ids(1, 2, 3), ids(0, 1, 2))


def test_an_image_that_the_driver_refuses_is_an_error() -> None:
    lab = Lab(SHAPES["contiguous"](BLOCKS, CPU))
    with pytest.raises(TransferError, match="loading the gather kernel of 3 bytes: cuModuleLoad"):
        Kernels(lab.driver, b"bad", lambda size: torch.zeros(size, dtype=torch.uint8))
    lab.fake.fail("cuModuleGetFunction", 500)
    with pytest.raises(TransferError, match=r"looking for copy_pages_[0-9]+: cuModuleGetFunction"):
        lab.rung("kernel")


@pytest.mark.parametrize("call", ["cuModuleLoadData", "cuModuleGetFunction", "cuLaunchKernel"])
def test_a_driver_without_one_of_the_calls_serves_the_other_rungs(call: str) -> None:
    lab = Lab(SHAPES["contiguous"](BLOCKS, CPU), FakeCuda(missing=(call,)))
    lab.rung("batch").store(ids(1), ids(0)).wait()
    with pytest.raises(TransferError, match=f"has no {call}, which came with"):
        lab.rung("kernel").store(ids(1), ids(0))
