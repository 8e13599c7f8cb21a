"""The scheduler's view of the file tiers: which page every rank has on disk."""

from collections.abc import Iterable, Mapping

from lmc_grouped.core.groups import GroupSpec
from lmc_grouped.core.pool import PageRef


class DiskIndex:
    """Pages on disk, by the word of all ranks. A page that one rank lacks is a miss.

    Args:
        groups: with the page bytes of one worker, which count the bytes.
        ranks_by_group: group_id -> ranks that hold bytes of the group.
    """

    def __init__(
        self, groups: Iterable[GroupSpec], ranks_by_group: Mapping[int, Iterable[int]]
    ) -> None:
        self._all = {
            group_id: sum(1 << rank for rank in set(ranks))
            for group_id, ranks in ranks_by_group.items()
        }
        self._page_bytes = {group.group_id: group.page_bytes for group in groups}
        self._ranks: dict[PageRef, int] = {}
        self._pages = dict.fromkeys(self._page_bytes, 0)
        self.version = 0
        """Changes whenever an answer of ``has`` may have changed."""

    def has(self, group_id: int, block_hash: bytes) -> bool:
        """Whether every rank has the page."""
        return self._ranks.get((group_id, block_hash), 0) == self._all[group_id]

    def apply(self, rank: int, changes: Iterable[tuple[PageRef, bool]]) -> list[PageRef]:
        """Follow what became visible on a rank, and what left, in its order.

        Returns:
            Pages that every rank has from now on.
        """
        bit = 1 << rank
        complete: list[PageRef] = []
        for ref, is_visible in changes:
            before = self._ranks.get(ref, 0)
            after = before | bit if is_visible else before & ~bit
            if after == before:
                continue
            self.version += 1
            every = self._all[ref[0]]
            if after:
                self._ranks[ref] = after
            else:
                del self._ranks[ref]
            if after == every:
                self._pages[ref[0]] += 1
                complete.append(ref)
            elif before == every:
                self._pages[ref[0]] -= 1
        return complete

    def clear(self) -> None:
        """Forget everything."""
        self._ranks.clear()
        self._pages = dict.fromkeys(self._pages, 0)
        self.version += 1

    def residency(self) -> dict[int, tuple[int, int]]:
        """group_id -> pages that every rank has, and their bytes on one worker."""
        return {
            group_id: (pages, pages * self._page_bytes[group_id])
            for group_id, pages in self._pages.items()
        }
