"""Hit composition: numbers of the field cases, and a slow model that tries everything."""

from math import lcm

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from lmc_grouped.core.groups import GroupTable, Kind
from lmc_grouped.core.hits import Hit, PageProbe, longest_hit, needed_pages, serves
from tests.factories import A13_REPEATS, CountingProbe, full, probe_of, recurrent, table_of, window


def hit(table: GroupTable, pages, *, limit: int, local: int = 0) -> Hit:
    return longest_hit(table, probe_of(pages), local_tokens=local, limit_tokens=limit)


def boundary(table: GroupTable, pages, *, limit: int, local: int = 0) -> int:
    return hit(table, pages, limit=limit, local=local).boundary_tokens


def everything(group_id: int, page: int) -> bool:
    return True


@pytest.mark.parametrize(
    ("block", "prompt", "expected"),
    [(16, 32, 16), (16, 48, 32), (16, 31, 16), (16, 33, 32), (2112, 10_560, 8_448)],
)
def test_a12_a_prompt_that_ends_on_a_block_edge_hits_the_edge_below(block, prompt, expected):
    table = table_of(full(0, block), recurrent(1, block))
    found = longest_hit(table, everything, local_tokens=0, limit_tokens=prompt - 1)
    assert found.boundary_tokens == expected


def test_a15a_attention_further_than_states_ends_at_the_state():
    table = table_of(full(0, 1600), recurrent(1, 1600))
    assert boundary(table, {0: range(3), 1: range(2)}, limit=10_000) == 3_200


def test_a15b_states_further_than_attention_end_at_the_attention():
    table = table_of(full(0, 1600), recurrent(1, 1600))
    assert boundary(table, {0: range(1), 1: range(3)}, limit=10_000) == 1_600


def test_a15c_attention_alone_is_no_hit():
    table = table_of(full(0, 1600), recurrent(1, 1600))
    found = hit(table, {0: range(4)}, limit=10_000)
    assert found == Hit(boundary_tokens=0, attention_tokens=6_400)


def test_a15d_a_hit_beyond_the_local_one_needs_every_group_at_exactly_that_edge():
    block = 1024
    table = table_of(full(0, block), recurrent(1, block))
    local, host = 34_816, 49_152
    pages = {0: range(local // block, host // block), 1: [host // block - 1]}
    assert boundary(table, pages, limit=60_000, local=local) == host
    # The same with the state gone or one attention page gone: the local hit stays.
    assert boundary(table, pages | {1: []}, limit=60_000, local=local) == local
    pages[0] = range(34, 40)
    assert boundary(table, pages, limit=60_000, local=local) == local


def test_a15d_the_next_lower_common_edge_is_taken():
    table = table_of(full(0, 1024), recurrent(1, 1024))
    pages = {0: range(34, 48), 1: [39, 47]}
    pages[0] = range(34, 45)
    assert boundary(table, pages, limit=60_000, local=34_816) == 40 * 1024


def test_a24_the_scratch_ring_sets_the_grid_on_which_hits_end():
    groups = full(0, 32), window(1, 64, 32)
    with_large_ring = table_of(*groups, alignment=256, hash_block=32, scratch_ids=(2,))
    pages = {0: range(31), 1: range(31)}
    assert boundary(with_large_ring, pages, limit=999) == 768
    with_small_ring = table_of(*groups, alignment=32, hash_block=32, scratch_ids=(2,))
    assert boundary(with_small_ring, pages, limit=999) == 992


def test_a01_scratch_groups_never_lower_a_hit():
    table = table_of(full(0, 1600), recurrent(2, 1600), scratch_ids=(1, 3))
    assert boundary(table, {0: range(2), 2: range(2)}, limit=3_300) == 3_200


def test_a01_a_model_of_scratch_groups_only_hits_nothing():
    table = GroupTable(groups=(), alignment_tokens=8, hash_block_tokens=8)
    assert hit(table, {}, limit=1_000) == Hit(0, 0)


def test_a11e_two_attention_spans_share_the_coarser_grid():
    # 816 does not divide 1648, so the common grid is far beyond the prompt ...
    target, draft, states = full(0, 1648), full(1, 816), recurrent(2, 1648)
    table = table_of(target, draft, states, hash_block=16)
    assert table.alignment_tokens == 84_048
    assert boundary(table, {0: range(9), 1: range(9), 2: range(9)}, limit=8_000) == 0
    # ... and at that grid the prompt hits.
    assert longest_hit(table, everything, local_tokens=0, limit_tokens=84_100) == Hit(
        84_048, 84_048
    )


@pytest.mark.parametrize(
    ("block", "prompt", "expected"),
    A13_REPEATS,
)
def test_a13_a_drafter_proves_a_hit_with_one_page_more(block, prompt, expected):
    table = table_of(full(0, block, drafter=True), recurrent(1, block))
    found = longest_hit(table, everything, local_tokens=0, limit_tokens=prompt - 1)
    assert found.boundary_tokens == expected


def test_a13_a_drafter_of_small_blocks_holds_back_one_of_its_own_only():
    table = table_of(full(0, 64), recurrent(1, 64), full(2, 16, drafter=True), hash_block=16)
    found = longest_hit(table, everything, local_tokens=0, limit_tokens=95 - 1)
    assert found.boundary_tokens == 64


@pytest.mark.parametrize(
    ("shared", "expected"), [(300, 0), (620, 0), (950, 0), (970, 480), (1440, 960)]
)
def test_a13_a_shared_prefix_serves_one_block_less_than_it_covers(shared, expected):
    table = table_of(full(0, 480, drafter=True), recurrent(1, 480))
    pages = {0: range(shared // 480), 1: range(shared // 480)}
    assert boundary(table, pages, limit=5_000) == expected


def test_a14_without_a_drafter_the_last_page_is_not_held_back():
    table = table_of(full(0, 256), *(recurrent(i, 256) for i in (1, 2, 3)))
    pages = {0: range(390), **{i: [389] for i in (1, 2, 3)}}
    assert boundary(table, pages, limit=390 * 256 + 7) == 390 * 256


def test_a16_the_reach_of_attention_is_the_junction():
    table = table_of(full(0, 784), *(recurrent(i, 784) for i in (1, 2, 3, 4)))
    # The only states lie at the end of another, longer prompt.
    pages = {0: range(50)} | {group_id: [75] for group_id in (1, 2, 3, 4)}
    assert hit(table, pages, limit=60_000) == Hit(0, 39_200)


def test_a_window_needs_only_the_pages_behind_its_last_tokens():
    group = window(1, window_tokens=256, span=128)
    assert needed_pages(group, 0, 1_408) == range(9, 11)
    assert needed_pages(group, 1_280, 1_408) == range(10, 11)
    table = table_of(full(0, 128), group)
    assert boundary(table, {0: range(11), 1: [9, 10]}, limit=1_500) == 1_408
    # One page of the tail gone: the next boundary with a whole tail, here none.
    assert boundary(table, {0: range(11), 1: [10]}, limit=1_500) == 0


@pytest.mark.parametrize(
    ("window_tokens", "first_page"), [(1, 4), (2, 3), (17, 3), (18, 2), (33, 2), (34, 1)]
)
def test_a_window_reaches_back_window_minus_one_tokens(window_tokens, first_page):
    # A window of one token needs no earlier page at all.
    assert needed_pages(window(0, window_tokens), 0, 64) == range(first_page, 4)


def test_a_recurrent_group_needs_one_page_however_long_the_prefix():
    assert needed_pages(recurrent(0, 16), 0, 640) == range(39, 40)
    assert needed_pages(recurrent(0, 16), 320, 640) == range(39, 40)


def test_nothing_to_find_costs_one_probe_per_boundary_at_most():
    pages = 1_000
    table = table_of(full(0), recurrent(1))
    probe = CountingProbe(probe_of({}))
    longest_hit(table, probe, local_tokens=0, limit_tokens=16 * pages)
    assert probe.asked[1] <= pages
    assert probe.asked[0] <= 10


def test_attention_is_asked_only_below_the_states_that_exist():
    table = table_of(full(0), window(1, 64), recurrent(2))
    probe = CountingProbe(probe_of({0: range(20), 1: range(20), 2: [19]}))
    found = longest_hit(table, probe, local_tokens=0, limit_tokens=16_000)
    assert found == Hit(320, 320)
    assert probe.asked[2] <= 1_000 + 1
    assert probe.asked[1] <= 2 * 4
    # once for the hit, once for how far attention reaches; each halves what is left
    assert probe.asked[0] <= 5 + 10


def test_a_prefix_that_matches_costs_no_more_when_it_is_longer():
    table = table_of(full(0), recurrent(1))
    probe = CountingProbe(everything)
    longest_hit(table, probe, local_tokens=0, limit_tokens=16_000)
    assert probe.asked[0] <= 2 * 10
    assert probe.asked[1] <= 2


# A slow model: try every boundary from the top, and look at every page it needs.


def slow_proof_serves(table: GroupTable, has: PageProbe, local: int, limit: int, end: int) -> bool:
    for group in table.groups:
        span = group.span_tokens
        if group.kind is Kind.RECURRENT:
            tokens = range(end - span, end)
        elif group.kind is Kind.WINDOW:
            tokens = range(max(local, end - group.window_tokens + 1), end)
        else:
            tokens = range(local, end)
        pages = {token // span for token in tokens}
        if group.is_drafter and group.kind is not Kind.RECURRENT:
            if end + span > limit:
                return False
            pages.add(end // span)
        if not all(has(group.group_id, page) for page in pages):
            return False
    return True


def slow_longest_hit(table: GroupTable, has: PageProbe, local: int, limit: int) -> int:
    align = table.alignment_tokens
    for end in range(limit // align * align, local, -align):
        if slow_proof_serves(table, has, local, limit, end):
            return end
    return local


def slow_attention_reach(table: GroupTable, has: PageProbe, local: int, limit: int) -> int | None:
    groups = tuple(group for group in table.groups if group.kind is Kind.FULL)
    if not groups:
        return None
    attention = GroupTable(
        groups=groups,
        alignment_tokens=table.alignment_tokens,
        hash_block_tokens=table.hash_block_tokens,
    )
    return slow_longest_hit(attention, has, local, limit)


@st.composite
def lookups(draw):
    groups = []
    for group_id in range(draw(st.integers(1, 4))):
        span = draw(st.sampled_from([1, 2, 3, 4, 6]))
        kind = draw(st.sampled_from(["full", "window", "recurrent"]))
        drafter = draw(st.booleans())
        if kind == "full":
            groups.append(full(group_id, span, drafter=drafter))
        elif kind == "window":
            groups.append(
                replace(window(group_id, draw(st.integers(1, 15)), span), is_drafter=drafter)
            )
        else:
            groups.append(recurrent(group_id, span))
    grid = lcm(*(group.span_tokens for group in groups))
    table = table_of(*groups, alignment=grid * draw(st.integers(1, 2)), hash_block=1)
    align = table.alignment_tokens
    limit = draw(st.integers(0, 8 * align))
    # Engines that hash below the block may hold a prefix that ends inside a page.
    local = draw(st.integers(0, limit))
    pages = {}
    for group in groups:
        count = limit // group.span_tokens + 2
        # Mostly there: a hit needs many pages at once.
        missing = draw(st.sets(st.integers(0, count), max_size=4))
        nothing = draw(st.integers(0, 9)) == 0
        held = set() if nothing else set(range(count)) - missing
        if group.kind is Kind.FULL:  # the index holds no page without the one before it
            held = set(range(min(missing, default=count)))
        pages[group.group_id] = held
    return table, pages, local, limit


@given(lookups())
def test_the_hit_is_the_one_that_trying_every_boundary_finds(case):
    table, pages, local, limit = case
    has = probe_of(pages)
    found = longest_hit(table, has, local_tokens=local, limit_tokens=limit)
    assert found.boundary_tokens == slow_longest_hit(table, has, local, limit)
    assert local <= found.boundary_tokens <= max(limit, local)
    assert serves(table, has, local, found.boundary_tokens) or found.boundary_tokens == local


@given(lookups())
def test_the_reach_of_attention_is_what_its_groups_alone_would_hit(case):
    table, pages, local, limit = case
    has = probe_of(pages)
    found = longest_hit(table, has, local_tokens=local, limit_tokens=limit)
    reach = slow_attention_reach(table, has, local, limit)
    assert found.attention_tokens == (found.boundary_tokens if reach is None else reach)
