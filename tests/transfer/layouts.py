"""Layouts of a group's pages as vLLM produces them, at any page size, and their round trip.

Needs torch, numpy and pytest alone, so that a machine with a GPU and nothing else can use it.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from lmc_grouped.transfer.pages import PageCopier

NUM_BLOCKS = 4
EXTENTS, SLOTS_PER_EXTENT, EXTENT_GAP_BYTES = 2, 2, 5
UNTOUCHED = 0x55
WIPED = 0xEE


@dataclass(frozen=True, slots=True)
class Layer:
    """Where one layer lies in its allocation; bytes, the blocks first and the run last."""

    allocation: int
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Layout:
    """The layers of one group, and the sizes of the allocations they lie in."""

    layers: tuple[Layer, ...]
    allocation_bytes: tuple[int, ...]

    def allocate(self, device: str = "cpu", fill: int | None = None) -> list[torch.Tensor]:
        """The allocations, of random bytes or of one."""
        if fill is not None:
            return [
                torch.full((size,), fill, dtype=torch.uint8, device=device)
                for size in self.allocation_bytes
            ]
        return [_random_bytes(size).to(device) for size in self.allocation_bytes]

    def views(self, allocations: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """``[num_blocks, *outer, run_bytes]`` per layer, as a page copier takes them."""
        return [
            allocations[layer.allocation].as_strided(layer.shape, layer.strides, layer.offset)
            for layer in self.layers
        ]


def _differing(found: torch.Tensor, right: torch.Tensor) -> int:
    """numpy counts ten times as fast as torch adds."""
    return int(np.count_nonzero((found != right).numpy()))


def _random_bytes(size: int) -> torch.Tensor:
    words = torch.randint(-(2**62), 2**62, (size // 8 + 1,))
    return words.view(torch.uint8)[:size]


def _axes(
    order: str, sizes: dict[str, int], run: int, *, padding: int = 0, offset: int = 0
) -> Layout:
    """Layers ``L``, blocks ``B``, planes ``P`` and heads ``H`` in that order in one allocation.

    ``padding`` bytes lie behind what the last axis repeats, ``offset`` bytes before everything.
    """
    strides: dict[str, int] = {}
    stride = run + padding
    for axis in reversed(order):
        strides[axis] = stride
        stride *= sizes[axis]
    outer = [axis for axis in order if axis in "PH"]
    shape = (sizes["B"], *(sizes[axis] for axis in outer), run)
    layers = tuple(
        Layer(0, offset + i * strides["L"], shape, (strides["B"], *(strides[a] for a in outer), 1))
        for i in range(sizes["L"])
    )
    return Layout(layers, (offset + stride,))


def _separate(run: int, layers: int) -> Layout:
    shape, strides = (NUM_BLOCKS, run), (run, 1)
    return Layout(
        tuple(Layer(i, 0, shape, strides) for i in range(layers)), (NUM_BLOCKS * run,) * layers
    )


def _unequal(page_bytes: int) -> Layout:
    """An indexer or a drafter beside wide layers: one block stride, runs of two sizes."""
    narrow = page_bytes // 8
    wide = (page_bytes - narrow) // 2
    sizes = (wide, page_bytes - narrow - wide, narrow)
    starts = (0, wide, page_bytes - narrow)
    layers = tuple(
        Layer(0, start, (NUM_BLOCKS, size), (page_bytes, 1))
        for start, size in zip(starts, sizes, strict=True)
    )
    return Layout(layers, (NUM_BLOCKS * page_bytes,))


def _sizes(**axes: int) -> dict[str, int]:
    return {"B": NUM_BLOCKS, **axes}


LAYOUTS: dict[str, Callable[[int], Layout]] = {
    # [blocks, tokens, heads, K and V]: a page is contiguous per layer.
    "NHD": lambda page: _axes("LB", _sizes(L=2), page // 2),
    # [blocks, heads, tokens, K and V]: the same bytes, seen head by head.
    "HND": lambda page: _axes("LBH", _sizes(L=2, H=2), page // 4),
    "HND, heads outermost": lambda page: _axes("LHB", _sizes(L=2, H=2), page // 4),
    "HND, layers inside heads": lambda page: _axes("BHL", _sizes(L=2, H=2), page // 4),
    "HND, heads outside layers": lambda page: _axes("HLB", _sizes(L=2, H=2), page // 4),
    "fused, layers inside blocks": lambda page: _axes("BL", _sizes(L=4), page // 4),
    "K/V split": lambda page: _axes("LPB", _sizes(L=2, P=2), page // 4),
    "K/V split, heads outermost": lambda page: _axes("LPHB", _sizes(L=1, P=2, H=4), page // 8),
    "MLA": lambda page: _axes("LB", _sizes(L=1), page),
    "padded": lambda page: _axes("LB", _sizes(L=2), page // 2, padding=64),
    "padded to an odd stride": lambda page: _axes("LB", _sizes(L=2), page // 2, padding=5),
    "recurrent int8 with a larger stride": lambda page: _axes(
        "BL", _sizes(L=2), page // 2, padding=24, offset=128
    ),
    "offset by an odd byte": lambda page: _axes("LB", _sizes(L=2), page // 2, offset=1),
    "layers in allocations of their own": lambda page: _separate(page // 4, 4),
    "layers of different sizes": _unequal,
}

PAGE_BYTES = (1_000, 50_176, 65_536, 8 * 2**20)


def page_of(views: Sequence[torch.Tensor], block: int) -> torch.Tensor:
    """The page of a block, layer after layer, on the host."""
    return torch.cat([view[block].reshape(-1).cpu() for view in views])


def put_page(views: Sequence[torch.Tensor], block: int, page: torch.Tensor) -> None:
    """Write a page into a block."""
    start = 0
    for view in views:
        size = view[block].numel()
        view[block] = page[start : start + size].reshape(view[block].shape).to(view.device)
        start += size


class RoundTrip:
    """Random pages out to random slots and back into other blocks, every byte compared.

    Args:
        layout: where the pages lie.
        make: the copier of a group id, layers and a pool.
        device: of the engine's cache.
        pool: where to make the pool; ``None`` takes plain host memory.
    """

    def __init__(
        self,
        layout: Layout,
        make: Callable[[int, list[torch.Tensor], torch.Tensor], PageCopier],
        *,
        device: str = "cpu",
        seed: int = 0,
        pool: Callable[[int], torch.Tensor] | None = None,
    ) -> None:
        torch.manual_seed(seed)
        rng = random.Random(seed)
        self.layout = layout
        self.allocations = layout.allocate(device)
        self.views = layout.views(self.allocations)
        self.page_bytes = len(page_of(self.views, 0))
        # Extents with bytes between them that belong to nobody.
        width = SLOTS_PER_EXTENT * self.page_bytes + EXTENT_GAP_BYTES
        buffer = pool(EXTENTS * width) if pool else torch.empty(EXTENTS * width, dtype=torch.uint8)
        self.extents = buffer.view(EXTENTS, width).fill_(UNTOUCHED)
        self.pool = self.extents[:, :-EXTENT_GAP_BYTES].unflatten(
            1, (SLOTS_PER_EXTENT, self.page_bytes)
        )
        self.copier = make(3, self.views, self.pool)
        count = EXTENTS * SLOTS_PER_EXTENT - 1
        self.blocks = rng.sample(range(NUM_BLOCKS), count)
        self.targets = rng.sample(range(NUM_BLOCKS), count)
        self.slots = rng.sample(range(EXTENTS * SLOTS_PER_EXTENT), count)

    def store(self) -> None:
        """Pages into slots."""
        self.copier.store(self.blocks, self.slots).wait()

    def wrong_bytes_in_pool(self) -> int:
        """Bytes of host memory that are not what the store must leave there."""
        expected = torch.full_like(self.extents, UNTOUCHED)
        pages = expected[:, :-EXTENT_GAP_BYTES].unflatten(1, (SLOTS_PER_EXTENT, self.page_bytes))
        for block, slot in zip(self.blocks, self.slots, strict=True):
            pages[divmod(slot, SLOTS_PER_EXTENT)] = page_of(self.views, block)
        return _differing(self.extents, expected)

    def load(self) -> None:
        """Slots into other blocks of a cache that was wiped."""
        self.pages = {
            t: page_of(self.views, b) for t, b in zip(self.targets, self.blocks, strict=True)
        }
        for allocation in self.allocations:
            allocation.fill_(WIPED)
        self.copier.load(self.targets, self.slots).wait()

    def wrong_bytes_in_cache(self) -> int:
        """Bytes of the allocations that are not what the load must leave there."""
        expected = self.layout.allocate(fill=WIPED)
        views = self.layout.views(expected)
        for target, page in self.pages.items():
            put_page(views, target, page)
        return sum(
            _differing(allocation.cpu(), right)
            for allocation, right in zip(self.allocations, expected, strict=True)
        )
