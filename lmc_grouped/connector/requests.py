"""What the scheduler half remembers of each request, and what both its parts share."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING

from lmc_grouped.connector.metrics import GroupedStats
from lmc_grouped.core.groups import GroupTable
from lmc_grouped.core.hits import Hit
from lmc_grouped.core.index import PageIndex, PageRef
from lmc_grouped.core.plan import StoreCursor, page_hash_index

if TYPE_CHECKING:
    from vllm.v1.request import Request


@dataclass(frozen=True, slots=True)
class Lookup:
    """One answered lookup; its pages are leased until the engine takes or drops it."""

    local_tokens: int
    limit_tokens: int
    index_version: int
    hit: Hit

    @property
    def external_tokens(self) -> int:
        """Tokens promised beyond the engine's own."""
        return self.hit.boundary_tokens - self.local_tokens


@dataclass(frozen=True, slots=True)
class StateOffer:
    """A recurrent state the engine has handed off: the block holds it until it is let go."""

    group_id: int
    block_id: int
    boundary_tokens: int


@dataclass(slots=True)
class RequestState:
    """One request known to the scheduler half."""

    request: "Request"
    cursor: StoreCursor
    lookup: Lookup | None = None
    load_failed: bool = False
    """A load for it failed: it is recomputed, never promised again."""
    offers: list[StateOffer] = field(default_factory=list)
    """States waiting for room; their device blocks are pinned."""
    stalled_at: int | None = None
    """The index's release count when its pages last found no room."""

    @property
    def waiting_owner(self) -> str:
        """Lease owner of the promised pages."""
        return f"wait:{self.request.request_id}"

    @property
    def running_owner(self) -> str:
        """Lease owner of the request's own prefix while it runs."""
        return f"run:{self.request.request_id}"


class Tier:
    """The host tier as the scheduler sees it: table, index, counters, operation ids."""

    def __init__(self, table: GroupTable, world_size: int) -> None:
        self.table = table
        self.world_size = world_size
        self.span_tokens = {group.group_id: group.span_tokens for group in table.groups}
        self.index = PageIndex({})
        self.is_open = False
        """Whether the ranks have reported their pools."""
        self.stats = GroupedStats()
        self.requests: dict[str, RequestState] = {}
        self._operation_ids = count(1)

    def set_pools(self, slots_by_group: Mapping[int, int]) -> None:
        """Start an empty index over pools that every rank can hold."""
        self.index = PageIndex(slots_by_group)
        self.is_open = True

    def state(self, request: "Request") -> RequestState:
        """The request's state, made at first sight."""
        known = self.requests.get(request.request_id)
        if known is None:
            known = RequestState(request, StoreCursor(self.table))
            self.requests[request.request_id] = known
        return known

    def next_operation_id(self) -> int:
        """An id no operation had before."""
        return next(self._operation_ids)

    def hashed_tokens(self, request: "Request") -> int:
        """Tokens of the request that block hashes cover."""
        return len(request.block_hashes) * self.table.hash_block_tokens

    def ref(self, request: "Request", group_id: int, end_tokens: int) -> PageRef:
        """The key of the group's page that ends at ``end_tokens``."""
        position = page_hash_index(end_tokens, self.table.hash_block_tokens)
        return group_id, request.block_hashes[position]

    def page_ref(self, request: "Request", group_id: int, page: int) -> PageRef:
        """The key of the group's page with that index in the request."""
        return self.ref(request, group_id, (page + 1) * self.span_tokens[group_id])

    def count_pages(self, verb: str, refs: Sequence[PageRef]) -> None:
        """Add pages to the counters ``{verb}_tokens`` and ``{verb}_bytes`` of their groups."""
        pages = Counter(group_id for group_id, _ in refs)
        for group in self.table.groups:
            count = pages[group.group_id]
            if count:
                self.stats.add(f"{verb}_tokens", count * group.span_tokens, group.group_id)
                self.stats.add(f"{verb}_bytes", count * group.page_bytes, group.group_id)
