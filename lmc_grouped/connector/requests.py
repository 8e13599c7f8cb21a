"""What the scheduler half remembers of each request, and what both its parts share."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import TYPE_CHECKING

from lmc_grouped.connector.metrics import GroupedStats
from lmc_grouped.core.groups import GroupTable
from lmc_grouped.core.hits import Hit
from lmc_grouped.core.index import PageIndex
from lmc_grouped.core.pool import PageRef
from lmc_grouped.core.pools import PoolPlan
from lmc_grouped.core.prefix import Prefix
from lmc_grouped.core.rule import RetentionRule
from lmc_grouped.core.writer import PrefixWriter

if TYPE_CHECKING:
    from vllm.v1.request import Request

    from lmc_grouped.connector.disk import DiskHalf


@dataclass(frozen=True, slots=True)
class Lookup:
    """One answered lookup; its pages are leased until the engine takes or drops it."""

    local_tokens: int
    limit_tokens: int
    versions: tuple[int, int]
    """Of the indexes that were asked."""
    hit: Hit

    @property
    def external_tokens(self) -> int:
        """Tokens promised beyond the engine's own."""
        return self.hit.boundary_tokens - self.local_tokens


@dataclass(frozen=True, slots=True)
class Waiting:
    """Why a lookup has no answer yet."""

    operation_id: int | None
    """The read that brings the pages; ``None``: others bring them, or have to make room."""
    versions: tuple[int, int, int]
    """Without an operation: nothing changes as long as these are the same."""
    until_seconds: float
    """When to stop waiting, on the monotonic clock."""
    reason: str
    """What to count then."""


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
    prefix: Prefix
    writer: PrefixWriter
    lookup: Lookup | None = None
    load_failed: bool = False
    """A load for it failed: it is recomputed, never promised again."""
    offers: list[StateOffer] = field(default_factory=list)
    """States waiting for room; their device blocks are pinned."""
    waiting: Waiting | None = None
    """It waits for pages on disk; what is there of its hit is leased to it."""
    reads_disk: bool = True
    """Whether a hit on disk is worth waiting for; not once that has failed."""
    failed_reads: int = 0

    @property
    def waiting_owner(self) -> str:
        """Lease owner of the promised pages, and of those it waits for."""
        return f"wait:{self.request.request_id}"


class Tier:
    """The host tier as the scheduler sees it: groups, index, counters, operation ids."""

    def __init__(self, rule: RetentionRule, world_size: int) -> None:
        self.rule = rule
        self.world_size = world_size
        self.span_tokens = {group.group_id: group.span_tokens for group in rule.table.groups}
        self.index = PageIndex({})
        self.is_open = False
        """Whether the ranks have reported their pools."""
        self.disk: DiskHalf | None = None
        """The file tier, where it is on."""
        self.stats = GroupedStats()
        self.requests: dict[str, RequestState] = {}
        self._operation_ids = count(1)

    @property
    def table(self) -> GroupTable:
        """The groups."""
        return self.rule.table

    def open(self, table: GroupTable, plan: PoolPlan) -> None:
        """Start an empty index over pools that every rank can hold.

        Args:
            table: the groups, with the page bytes that a rank has reported.
            plan: what the ranks have agreed on.
        """
        self.rule = replace(self.rule, table=table)
        self.index = PageIndex(
            plan.slots_by_group, shared=plan.row_bytes is not None, extents=plan.extents
        )
        self.is_open = True

    def state(self, request: "Request") -> RequestState:
        """The request's state, made at first sight."""
        known = self.requests.get(request.request_id)
        if known is None:
            prefix = Prefix(self.table, request.block_hashes)
            owner = f"run:{request.request_id}"
            writer = PrefixWriter(self.index, self.rule, prefix, owner, request.num_prompt_tokens)
            known = RequestState(request, prefix, writer)
            self.requests[request.request_id] = known
        return known

    @property
    def versions(self) -> tuple[int, int]:
        """Change whenever the answer of a lookup may have changed."""
        return self.index.version, self.disk.index.version if self.disk else 0

    def next_operation_id(self) -> int:
        """An id no operation had before."""
        return next(self._operation_ids)

    def count_pages(self, verb: str, refs: Sequence[PageRef]) -> None:
        """Add pages to the counters ``{verb}_tokens`` and ``{verb}_bytes`` of their groups."""
        pages = Counter(group_id for group_id, _ in refs)
        for group in self.table.groups:
            count = pages[group.group_id]
            if count:
                self.stats.add(f"{verb}_tokens", count * group.span_tokens, group.group_id)
                self.stats.add(f"{verb}_bytes", count * group.page_bytes, group.group_id)
