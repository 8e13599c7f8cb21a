"""Reading: what a hit holds, and what it makes useful again."""

from lmc_grouped.core.groups import GroupTable
from lmc_grouped.core.index import PageIndex
from lmc_grouped.core.pool import NewPage
from lmc_grouped.core.prefix import Prefix
from lmc_grouped.core.reader import find_hit, has_junction, hold_hit
from lmc_grouped.core.rule import RetentionRule
from tests.factories import block_hash, full, recurrent, table_of, window


def stored(table: GroupTable, pages: dict[int, list[int]]) -> tuple[PageIndex, Prefix]:
    """An index that holds those pages of a prompt of 160 tokens, in no family."""
    index = PageIndex(dict.fromkeys(table.group_ids, 12))
    new = [
        NewPage(g, block_hash(page), block_hash(page - 1) if g == 0 and page else None)
        for g, held in pages.items()
        for page in held
    ]
    index.reserve(1, new)
    index.commit(1)
    return index, Prefix(table, [block_hash(number) for number in range(10)])


def test_a_hit_holds_all_it_will_read_until_it_is_released():
    table = table_of(full(0), window(1, 33), recurrent(2))
    index, prefix = stored(table, {0: list(range(10)), 1: [6, 7, 8], 2: [8]})
    rule = RetentionRule(table, 0)
    hit = find_hit(index, rule, prefix, local_tokens=0, limit_tokens=159)
    assert hit.boundary_tokens == 144
    hold_hit(index, rule, prefix, "reader", local_tokens=0, boundary_tokens=144)
    assert [index.room_slots(group_id) for group_id in (0, 1, 2)] == [12 - 9, 12 - 2, 12 - 1]
    index.release("reader")
    assert [index.room_slots(group_id) for group_id in (0, 1, 2)] == [12, 12, 12]


def test_pages_that_a_hit_has_read_are_useful_from_then_on():
    table = table_of(full(0), window(1, 33), recurrent(2))
    index, prefix = stored(table, {0: list(range(10)), 1: [6, 7, 8], 2: [8]})
    assert [pool.useless_slots for pool in index.residency().values()] == [10, 3, 1]
    rule = RetentionRule(table, 0)
    hold_hit(index, rule, prefix, "reader", local_tokens=0, boundary_tokens=144)
    index.release("reader")
    # The last attention page, and a window page before the tail, serve nothing.
    assert [pool.useless_slots for pool in index.residency().values()] == [1, 1, 0]


def test_what_the_engine_holds_itself_is_not_held_twice():
    table = table_of(full(0), window(1, 33))
    index, prefix = stored(table, {0: list(range(10)), 1: [6, 7, 8]})
    hold_hit(index, RetentionRule(table, 0), prefix, "r", local_tokens=128, boundary_tokens=144)
    assert index.leased_pages("r") == 1 + 1


def test_a_junction_is_where_attention_reaches_further_than_the_rest():
    table = table_of(full(0), recurrent(2))
    index, prefix = stored(table, {0: list(range(5)), 2: []})
    hit = find_hit(index, RetentionRule(table, 0), prefix, local_tokens=0, limit_tokens=159)
    assert has_junction(RetentionRule(table, 0), hit)
    assert has_junction(RetentionRule(table, None), hit), "states exist only where steps end"
    windows = table_of(full(0), window(1, 33))
    assert not has_junction(RetentionRule(windows, None), hit)
    assert has_junction(RetentionRule(windows, 0), hit)
