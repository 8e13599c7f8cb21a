"""Our block copies beside LMCache's torch operations, layout by layout.

Used in a test of the installed release and, in processes of their own, of others.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from lmcache.lmcache_native import EngineKVFormat, TransferDirection
from lmcache.v1.platform import torch_ops
from lmcache.v1.platform.ops_types import PageBufferShapeDesc

from lmc_grouped.adapters.lmcache_blocks import LAYOUTS

LAYERS, BLOCKS, TOKENS, HEADS, WIDTH = 3, 9, 4, 4, 6
BLOCKS_PER_OBJECT = 2
Transfer = Callable[..., None]


@dataclass(frozen=True)
class Cache:
    """An engine's cache, and the memory it lies in, padding included."""

    caches: Any
    memory: list[torch.Tensor]
    planes: int
    width: int


def known_layouts() -> list[str]:
    """Those of ours that this release has."""
    return [name for name in LAYOUTS if name in EngineKVFormat.__members__]


def cache_of(layout: str, dtype: torch.dtype, *, padded: bool) -> Cache:
    """Random bytes in a layout; ``padded``: blocks that lie further apart than they are long."""
    memory: list[torch.Tensor] = []

    def tensor(*shape: int, block_axis: int = 0) -> torch.Tensor:
        stretched = list(shape)
        if padded:  # every second block only
            stretched[block_axis] *= 2
        raw = torch.randint(0, 256, (*stretched[:-1], shape[-1] * dtype.itemsize)).to(torch.uint8)
        memory.append(raw)
        view = raw.view(dtype)
        return view.narrow(block_axis, 0, view.shape[block_axis])[
            (slice(None),) * block_axis + (slice(None, None, 2 if padded else 1),)
        ]

    inner = (HEADS, TOKENS) if "NH_BS" in layout else (TOKENS, HEADS)
    many = range(LAYERS)
    planes, width = 2, WIDTH
    caches: Any
    match layout:
        case "NB_NL_TWO_BS_NH_HS" | "NB_NL_TWO_NH_BS_HS":
            caches = tensor(BLOCKS, LAYERS, 2, *inner, WIDTH)
        case "NL_X_TWO_NB_BS_NH_HS" | "NL_X_TWO_NB_NH_BS_HS":
            caches = [tensor(2, BLOCKS, *inner, WIDTH, block_axis=1) for _ in many]
        case "NL_X_NB_TWO_BS_NH_HS" | "NL_X_NB_TWO_NH_BS_HS":
            caches = [tensor(BLOCKS, 2, *inner, WIDTH) for _ in many]
        case "NL_X_TWO_X_NB_BS_NH_HS":
            caches = [tuple(tensor(BLOCKS, *inner, WIDTH) for _ in range(2)) for _ in many]
        case "TWO_X_NL_X_NB_BS_NH_HS":
            caches = [[tensor(BLOCKS, *inner, WIDTH) for _ in many] for _ in range(2)]
        case "TWO_X_NL_X_NBBS_NH_HS":
            padded = False  # blocks are folded into tokens: there is no room between them
            caches = [[tensor(BLOCKS * TOKENS, HEADS, WIDTH) for _ in many] for _ in range(2)]
        case "NL_X_NBBS_ONE_HS":
            padded = False
            planes, width = 1, WIDTH
            caches = [tensor(BLOCKS * TOKENS, 1, WIDTH) for _ in many]
        case "NL_X_NB_BS_HS":
            planes = 1
            caches = [tensor(BLOCKS, TOKENS, WIDTH) for _ in many]
        case _:
            planes, width = 1, WIDTH if layout == "NL_X_NB_BS_NH_HS" else 2 * WIDTH
            caches = [tensor(BLOCKS, *inner, width) for _ in many]
    heads = 1 if layout in ("NL_X_NBBS_ONE_HS", "NL_X_NB_BS_HS") else HEADS
    return Cache(caches, memory, planes, heads * width)


def objects_of(cache: Cache, count: int, dtype: torch.dtype) -> list[torch.Tensor]:
    """Objects of random bytes."""
    tokens = BLOCKS_PER_OBJECT * TOKENS
    leading = (2, LAYERS) if cache.planes == 2 else (LAYERS,)
    shape = (*leading, tokens, cache.width * dtype.itemsize)
    return [torch.randint(0, 256, shape).to(torch.uint8).view(dtype) for _ in range(count)]


def arguments(layout: str, cache: Cache, direction: Any, ids: Any, objects: Any, skip: int) -> list:
    """Of ``multi_layer_block_kv_transfer``."""
    desc = PageBufferShapeDesc()
    desc.kv_size, desc.nl, desc.nb, desc.bs = cache.planes, LAYERS, BLOCKS, TOKENS
    desc.nh, desc.hs = 1, cache.width
    desc.element_size = objects[0].element_size()
    chunk = BLOCKS_PER_OBJECT * TOKENS
    layout_number = EngineKVFormat.__members__[layout]
    return [cache.caches, objects, ids, "cpu", direction, desc, chunk, layout_number, skip]


def outcome(
    transfer: Transfer, layout: str, dtype: torch.dtype, seed: int, *, padded: bool
) -> list[list[int]]:
    """All memory, byte for byte, after a store and a load through one implementation."""
    rng = random.Random(seed)
    torch.manual_seed(seed)
    cache = cache_of(layout, dtype, padded=padded)
    count = rng.choice((1, 3, 5, 6))  # blocks; the last object may be half full
    skip = rng.choice((0, 0, 1, 2))
    objects = objects_of(cache, -(-count // BLOCKS_PER_OBJECT), dtype)
    transfer(
        *arguments(
            layout, cache, TransferDirection.D2H, rng.sample(range(BLOCKS), count), objects, skip
        )
    )
    targets = rng.sample(range(BLOCKS), count)
    ids = torch.tensor(targets) if seed % 2 else targets
    transfer(*arguments(layout, cache, TransferDirection.H2D, ids, objects, skip))
    return [each.view(torch.uint8).flatten().tolist() for each in [*objects, *cache.memory]]


def baseline(*args: Any) -> None:
    """LMCache's torch operation."""
    torch_ops.multi_layer_block_kv_transfer(*args)


def disagreements(transfer: Transfer, seeds: int) -> list[str]:
    """Where an implementation leaves other bytes than LMCache's; empty when it never does."""
    return [
        f"{layout} {dtype} {seed} {padded}"
        for layout in known_layouts()
        for dtype in (torch.bfloat16, torch.uint8, torch.float32)
        for padded in (False, True)
        for seed in range(seeds)
        if outcome(transfer, layout, dtype, seed, padded=padded)
        != outcome(baseline, layout, dtype, seed, padded=padded)
    ]
