"""Stores of the file tier for the tests beside this file."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from lmc_grouped.host.disk import DiskTier, Quota, ReadOutcome
from tests.factories import namespace, page_of

KB = 1_024
Key = tuple[int, bytes]


class Disk:
    """A tier with what tests ask of it: put known pages, and find exactly those."""

    def __init__(self, tier: DiskTier) -> None:
        self.tier = tier

    def put(self, *keys: Key) -> list[str]:
        """Put the pages of these keys and wait; the answers."""
        sizes = self.tier.stats().groups
        answers = [self.tier.put(k, page_of(k, sizes[k[0]].page_bytes)) for k in keys]
        self.tier.flush()
        return [str(answer) for answer in answers]

    def put_all(self, keys: Sequence[Key]) -> list[str]:
        """`put`, in one offer."""
        sizes = self.tier.stats().groups
        pages = [page_of(key, sizes[key[0]].page_bytes) for key in keys]
        answers = self.tier.put_all(keys, pages)
        self.tier.flush()
        return [str(answer) for answer in answers]

    def read(self, keys: Sequence[Key]) -> list[ReadOutcome]:
        """Read; every hit is compared with what was put."""
        sizes = self.tier.stats().groups
        buffers = [bytearray(sizes[group_id].page_bytes) for group_id, _ in keys]
        outcomes = self.tier.read(keys, buffers)
        for key, buffer, outcome in zip(keys, buffers, outcomes, strict=True):
            if outcome is ReadOutcome.HIT:
                assert buffer == page_of(key, len(buffer)), "a wrong byte was served"
        return outcomes

    def hits(self, keys: Sequence[Key]) -> list[Key]:
        """The keys that are hits."""
        found = zip(keys, self.read(keys), strict=True)
        return [key for key, outcome in found if outcome is ReadOutcome.HIT]


@pytest.fixture
def open_disk(tmp_path: Path) -> Iterator[Callable[..., Disk]]:
    """Opens the store below `tmp_path`; what a test leaves open is closed."""
    tiers: list[DiskTier] = []

    def open_it(cap_bytes: int = 100 * KB, *, ns=None, root: Path = tmp_path, **options) -> Disk:
        quota = Quota(cap_bytes, **options.pop("quota", {}))
        tiers.append(DiskTier.open(root, ns or namespace(), 0, quota, **options))
        return Disk(tiers[-1])

    yield open_it
    for tier in tiers:
        tier.close()
