"""Cost of the index: `python -m lmc_grouped.tools.bench_index [--pages 1000000]`.

Stores prompts of 128K tokens in 256-token pages until the index holds the
asked number of pages, as the scheduler half does it: eight pages an operation,
leased, joined, committed. Then the same with every slot taken, the same with
100,000 pages pinned, and lookups. Medians over prompts.
"""

import argparse
import hashlib
import sys
import time
import tracemalloc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from lmc_grouped.core.groups import GroupSpec, GroupTable, Kind
from lmc_grouped.core.hits import longest_hit
from lmc_grouped.core.index import PageIndex
from lmc_grouped.core.pool import NewPage
from lmc_grouped.core.prefix import Prefix
from lmc_grouped.tools.tables import Align, format_table

SPAN_TOKENS = 256
PROMPT_PAGES = 512
"""128K tokens."""
PAGES_PER_OPERATION = 8
PINNED_PAGES = 100_000
ROUNDS = 20
"""Prompts behind each median."""

Prompt = list[bytes]


def table_of(groups: int) -> GroupTable:
    """``groups`` full-attention groups: the most pages that a prompt can have."""
    return GroupTable(
        groups=tuple(
            GroupSpec(group_id=i, kind=Kind.FULL, span_tokens=SPAN_TOKENS, page_bytes=1)
            for i in range(groups)
        ),
        alignment_tokens=SPAN_TOKENS,
        hash_block_tokens=SPAN_TOKENS,
    )


def prompt_of(number: int) -> Prompt:
    """Block hashes of a prompt that no other number has."""
    return [hashlib.sha256(b"%d %d" % (number, page)).digest() for page in range(PROMPT_PAGES)]


@dataclass(slots=True)
class Bench:
    """An index being filled."""

    table: GroupTable
    index: PageIndex
    operations: int = 0

    @classmethod
    def start(cls, table: GroupTable, prompts: int) -> "Bench":
        """An index with room for that many prompts."""
        return cls(table, PageIndex(dict.fromkeys(table.group_ids, prompts * PROMPT_PAGES)))

    def store(self, prompt: Prompt, owner: str = "writer") -> None:
        """Reserve, lease, join and commit all pages of a prompt, then let them go."""
        index, groups = self.index, self.table.group_ids
        for first in range(0, PROMPT_PAGES, PAGES_PER_OPERATION):
            self.operations += 1
            part = range(first, first + PAGES_PER_OPERATION)
            pages = [
                NewPage(group_id, prompt[page], prompt[page - 1] if page else None)
                for page in part
                for group_id in groups
            ]
            assert index.reserve(self.operations, pages) is not None
            index.lease(owner, [(group_id, prompt[part[-1]]) for group_id in groups])
            for page in part:
                index.join([(group_id, [prompt[page]]) for group_id in groups])
            index.commit(self.operations)
        if owner == "writer":
            index.release(owner)

    def look_up(self, prompt: Prompt) -> int:
        """Tokens of the prompt that hit, one page before its end."""
        prefix = Prefix(self.table, prompt)
        limit = PROMPT_PAGES * SPAN_TOKENS - 1
        probe = prefix.probe(self.index.has, limit)
        return longest_hit(self.table, probe, local_tokens=0, limit_tokens=limit).boundary_tokens


def microseconds(action: Callable[[Prompt], object], prompts: Sequence[Prompt]) -> float:
    """Median time of the action per prompt."""
    times = []
    for prompt in prompts:
        start = time.perf_counter()
        action(prompt)
        times.append(time.perf_counter() - start)
    return median(times) * 1e6


def measure(groups: int, pages: int) -> list[tuple[str, str, str]]:
    """Rows of the table for a model of that many groups."""
    table = table_of(groups)
    count = max(ROUNDS, pages // (PROMPT_PAGES * groups))
    per_prompt = PROMPT_PAGES * groups
    prompts = [prompt_of(number) for number in range(count)]
    more = [prompt_of(-1 - number) for number in range(3 * ROUNDS)]
    bench = Bench.start(table, count)
    filling = microseconds(bench.store, prompts) / per_prompt
    full = microseconds(bench.store, more[:ROUNDS]) / per_prompt
    hit = microseconds(bench.look_up, prompts[-ROUNDS:])
    assert bench.look_up(prompts[-1]) == (PROMPT_PAGES - 1) * SPAN_TOKENS
    miss = microseconds(bench.look_up, more[ROUNDS : 2 * ROUNDS])
    pinned = min(PINNED_PAGES, count * per_prompt // 2) // per_prompt
    for number, prompt in enumerate(prompts[-pinned:]):
        bench.index.lease(f"pin {number}", [(g, prompt[-1]) for g in table.group_ids])
    full_pinned = microseconds(bench.store, more[2 * ROUNDS :]) / per_prompt
    hit_pinned = microseconds(bench.look_up, prompts[-ROUNDS:])
    name = f"{groups} group{'s' if groups > 1 else ''}"
    share = f"{pinned * per_prompt:,} pinned"
    return [
        (name, "store a page, slots free", f"{filling:.2f} us"),
        (name, "store a page, another leaves", f"{full:.2f} us"),
        (name, f"store a page, another leaves, {share}", f"{full_pinned:.2f} us"),
        (name, "look up 128K tokens, hit", f"{hit:.1f} us"),
        (name, f"look up 128K tokens, hit, {share}", f"{hit_pinned:.1f} us"),
        (name, "look up 128K tokens, miss", f"{miss:.1f} us"),
        (name, "metadata per page, without the hash", f"{bytes_per_page(table, count):.0f} B"),
    ]


def bytes_per_page(table: GroupTable, count: int) -> float:
    """Memory that the index takes for a page; the request's own hashes are not counted."""
    prompts = [prompt_of(number) for number in range(count)]
    tracemalloc.start()
    bench = Bench.start(table, count)
    for prompt in prompts:
        bench.store(prompt)
    size_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return size_bytes / (count * PROMPT_PAGES * len(table.groups))


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pages", type=int, default=1_000_000, help="pages; default %(default)s")
    pages = parser.parse_args(argv).pages
    if pages < ROUNDS * PROMPT_PAGES:
        parser.error(f"--pages is {pages}; give at least {ROUNDS * PROMPT_PAGES}")
    rows = [row for groups in (1, 6) for row in measure(groups, pages)]
    print(f"index of {pages:,} pages, prompts of {PROMPT_PAGES} pages of {SPAN_TOKENS} tokens\n")
    print(format_table(("model", "what", "cost"), rows, (Align.LEFT, Align.LEFT, Align.RIGHT)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
