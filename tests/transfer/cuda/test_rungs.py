"""Pages go out and come back byte for byte, in every layout, whichever stream runs first."""

import random

import pytest
import torch

from tests.transfer.cuda.lab import BLOCKS, RUNGS, SLOTS, Lab, ids
from tests.transfer.cuda.shapes import SHAPES
from tests.transfer.fake_cuda import FakeCuda
from tests.transfer.fake_streams import shuffled

CPU = torch.device("cpu")


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("rung", RUNGS)
@pytest.mark.parametrize("shape", SHAPES)
def test_pages_go_out_and_come_back_byte_for_byte(shape, rung, seed):
    rng = random.Random(f"{shape} {rung} {seed}")
    views = SHAPES[shape](BLOCKS, CPU)
    lab = Lab(views, FakeCuda(policy=shuffled(seed)), extent_padding_bytes=64 * (seed % 2))
    way = lab.rung(rung)
    count = rng.randint(1, SLOTS)
    blocks, slots = rng.sample(range(1, BLOCKS), count), rng.sample(range(SLOTS), count)
    if seed == 0:  # long runs, over the extents' borders
        blocks, slots = list(range(4, 4 + count)), list(range(count))
    before = [lab.block(block) for block in range(BLOCKS)]

    stored = way.store(ids(*blocks), ids(*slots))
    assert not stored.is_done()
    stored.wait()
    assert stored.is_done()
    for block, slot in zip(blocks, slots, strict=True):
        assert lab.slot(slot) == before[block]
    assert not any(any(lab.slot(slot)) for slot in set(range(SLOTS)) - set(slots))
    assert [lab.block(block) for block in range(BLOCKS)] == before

    targets = rng.sample(range(1, BLOCKS), count)
    lab.fill(0xEE)
    way.load(ids(*targets), ids(*slots)).wait()
    expected = {target: before[block] for target, block in zip(targets, blocks, strict=True)}
    empty = b"\xee" * lab.plan.page_bytes
    assert [lab.block(b) for b in range(BLOCKS)] == [expected.get(b, empty) for b in range(BLOCKS)]
    lab.finish()


@pytest.mark.parametrize("rung", RUNGS)
def test_bytes_between_the_pages_of_the_cache_and_of_the_pool_are_never_written(rung):
    backing = torch.randint(0, 256, (BLOCKS, 128), dtype=torch.uint8)
    padding = backing[:, 96:].clone()
    lab = Lab([backing[:, :96]], extent_padding_bytes=32)
    lab.memory[:] = 0x55
    way = lab.rung(rung)
    everything = ids(*range(SLOTS))
    way.load(everything, everything).wait()
    way.store(everything, everything).wait()
    assert torch.equal(backing[:, 96:], padding)
    assert (lab.memory[:, -32:] == 0x55).all()
    lab.finish()


@pytest.mark.parametrize("rung", RUNGS)
def test_the_comparison_sees_one_flipped_byte(rung):
    lab = Lab(SHAPES["two outer dimensions"](BLOCKS, CPU))
    way = lab.rung(rung)
    before = lab.block(5)
    way.store(ids(5), ids(2)).wait()
    lab.pages[0, 2, -1] ^= 0x10
    way.load(ids(5), ids(2)).wait()
    assert [i for i, (a, b) in enumerate(zip(before, lab.block(5), strict=True)) if a != b] == [
        len(before) - 1
    ]
    lab.finish()


@pytest.mark.parametrize("rung", RUNGS)
def test_no_pages_are_an_operation_that_ends(rung):
    lab = Lab(SHAPES["contiguous"](BLOCKS, CPU))
    ticket = lab.rung(rung).store(ids(), ids())
    ticket.wait()
    assert not lab.fake.named("cuMemcpyAsync")
    assert not lab.fake.batches
    lab.finish()


@pytest.mark.parametrize("rung", ["batch", "runs"])
def test_a_rank_without_layers_of_the_group_copies_nothing(rung):
    lab = Lab([])
    lab.rung(rung).store(ids(1, 2), ids(0, 1)).wait()
    assert not lab.fake.batches
    lab.finish()


@pytest.mark.parametrize("rung", RUNGS)
def test_tickets_may_be_asked_in_any_order_and_again(rung):
    lab = Lab(SHAPES["contiguous"](BLOCKS, CPU))
    way = lab.rung(rung)
    first, second = way.store(ids(1), ids(0)), way.store(ids(2), ids(1))
    assert not second.is_done()
    second.wait()
    assert first.is_done()
    assert second.is_done()
    third = way.load(ids(3), ids(0))
    assert not third.is_done()
    assert first.is_done()
    lab.fake.streams.run_all()
    assert third.is_done()
    lab.finish()
