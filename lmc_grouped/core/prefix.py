"""One prompt as a tier sees it: the key of each of its pages."""

from collections.abc import Callable, Iterable, Sequence

from lmc_grouped.core.groups import GroupTable
from lmc_grouped.core.hits import PageProbe
from lmc_grouped.core.pool import PageRef


class Prefix:
    """The chained block hashes of a request, read per group.

    Args:
        table: the groups.
        block_hashes: hash ``i`` covers the prompt up to ``(i + 1) *
            hash_block_tokens``; the list may grow while the request runs.
    """

    def __init__(self, table: GroupTable, block_hashes: Sequence[bytes]) -> None:
        self._hashes = block_hashes
        self._hash_tokens = table.hash_block_tokens
        self._hashes_per_page = {
            group.group_id: group.span_tokens // table.hash_block_tokens for group in table.groups
        }

    @property
    def hashed_tokens(self) -> int:
        """Tokens that block hashes cover."""
        return len(self._hashes) * self._hash_tokens

    def block_hash(self, group_id: int, page: int) -> bytes:
        """The hash of the prompt up to the end of the group's page with that index."""
        return self._hashes[(page + 1) * self._hashes_per_page[group_id] - 1]

    def ref(self, group_id: int, page: int) -> PageRef:
        """The key of that page."""
        return group_id, self.block_hash(group_id, page)

    def refs(self, group_id: int, pages: Iterable[int]) -> list[PageRef]:
        """The keys of those pages."""
        return [self.ref(group_id, page) for page in pages]

    def probe(self, has: Callable[[int, bytes], bool], limit_tokens: int) -> PageProbe:
        """``has`` by page index, for pages that end at ``limit_tokens`` or before."""
        hashes, hashes_per_page = self._hashes, self._hashes_per_page
        usable = min(limit_tokens // self._hash_tokens, len(hashes))

        def probe(group_id: int, page: int) -> bool:
            position = (page + 1) * hashes_per_page[group_id]
            return position <= usable and has(group_id, hashes[position - 1])

        return probe
