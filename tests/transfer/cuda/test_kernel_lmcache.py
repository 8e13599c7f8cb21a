"""LMCache's block operation moves our pages: shown with its torch form, on the fake driver.

The compiled form needs a device: not accepted on GPU.
"""

import ctypes
import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from lmcache.lmcache_native import EngineKVFormat, TransferDirection
from lmcache.v1.platform import torch_ops
from lmcache.v1.platform.ops_types import PageBufferShapeDesc

from lmc_grouped.adapters.lmcache_transfer import BlockOperation
from lmc_grouped.transfer.copies import TransferError
from lmc_grouped.transfer.cuda.kernel_lmcache import LMCacheRung, Rows
from lmc_grouped.transfer.plan import HostPool, PagePlan
from tests.transfer.cuda.lab import BLOCKS, SLOTS, Lab, ids
from tests.transfer.cuda.shapes import SHAPES
from tests.transfer.fake_cuda import FakeCuda
from tests.transfer.fake_streams import shuffled

CPU = torch.device("cpu")
SERVED = [
    "contiguous",
    "one layer",
    "padded pages",
    "int8 states with a larger stride",
    "two outer dimensions",
    "heads outermost",
    "layers inside heads",
    "layers inside blocks",
]
REFUSED = {
    "layers of different sizes": r"runs of one size .* has \[3, 8\]",
    "padded to an odd stride": "is odd",
    "offset by an odd byte": "is odd",
    "one byte": "is odd",
}


class Pointers:
    """The compiled operation's interface, carried out by LMCache's torch operation.

    Addresses become tensors with the strides that the description says; what the compiled
    form would refuse is refused.
    """

    PageBufferShapeDesc = PageBufferShapeDesc

    def __init__(self) -> None:
        self.pages_of_calls: list[int] = []

    def multi_layer_block_kv_transfer(
        self, runs: Any, pages: Any, block_ids: Any, device: Any, direction: int, shape: Any,
        chunk_tokens: int, layout: int, skip: int,
    ) -> None:  # fmt: skip
        if not 1 <= len(pages) <= 4 or len(block_ids) != len(pages):
            raise RuntimeError("Expected 1-4 LMCache objects")
        if chunk_tokens != shape.bs or shape.nh != 1 or shape.hs * shape.element_size % 2:
            raise RuntimeError("bad description")
        self.pages_of_calls.append(len(pages))
        row = shape.hs * shape.element_size
        word = 16 if row % 16 == 0 else 4 if row % 4 == 0 else 2  # as the compiled form picks it
        stride = shape.block_stride_elems * shape.element_size
        if any(number % word for number in (*runs.tolist(), *pages, stride)):
            raise RuntimeError("misaligned address")
        caches = [
            strided(address, (shape.nb, shape.bs, row), (stride, row, 1))
            for address in runs.tolist()
        ]
        size = (shape.nl, shape.bs, row)
        objects = [strided(page, size, (shape.bs * row, row, 1)) for page in pages]
        described = PageBufferShapeDesc()
        described.bs, described.element_size = shape.bs, 1
        arguments = (caches, objects, block_ids, "cpu", direction, described, chunk_tokens)
        torch_ops.multi_layer_block_kv_transfer(*arguments, EngineKVFormat(layout), skip)


def strided(address: int, size: tuple[int, ...], strides: tuple[int, ...]) -> torch.Tensor:
    """Bytes at an address."""
    reach = sum((n - 1) * s for n, s in zip(size, strides, strict=True)) + 1
    raw = (ctypes.c_uint8 * reach).from_address(address)
    return torch.from_numpy(np.frombuffer(raw, dtype=np.uint8)).as_strided(size, strides)


def rung_of(lab: Lab, operations: Any = None) -> LMCacheRung:
    return LMCacheRung(
        lab.plan,
        lab.pool,
        BlockOperation(operations or Pointers(), CPU),
        lab.device.memory,
        lab.device.lane(lab.streams.stores),
        lab.device.lane(lab.streams.loads),
    )


@pytest.mark.filterwarnings("ignore:The given NumPy array is not writable")
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("shape", SERVED)
def test_its_objects_are_our_pages_byte_for_byte(shape: str, seed: int) -> None:
    rng = random.Random(f"{shape} {seed}")
    padding = (0, 64, 2)[seed]
    lab = Lab(
        SHAPES[shape](BLOCKS, CPU), FakeCuda(policy=shuffled(seed)), extent_padding_bytes=padding
    )
    way = rung_of(lab)
    count = rng.randint(1, SLOTS)
    blocks, slots = rng.sample(range(1, BLOCKS), count), rng.sample(range(SLOTS), count)
    before = [lab.block(block) for block in range(BLOCKS)]
    way.store(ids(*blocks), ids(*slots)).wait()
    for block, slot in zip(blocks, slots, strict=True):
        assert lab.slot(slot) == before[block]  # layer after layer: what every other way stores
    assert not any(any(lab.slot(slot)) for slot in set(range(SLOTS)) - set(slots))
    targets = rng.sample(range(1, BLOCKS), count)
    lab.fill(0xEE)
    way.load(ids(*targets), ids(*slots)).wait()
    expected = {target: before[block] for target, block in zip(targets, blocks, strict=True)}
    empty = b"\xee" * lab.plan.page_bytes
    assert [lab.block(b) for b in range(BLOCKS)] == [expected.get(b, empty) for b in range(BLOCKS)]
    lab.finish()


def test_layers_told_in_another_order_are_noticed() -> None:
    class Reversed(Pointers):
        def multi_layer_block_kv_transfer(self, runs: Any, *rest: Any) -> None:
            super().multi_layer_block_kv_transfer(runs.flip(0), *rest)

    lab = Lab(SHAPES["two outer dimensions"](BLOCKS, CPU))
    way = rung_of(lab, Reversed())
    way.store(ids(5), ids(2)).wait()
    assert lab.slot(2) != lab.block(5)


def test_four_pages_go_into_one_call() -> None:
    lab = Lab(SHAPES["two outer dimensions"](BLOCKS, CPU))
    operations = Pointers()
    way = rung_of(lab, operations)
    way.store(ids(*range(10)), ids(*range(10))).wait()
    assert operations.pages_of_calls == [4, 4, 2]
    lab.finish()


@pytest.mark.parametrize("shape", REFUSED)
def test_runs_that_it_cannot_be_told_of_are_refused(shape: str) -> None:
    with pytest.raises(ValueError, match=rf"group 3: LMCache's operation .*{REFUSED[shape]}"):
        rung_of(Lab(SHAPES[shape](BLOCKS, CPU)))
    assert set(SERVED) | set(REFUSED) == set(SHAPES)


@pytest.mark.parametrize(
    ("run_bytes", "address", "row_bytes"),
    [
        (8192, 0x10000, 512),
        (8192, 0x10008, 8),
        (1104, 0x10000, 368),
        (48, 0x10004, 24),
        (48, 0x10002, 6),
        (64, 0x10002, 2),
        (64, 0x10004, 8),
    ],
)
def test_rows_are_long_and_make_the_operation_pick_a_word_that_fits(
    run_bytes: int, address: int, row_bytes: int
) -> None:
    size = np.array([run_bytes], dtype=np.int64)
    plan = PagePlan(3, 9, run_bytes, np.array([0x20000]), size, size - run_bytes, size)
    pool = HostPool(address, 20, 5, 5 * run_bytes, run_bytes)
    rows = Rows.of(plan, pool)
    assert (rows.row_bytes, rows.rows) == (row_bytes, run_bytes // row_bytes)


def test_an_operation_that_raises_is_an_error_of_the_copy() -> None:
    class Broken(Pointers):
        def multi_layer_block_kv_transfer(self, *_: Any) -> None:
            raise RuntimeError("CUDA error: invalid argument")

    lab = Lab(SHAPES["contiguous"](BLOCKS, CPU))
    lab.device = replace(lab.device, run_on=lambda stream: lambda work: work())
    way = rung_of(lab, Broken())
    with pytest.raises(TransferError, match="group 3: storing 1 pages: CUDA error: invalid argu"):
        way.store(ids(1), ids(0))
    lab.finish()


def test_a_pool_that_is_not_page_locked_is_refused() -> None:
    with pytest.raises(TransferError, match="is not page-locked"):
        rung_of(Lab(SHAPES["contiguous"](BLOCKS, CPU), is_pinned=False))


def test_directions_are_those_of_lmcache() -> None:
    assert (int(TransferDirection.H2D), int(TransferDirection.D2H)) == (0, 1)
