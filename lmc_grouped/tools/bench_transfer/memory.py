"""What every side of the benchmark copies: pages of one group in a cache, slots in a pool."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np

LAYERS = 16
BLOCK_TOKENS = 16
CONTENT = 64
"""Values of two bytes per token and head, keys and values together."""


class Order(StrEnum):
    """Which blocks and slots an operation names."""

    RANDOM = "random"
    DESCENDING = "descending"
    """Blocks as vLLM gives them after a reset, slots counting up."""
    CONSECUTIVE = "consecutive"
    """Both counting up."""


@dataclass(frozen=True, slots=True)
class Ids:
    """One operation: every page once."""

    block_ids: list[int]
    slots: list[int]

    @classmethod
    def of(cls, order: Order, pages: int, seed: int = 0) -> "Ids":
        """All pages in that order."""
        counted = list(range(pages))
        if order is Order.RANDOM:
            rng = np.random.default_rng(seed)
            return cls(rng.permutation(pages).tolist(), rng.permutation(pages).tolist())
        return cls(counted[::-1] if order is Order.DESCENDING else counted, counted)


class Memory:
    """A cache of 16 layers in one buffer, as vLLM registers it, and a pool of as many pages.

    Args:
        page_bytes: of all layers; a multiple of 32 KiB.
        total_bytes: of the cache, and of the pool.

    Raises:
        ValueError: the page is not cut into whole heads.
    """

    def __init__(self, page_bytes: int, total_bytes: int) -> None:
        import torch

        from lmc_grouped.host.region import HostRegion, PoolShape

        head_bytes = BLOCK_TOKENS * CONTENT * 2
        if page_bytes % (LAYERS * head_bytes):
            raise ValueError(
                f"a page has {page_bytes} bytes; allowed are multiples of {LAYERS * head_bytes}"
            )
        self.page_bytes = page_bytes
        self.pages = max(1, total_bytes // page_bytes)
        self.heads = page_bytes // LAYERS // head_bytes
        words = torch.randint(-(2**62), 2**62, (self.pages * page_bytes // 8,))
        self.cache = words.view(torch.uint8).view(LAYERS, self.pages, page_bytes // LAYERS)
        """``[layers, blocks, bytes]``."""
        self._before = self.cache.clone()
        self.region = HostRegion({0: PoolShape(self.pages, page_bytes)})
        self.pool = torch.from_numpy(self.region.pool(0))
        """``[1, slots, page_bytes]``."""

    @property
    def total_bytes(self) -> int:
        """Of one operation."""
        return self.pages * self.page_bytes

    @property
    def views(self) -> list[Any]:
        """Per layer, as a page copier takes them."""
        return list(self.cache)

    def wipe_cache(self) -> None:
        """Forget the cache, so that its bytes can only come from the pool."""
        self.cache.zero_()

    def check(self, side: str) -> None:
        """Compare the cache with what it was at first.

        Raises:
            RuntimeError: a byte differs.
        """
        wrong = int((self.cache != self._before).sum())
        if wrong:
            raise RuntimeError(f"{side}: {wrong} bytes came back wrong")
