"""Copies of whole pages: byte-exact for every layout, loud about every wrong id."""

import random

import pytest
import torch
from vllm.v1.kv_cache_interface import KVCacheTensor, create_kv_cache_views
from vllm.v1.kv_cache_layout import KVCacheLayout

from lmc_grouped.adapters.byte_views import byte_view
from lmc_grouped.transfer.copies import TransferError
from lmc_grouped.transfer.pages import PageCopier
from tests.specs import full_spec

NUM_BLOCKS = 24
NUM_SLOTS = 17


def random_bytes(*shape: int) -> torch.Tensor:
    return torch.randint(0, 256, shape, dtype=torch.uint8)


def strided(outer: tuple[int, ...], run: int, padding: int) -> torch.Tensor:
    """``[NUM_BLOCKS, *outer, run]`` whose rows lie ``run + padding`` bytes apart."""
    return random_bytes(NUM_BLOCKS, *outer, run + padding)[..., :run]


def heads_outermost() -> torch.Tensor:
    """Blocks inside heads, as the layout LHBNC has them."""
    return random_bytes(4, NUM_BLOCKS, 48).transpose(0, 1)


def blocks_between_heads_and_layers(layer: int) -> torch.Tensor:
    """One of three layers inside each head, as the layout BHLNC has them."""
    return random_bytes(NUM_BLOCKS, 4, 3, 40)[:, :, layer]


LAYOUTS = {
    "contiguous": lambda: [random_bytes(NUM_BLOCKS, 64), random_bytes(NUM_BLOCKS, 64)],
    "padded pages": lambda: [strided((), 96, 32)],
    "padded to an odd stride": lambda: [strided((), 96, 5)],
    "int8 states with a larger stride": lambda: [strided((), 1000, 24), strided((), 1000, 24)],
    "odd bytes": lambda: [random_bytes(NUM_BLOCKS, 7), random_bytes(NUM_BLOCKS, 13)],
    "even but not by four": lambda: [random_bytes(NUM_BLOCKS, 6), random_bytes(NUM_BLOCKS, 10)],
    "layers of different sizes": lambda: [random_bytes(NUM_BLOCKS, 8), random_bytes(NUM_BLOCKS, 3)],
    "heads outermost": lambda: [heads_outermost()],
    "layers inside heads": lambda: [blocks_between_heads_and_layers(i) for i in range(3)],
    "two outer dimensions": lambda: [strided((3, 2), 16, 8)],
    "offset by an odd byte": lambda: [random_bytes(NUM_BLOCKS * 64 + 1)[1:].view(NUM_BLOCKS, 64)],
    "one byte": lambda: [random_bytes(NUM_BLOCKS, 1)],
}


@pytest.fixture(params=LAYOUTS.values(), ids=LAYOUTS.keys())
def views(request: pytest.FixtureRequest) -> list[torch.Tensor]:
    torch.manual_seed(7)
    return request.param()


def page_bytes(views: list[torch.Tensor]) -> int:
    return sum(view[0].numel() for view in views)


def page(views: list[torch.Tensor], block: int) -> bytes:
    """The page of a block, layer after layer, by the slowest way there is."""
    return bytes(byte for view in views for byte in view[block].flatten().tolist())


def copier_of(views: list[torch.Tensor]) -> tuple[PageCopier, torch.Tensor]:
    pool = torch.zeros(1, NUM_SLOTS, page_bytes(views), dtype=torch.uint8)
    return PageCopier(3, views, pool), pool[0]


@pytest.mark.parametrize("seed", range(3))
def test_pages_go_out_and_come_back_byte_for_byte(views, seed):
    rng = random.Random(seed)
    count = rng.randint(1, NUM_SLOTS)
    blocks = rng.sample(range(NUM_BLOCKS), count)
    slots = rng.sample(range(NUM_SLOTS), count)
    if seed == 0:  # long runs
        blocks, slots = list(range(4, 4 + count)), list(range(count))
    copier, pool = copier_of(views)
    before = [page(views, block) for block in range(NUM_BLOCKS)]

    copier.store(blocks, slots)
    for block, slot in zip(blocks, slots, strict=True):
        assert bytes(pool[slot].tolist()) == before[block]
    untouched = set(range(NUM_SLOTS)) - set(slots)
    assert not any(pool[slot].any() for slot in untouched)
    assert [page(views, block) for block in range(NUM_BLOCKS)] == before

    targets = rng.sample(range(NUM_BLOCKS), count)
    for view in views:
        view.fill_(0xEE)
    copier.load(targets, slots)
    empty = b"\xee" * page_bytes(views)
    expected = {target: before[block] for target, block in zip(targets, blocks, strict=True)}
    after = [page(views, block) for block in range(NUM_BLOCKS)]
    assert after == [expected.get(block, empty) for block in range(NUM_BLOCKS)]


def test_padding_between_pages_is_never_written():
    backing = random_bytes(NUM_BLOCKS, 128)
    padding = backing[:, 96:].clone()
    copier, pool = copier_of([backing[:, :96]])
    pool.fill_(0x55)
    copier.load(list(range(NUM_SLOTS)), list(range(NUM_SLOTS)))
    assert torch.equal(backing[:, 96:], padding)


def test_a_flipped_byte_is_seen(views):
    copier, pool = copier_of(views)
    before = page(views, 5)
    copier.store([5], [2])
    pool[2, -1] ^= 0x10
    copier.load([5], [2])
    after = page(views, 5)
    assert [i for i, (a, b) in enumerate(zip(before, after, strict=True)) if a != b] == [
        len(before) - 1
    ]


@pytest.mark.parametrize("layout", list(KVCacheLayout), ids=lambda layout: layout.name)
def test_every_layout_of_the_engine_round_trips_through_its_own_views(layout):
    spec = full_spec(8, heads=3, head_size=4)
    layers = ["a", "b"]
    page_size = spec.page_size_bytes
    size = page_size * NUM_BLOCKS * len(layers)
    order = layout.stride_order
    # Strides of the layer and block axes in a dense allocation of this layout.
    shape = (len(layers), NUM_BLOCKS, 3, 8, page_size // 24)
    strides, stride = [0] * 5, 1
    for axis in reversed(order):
        strides[axis], stride = stride, stride * shape[axis]
    raw = torch.randint(-128, 128, (size,), dtype=torch.int8)
    tensor = KVCacheTensor(
        size=size, layers=layers, layer_stride=strides[0], block_stride=strides[1]
    )
    caches = create_kv_cache_views(raw, spec, NUM_BLOCKS, layout, tensor)
    views = [byte_view(cache, NUM_BLOCKS, "test") for cache in caches]
    assert all(view[0].numel() == page_size for view in views)
    copier, _ = copier_of(views)
    before = [cache.clone() for cache in caches]
    blocks = random.Random(1).sample(range(NUM_BLOCKS), NUM_SLOTS)
    copier.store(blocks, list(range(NUM_SLOTS)))
    raw.fill_(0)
    copier.load(blocks, list(range(NUM_SLOTS)))
    for cache, old in zip(caches, before, strict=True):
        assert all(torch.equal(cache[b].view(torch.int8), old[b].view(torch.int8)) for b in blocks)
        others = set(range(NUM_BLOCKS)) - set(blocks)
        assert not any(cache[block].view(torch.int8).any() for block in others)


def test_a18_each_group_moves_its_own_row_bytes():
    large, small = random_bytes(NUM_BLOCKS, 4096), random_bytes(NUM_BLOCKS, 1024)
    copiers = [copier_of([large]), copier_of([small])]
    blocks = [9, 3, 4, 20]
    before = [large.clone(), small.clone()]
    for copier, _ in copiers:
        copier.store(blocks, [0, 1, 2, 3])
    large.zero_()
    small.zero_()
    for copier, _ in copiers:
        copier.load(blocks, [0, 1, 2, 3])
    assert all(torch.equal(large[b], before[0][b]) for b in blocks)
    assert all(torch.equal(small[b], before[1][b]) for b in blocks)


@pytest.mark.parametrize("bad", [-1, NUM_BLOCKS, 10**9])
def test_a_block_out_of_range_is_refused_before_anything_is_copied(bad):
    copier, pool = copier_of([random_bytes(NUM_BLOCKS, 8)])
    with pytest.raises(TransferError, match=rf"block ids .* are outside 0..{NUM_BLOCKS - 1}"):
        copier.store([1, bad], [0, 1])
    assert not pool.any()


@pytest.mark.parametrize("bad", [-1, NUM_SLOTS])
def test_a10_a_slot_out_of_range_is_refused_before_anything_is_copied(bad):
    view = random_bytes(NUM_BLOCKS, 8)
    copier, _ = copier_of([view])
    before = view.clone()
    with pytest.raises(TransferError, match=rf"group 3: slots .* are outside 0..{NUM_SLOTS - 1}"):
        copier.load([1, 2], [0, bad])
    assert torch.equal(view, before)


def test_ids_that_do_not_pair_up_are_refused():
    copier, _ = copier_of([random_bytes(NUM_BLOCKS, 8)])
    with pytest.raises(TransferError, match="group 3: 2 blocks for 1 slots"):
        copier.store([1, 2], [0])


def test_layers_that_do_not_fill_the_page_are_refused():
    with pytest.raises(ValueError, match=r"group 3: layers of \[8\] bytes .* page of 9 bytes"):
        PageCopier(3, [random_bytes(4, 8)], torch.zeros(1, 2, 9, dtype=torch.uint8))


def test_an_empty_copy_does_nothing():
    copier, pool = copier_of([random_bytes(NUM_BLOCKS, 8)])
    copier.store([], [])
    copier.load([], [])
    assert not pool.any()


def test_a_rank_without_layers_of_a_group_accepts_its_ids():
    copier = PageCopier(3, [], torch.zeros(1, NUM_SLOTS, 0, dtype=torch.uint8))
    copier.store([100, 7], [0, 1])
    copier.load([100, 7], [0, 1])
    with pytest.raises(TransferError, match="slots"):
        copier.store([100], [NUM_SLOTS])


def test_pages_in_extents_lie_where_their_slot_says(views: list[torch.Tensor]) -> None:
    size = page_bytes(views)
    # Three extents of four pages, with bytes between them that belong to nobody.
    extents = torch.zeros(3, 4 * size + 5, dtype=torch.uint8)
    pool = extents[:, : 4 * size].unflatten(1, (4, size))
    copier = PageCopier(3, views, pool)
    blocks, slots = list(range(3, 11)), list(range(2, 10))  # across two borders
    copier.store(blocks, slots)
    for block, slot in zip(blocks, slots, strict=True):
        expected = torch.cat([view[block].reshape(-1) for view in views])
        assert torch.equal(pool[slot // 4, slot % 4], expected)
    assert not extents[:, 4 * size :].any()
    before = [view.clone() for view in views]
    for view in views:
        view.zero_()
    copier.load(blocks, slots)
    for view, old in zip(views, before, strict=True):
        assert torch.equal(view[3:11], old[3:11])


def test_a_move_copies_whole_pages_and_nothing_else(views: list[torch.Tensor]) -> None:
    pool = random_bytes(3, 4, page_bytes(views))
    before = pool.clone()
    PageCopier(3, views, pool).move([1, 5], [11, 0])
    expected = before.clone()
    expected[2, 3], expected[0, 0] = before[0, 1], before[1, 1]
    assert torch.equal(pool, expected)


@pytest.mark.parametrize(("sources", "targets"), [([12], [0]), ([0], [-1])])
def test_a_move_to_or_from_no_slot_is_refused(sources: list[int], targets: list[int]) -> None:
    copier = PageCopier(3, [random_bytes(4, 8)], torch.zeros(3, 4, 8, dtype=torch.uint8))
    with pytest.raises(TransferError, match=r"slots .* are outside 0..11"):
        copier.move(sources, targets)
