"""Ways to copy the same pages out and in; every side is timed the same way."""

import ctypes
import os
from collections.abc import Callable
from enum import StrEnum
from functools import partial
from typing import Any

import numpy as np

from lmc_grouped.tools.bench_transfer.memory import BLOCK_TOKENS, CONTENT, LAYERS, Ids, Memory

LMCACHE_CHUNK_TOKENS = 256
"""LMCache's default chunk: one of its objects holds the tokens of 16 blocks."""


class Side(StrEnum):
    """What is compared."""

    OURS = "lmc_grouped"
    """The CPU rung behind a page copier: ids checked, arrays made, bytes copied."""
    WHOLE = "memcpy, one call"
    """As many bytes in one piece, by one thread. Beyond glibc's threshold (99 MiB on the
    machine of the documented figures) it writes past the caches."""
    PAGES = "memcpy, page by page"
    """The same pages in the same order, were each of them one piece on both sides."""
    LMCACHE_NHD = "LMCache torch operations, NHD"
    LMCACHE_HND = "LMCache torch operations, HND"
    """It swaps heads and tokens on the way."""
    NAIVE = "loop over pages and layers"


Transfer = Callable[[], object]


def ours(memory: Memory, ids: Ids) -> tuple[Transfer, Transfer]:
    """What a worker does for one group of an operation."""
    from lmc_grouped.transfer.pages import PageCopier

    copier = PageCopier(0, memory.views, memory.pool)
    return (
        partial(copier.store, ids.block_ids, ids.slots),
        partial(copier.load, ids.block_ids, ids.slots),
    )


def whole(memory: Memory, ids: Ids) -> tuple[Transfer, Transfer]:
    """One ``memmove`` of the whole cache."""
    del ids
    cache, pool = memory.cache.data_ptr(), memory.pool.data_ptr()
    return (
        lambda: ctypes.memmove(pool, cache, memory.total_bytes),
        lambda: ctypes.memmove(cache, pool, memory.total_bytes),
    )


def pages(memory: Memory, ids: Ids) -> tuple[Transfer, Transfer]:
    """One ``memmove`` per page; the addresses are worked out beforehand."""
    size = memory.page_bytes
    cache = (memory.cache.data_ptr() + np.array(ids.block_ids) * size).tolist()
    pool = (memory.pool.data_ptr() + np.array(ids.slots) * size).tolist()

    def copy(targets: list[int], sources: list[int]) -> None:
        for target, source in zip(targets, sources, strict=True):
            ctypes.memmove(target, source, size)

    return partial(copy, pool, cache), partial(copy, cache, pool)


def naive(memory: Memory, ids: Ids) -> tuple[Transfer, Transfer]:
    """A ``copy_`` for each page of each layer."""
    run = memory.page_bytes // LAYERS
    pool = memory.pool[0].view(memory.pages, LAYERS, run)

    def store() -> None:
        for block, slot in zip(ids.block_ids, ids.slots, strict=True):
            for layer in range(LAYERS):
                pool[slot, layer].copy_(memory.cache[layer, block])

    def load() -> None:
        for block, slot in zip(ids.block_ids, ids.slots, strict=True):
            for layer in range(LAYERS):
                memory.cache[layer, block].copy_(pool[slot, layer])

    return store, load


def lmcache(name: str, memory: Memory, ids: Ids) -> tuple[Transfer, Transfer]:
    """LMCache's fallback for devices without compiled operations, on tensors.

    Its objects hold the tokens of 16 blocks; they lie in the pool in the order of the slots.
    """
    os.environ.setdefault("LMCACHE_LOG_LEVEL", "ERROR")  # read when it is imported
    import torch
    from lmcache.lmcache_native import EngineKVFormat, TransferDirection
    from lmcache.v1.platform.ops_types import PageBufferShapeDesc
    from lmcache.v1.platform.torch_ops.mp_mem_kernels import multi_layer_block_kv_transfer

    form, heads = getattr(EngineKVFormat, name), memory.heads
    inner = (heads, BLOCK_TOKENS) if "_NH_BS_" in name else (BLOCK_TOKENS, heads)
    paged = [
        layer.view(torch.float16).view(memory.pages, *inner, CONTENT) for layer in memory.cache
    ]
    blocks = LMCACHE_CHUNK_TOKENS // BLOCK_TOKENS
    pool = memory.pool.view(torch.float16)
    chunks = pool.view(-1, LAYERS, blocks * BLOCK_TOKENS, heads * CONTENT)
    # Objects in the order in which the operation reaches the first of their slots.
    order = list(dict.fromkeys(slot // blocks for slot in ids.slots))
    objects = [chunks[number] for number in order]
    shape = PageBufferShapeDesc()
    for field, value in {
        "kv_size": 1, "nl": LAYERS, "nb": memory.pages, "bs": BLOCK_TOKENS, "nh": heads,
        "hs": CONTENT, "element_size": 2,
    }.items():  # fmt: skip
        setattr(shape, field, value)

    def run(direction: Any) -> None:
        multi_layer_block_kv_transfer(
            paged, objects, ids.block_ids, "cpu", direction, shape, LMCACHE_CHUNK_TOKENS, form, 0
        )

    return partial(run, TransferDirection.D2H), partial(run, TransferDirection.H2D)


SIDES: dict[Side, Callable[[Memory, Ids], tuple[Transfer, Transfer]]] = {
    Side.OURS: ours,
    Side.WHOLE: whole,
    Side.PAGES: pages,
    Side.LMCACHE_NHD: partial(lmcache, "NL_X_NB_BS_NH_TWO_HS"),
    Side.LMCACHE_HND: partial(lmcache, "NL_X_NB_NH_BS_TWO_HS"),
    Side.NAIVE: naive,
}
