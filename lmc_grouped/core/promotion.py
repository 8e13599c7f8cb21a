"""Host memory and disk as one: the longest hit over both, and what has to be read for it."""

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, field

from lmc_grouped.core.disk_index import DiskIndex
from lmc_grouped.core.groups import GroupSpec, Kind
from lmc_grouped.core.hits import Hit, longest_hit, needed_pages
from lmc_grouped.core.index import PageIndex
from lmc_grouped.core.pool import NewPage, PageRef
from lmc_grouped.core.prefix import Prefix
from lmc_grouped.core.rule import RetentionRule, proof_pages

Has = Callable[[int, bytes], bool]


@dataclass(slots=True)
class Promotion:
    """What a boundary needs of host memory: pages that are there, and pages to read."""

    held: list[PageRef] = field(default_factory=list)
    """Pages in host memory, readable or being written; of a full group the last one."""
    missing: list[NewPage] = field(default_factory=list)
    """Pages that are on disk only; those of full groups ascend."""

    @property
    def refs(self) -> list[PageRef]:
        """The keys of the missing pages."""
        return [(page.group_id, page.block_hash) for page in self.missing]


def find_union_hit(
    index: PageIndex,
    disk: DiskIndex,
    rule: RetentionRule,
    prefix: Prefix,
    *,
    local_tokens: int,
    limit_tokens: int,
) -> Hit:
    """The longest boundary that host memory and disk together can serve.

    Disk loses pages anywhere in a prefix, so a full group is followed page by page
    from the prompt's start: its pages in host memory have no holes (``PageIndex``),
    those beyond are asked one by one until the first that is missing.
    """

    def has(group_id: int, block_hash: bytes) -> bool:
        return index.knows(group_id, block_hash) or disk.has(group_id, block_hash)

    pages = prefix.probe(has, limit_tokens)
    in_memory = prefix.probe(index.knows, limit_tokens)
    reach = {
        group.group_id: _reach(group, in_memory, pages, limit_tokens)
        for group in rule.table.groups
        if group.kind is Kind.FULL
    }

    def probe(group_id: int, page: int) -> bool:
        return page < reach[group_id] if group_id in reach else pages(group_id, page)

    return longest_hit(rule.table, probe, local_tokens=local_tokens, limit_tokens=limit_tokens)


def plan_promotion(
    index: PageIndex,
    rule: RetentionRule,
    prefix: Prefix,
    *,
    local_tokens: int,
    boundary_tokens: int,
) -> Promotion:
    """What to hold and what to read so that ``find_hit`` answers ``boundary_tokens``."""
    plan = Promotion()
    for group in rule.table.groups:
        is_full = group.kind is Kind.FULL
        held: list[PageRef] = []
        for page in _wanted_pages(group, local_tokens, boundary_tokens):
            ref = prefix.ref(group.group_id, page)
            if index.knows(*ref):
                held.append(ref)
                continue
            # A full group's page is of no use without the one before it.
            leans = is_full and page > 0
            previous = prefix.block_hash(group.group_id, page - 1) if leans else None
            plan.missing.append(NewPage(*ref, previous))
        plan.held += held[-1:] if is_full else held
    return plan


def _wanted_pages(group: GroupSpec, local_tokens: int, boundary_tokens: int) -> range:
    """A full group is wanted from its start: host memory keeps no page without those before."""
    pages = needed_pages(group, local_tokens, boundary_tokens)
    start = 0 if group.kind is Kind.FULL else pages.start
    return range(start, pages.stop + proof_pages(group))


def _reach(
    group: GroupSpec,
    in_memory: Callable[[int, int], bool],
    pages: Callable[[int, int], bool],
    limit_tokens: int,
) -> int:
    """How many of the group's first pages are held without a hole."""
    stop = limit_tokens // group.span_tokens
    group_id = group.group_id
    page = bisect_left(range(stop), True, key=lambda page: not in_memory(group_id, page))
    while page < stop and pages(group_id, page):
        page += 1
    return page
