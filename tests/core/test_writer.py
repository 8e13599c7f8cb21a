"""Writing: what a request holds of what it has stored and found stored."""

from itertools import count

from lmc_grouped.core.index import PageIndex
from lmc_grouped.core.pool import NewPage
from lmc_grouped.core.prefix import Prefix
from lmc_grouped.core.rule import RetentionRule
from lmc_grouped.core.writer import PrefixWriter
from tests.factories import block_hash, full, table_of, window

PAGES = range(6)
"""Of a prompt of 96 tokens."""


def test_a_prefix_that_is_known_further_than_it_fits_is_held_as_far_as_it_is_planned():
    table = table_of(full(0), window(1, 33))
    index = PageIndex({0: 12, 1: 4})
    index.reserve(1, [NewPage(0, block_hash(n), block_hash(n - 1) if n else None) for n in PAGES])
    index.commit(1)
    prefix = Prefix(table, [block_hash(n) for n in PAGES])
    writer = PrefixWriter(index, RetentionRule(table, None), prefix, "writer", 97)
    store, _ = writer.plan_pages([[1] * 6, [1] * 6], 96, count(2).__next__)
    assert store is not None
    assert [(page.group_id, page.page_index) for page in store.pages] == [(1, n) for n in range(4)]
    assert index.room_slots(0) == 12 - 4, "the pages up to 64 tokens are held, those behind not"
    assert index.room_slots(1) == 0
    assert index.reserve(3, [NewPage(0, block_hash(100 + n)) for n in range(8)]) is not None
    assert [n for n in PAGES if index.knows(0, block_hash(n))] == [0, 1, 2, 3]
    writer.finish()
    assert index.leased_pages("writer") == 0
