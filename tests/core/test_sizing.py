"""Sizing: a budget becomes slots that cover the same tokens in every group."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmc_grouped.core.groups import GroupTable, GroupTableError, Kind
from lmc_grouped.core.index import PageIndex
from lmc_grouped.core.pool import NewPage
from lmc_grouped.core.pools import PoolPlan
from lmc_grouped.core.retention import RetentionError, context_count, tail_pages
from lmc_grouped.core.sizing import BudgetError, Sizer, solve
from tests.factories import block_hash, full, recurrent, table_of, window

A08_BUDGET_BYTES = 4_294_967_296


def a08_table() -> GroupTable:
    """The published geometry: one token group, a ring, three equal state groups, a small one."""
    state_bytes = 12 * 802_816
    return table_of(
        full(0, 784, 12 * 802_816 + 12 * 50_176),
        *(recurrent(group_id, 784, state_bytes) for group_id in (2, 3, 4)),
        recurrent(5, 784, 802_816),
        scratch_ids=(1,),
    )


def test_a08_a_dense_partition_of_the_published_geometry_has_107_slots_each():
    plan = solve(a08_table(), A08_BUDGET_BYTES)
    assert plan.slots_by_group == dict.fromkeys((0, 2, 3, 4, 5), 107)
    assert plan.token_capacity == 107 * 784
    assert plan.used_bytes <= A08_BUDGET_BYTES
    unit_bytes = sum(group.page_bytes for group in a08_table().groups)
    assert plan.used_bytes + unit_bytes > A08_BUDGET_BYTES


def test_a07_eight_groups_of_one_page_size_share_the_budget_not_divide_it():
    slots = solve(table_of(*(full(i, 16, 100) for i in range(8))), 16 * 100).slots_by_group
    index = PageIndex(slots)
    pages = [(group_id, block_hash(n)) for n in range(2) for group_id in range(8)]
    assert index.reserve(1, [NewPage(*page) for page in pages]) is not None
    index.commit(1)
    assert all(index.has(*page) for page in pages)
    assert index.reserve(2, [NewPage(3, block_hash(2))]) is not None
    assert sum(not index.has(*page) for page in pages) == 1


@pytest.mark.parametrize(
    ("retention", "reference", "token_slots", "state_slots"),
    [
        (None, 65_536, 107, 107),
        (6_272, 65_536, 280, 48),
        (0, 65_536, 390, 10),
        (0, 16_384, 326, 32),
    ],
)
def test_a08_state_pools_follow_what_retention_keeps(
    retention, reference, token_slots, state_slots
):
    table = a08_table()
    plan = solve(table, A08_BUDGET_BYTES, retention_tokens=retention, reference_tokens=reference)
    assert plan.slots_by_group == {0: token_slots} | dict.fromkeys((2, 3, 4, 5), state_slots)
    assert plan.used_bytes <= A08_BUDGET_BYTES
    sizer = Sizer(table, retention, reference)
    assert sizer.used_bytes(token_slots) == plan.used_bytes
    assert sizer.used_bytes(token_slots + 1) > A08_BUDGET_BYTES


@pytest.mark.parametrize("reference", [0, -1])
def test_a08_a_reference_that_is_not_positive_is_refused_by_name(reference):
    with pytest.raises(ValueError, match=f"reference_tokens is {reference}"):
        solve(a08_table(), A08_BUDGET_BYTES, retention_tokens=0, reference_tokens=reference)


def test_sizing_by_retention_wants_a_reference_length():
    with pytest.raises(ValueError, match="needs reference_tokens"):
        solve(a08_table(), A08_BUDGET_BYTES, retention_tokens=0)


def test_an_interval_that_misses_the_boundaries_is_refused():
    with pytest.raises(RetentionError, match="multiple of 784"):
        solve(a08_table(), A08_BUDGET_BYTES, retention_tokens=1_000, reference_tokens=65_536)


def test_a08_two_contexts_of_48_blocks_fit_in_every_group():
    plan = solve(a08_table(), A08_BUDGET_BYTES)
    assert min(plan.slots_by_group.values()) >= 2 * 48


def test_a10_the_heavier_rank_gets_fewer_slots_from_the_same_budget():
    assert solve(table_of(full(0, page_bytes=100)), 13_000).slots_by_group == {0: 130}
    assert solve(table_of(full(0, page_bytes=130)), 13_000).slots_by_group == {0: 100}


def test_a10_one_rank_is_the_smallest_in_every_group_so_that_the_minimum_is_its_plan():
    ranks = [
        table_of(full(0, page_bytes=token_bytes), recurrent(1, page_bytes=state_bytes))
        for token_bytes, state_bytes in ((100, 10), (50, 900), (0, 0))
    ]
    plans = [solve(rank, 20_000, retention_tokens=0, reference_tokens=160) for rank in ranks]
    fewest = min(plans, key=lambda plan: plan.token_capacity)
    for group_id in (0, 1):
        slots = [plan.slots_by_group[group_id] for plan in plans]
        assert min(slots) == fewest.slots_by_group[group_id]


def test_a09_the_fill_of_three_checkpoints_for_each_of_200_prompts_finds_a_slot_each():
    table = table_of(full(0, 256, 65_536), recurrent(1, 256, 1_000_000))
    prompt, interval = 10_000, 4_096
    assert context_count(table.groups[1], table, prompt, interval) == 3
    budget = 200 * 40 * 65_536 + 200 * 4 * 1_000_000
    plan = solve(table, budget, retention_tokens=interval, reference_tokens=prompt)
    assert plan.slots_by_group[0] >= 200 * 39
    assert plan.slots_by_group[1] >= 600


def test_a09_pools_never_add_up_to_more_than_the_budget():
    table = table_of(full(0, page_bytes=1_000), window(1, 64, page_bytes=1_000))
    plan = solve(table, 64_000)
    assert plan.slots_by_group == {0: 32, 1: 32}
    assert plan.used_bytes == 64_000


def test_a_group_whose_block_covers_half_the_tokens_gets_twice_the_slots():
    table = table_of(full(0, 1664, 100), full(1, 832, 100), recurrent(2, 1664, 100))
    plan = solve(table, 4_000)
    assert plan.slots_by_group == {0: 10, 1: 20, 2: 10}
    assert plan.token_capacity == 16_640


def test_spans_that_do_not_divide_each_other_are_rounded_up_for_whole_coverage():
    plan = solve(table_of(full(0, 48, 10), full(1, 32, 10), hash_block=16), 130)
    # Five units of 48 tokens: 240 tokens are 7.5 pages of 32.
    assert plan.slots_by_group == {0: 5, 1: 8}


def test_a_window_whose_block_is_larger_does_not_set_the_unit():
    plan = solve(table_of(full(0, 16, 10), window(1, 64, 64, 10)), 100)
    assert plan.token_capacity % 16 == 0
    assert plan.slots_by_group[1] * 64 >= plan.token_capacity


def test_a_model_without_full_attention_is_sized_by_its_largest_span():
    plan = solve(table_of(window(0, 64, 16, 10), recurrent(1, 32, 10)), 100)
    assert plan.slots_by_group == {0: 6, 1: 3}


def test_a_budget_below_one_unit_says_how_much_would_do():
    table = table_of(full(0, 32, 2**20), recurrent(1, 32, 2**20))
    with pytest.raises(BudgetError, match=r"1000 bytes per worker holds less than 32 tokens") as e:
        solve(table, 1_000)
    assert "group 0: 1048576, group 1: 1048576" in str(e.value)
    assert "max_local_cpu_size to at least 0.001954 GB" in str(e.value)


@given(st.integers(1, 2**40), st.integers(1, 2**33))
def test_the_budget_that_the_message_names_is_enough(first_bytes, second_bytes):
    table = table_of(full(0, 32, first_bytes), recurrent(1, 32, second_bytes))
    with pytest.raises(BudgetError) as e:
        solve(table, 1)
    named = float(str(e.value).rpartition("at least ")[2].removesuffix(" GB"))
    assert solve(table, int(named * 2**30)).token_capacity >= 32


def test_a01_a_model_without_groups_to_store_gets_no_pools():
    nothing = GroupTable(groups=(), alignment_tokens=8, hash_block_tokens=8)
    assert solve(nothing, 1_000) == PoolPlan({}, 0, 1_000, 0)


def test_a_rank_without_layers_of_a_group_gets_slots_at_no_cost():
    plan = solve(table_of(full(0, page_bytes=100), recurrent(1, page_bytes=0)), 1_000)
    assert plan.slots_by_group == {0: 10, 1: 10}


def test_a_drafter_with_half_the_span_gets_twice_the_slots_under_retention_too():
    page = 6_389_760
    table = table_of(
        full(0, 1664, page), recurrent(1, 1664, page), full(4, 832, page // 4, drafter=True)
    )
    plan = solve(table, 2**32, retention_tokens=0, reference_tokens=65_536)
    assert plan.slots_by_group[4] == 2 * plan.slots_by_group[0]
    assert plan.slots_by_group[1] < plan.slots_by_group[0] / 10


def test_a_window_pool_holds_one_tail_and_one_junction_for_each_request():
    # Four pages of 16 tokens cover the 63 tokens before a boundary.
    table = table_of(full(0, 16, 100), window(1, 64, 16, 10))
    plan = solve(table, 100 * 100 + 10 * 8 * 2, retention_tokens=0, reference_tokens=800)
    assert plan.slots_by_group == {0: 100, 1: 2 * (4 + 4)}


def test_short_requests_get_no_more_slots_than_dense_pools_have():
    table = table_of(full(0, 16, 100), window(1, 64, 16, 10), recurrent(2, 16, 10))
    plan = solve(table, 10_000, retention_tokens=0, reference_tokens=16)
    assert set(plan.slots_by_group.values()) == {plan.slots_by_group[0]}


def test_recurrent_groups_that_cannot_be_reconciled_are_both_named():
    table = table_of(
        full(0, 16), recurrent(1, 784, 500), recurrent(3, 800, 700), alignment=39_200, hash_block=16
    )
    with pytest.raises(GroupTableError) as e:
        solve(table, 2**30, retention_tokens=0, reference_tokens=65_536)
    assert "1 (span 784 tokens, page 500 bytes) and 3 (span 800 tokens, page 700 bytes)" in str(
        e.value
    )


def test_recurrent_groups_with_nested_spans_are_each_sized_from_their_own():
    table = table_of(full(0, 64, 100), recurrent(1, 64, 10), recurrent(2, 32, 10), hash_block=32)
    plan = solve(table, 20_000, retention_tokens=128, reference_tokens=640)
    # Five states at the interval (the last is one point), one at the other point, a junction.
    assert Sizer(table, 128, 640).slots(10) == {0: 10, 1: 7, 2: 7}
    assert plan.slots_by_group[1] == plan.slots_by_group[2]


def test_the_solve_takes_no_scan():
    table = table_of(full(0, 16, 1), window(1, 1_024, 16, 1), recurrent(2, 16, 1))
    started = time.perf_counter()
    for _ in range(100):
        solve(table, 2**50, retention_tokens=0, reference_tokens=2**20)
    assert (time.perf_counter() - started) / 100 < 0.02


@st.composite
def geometries(draw):
    kinds = draw(st.lists(st.sampled_from([full, recurrent]), min_size=1, max_size=5))
    spans = [16, 32, 48, 64, 784]
    return table_of(
        *(
            kind(i, draw(st.sampled_from(spans)), draw(st.integers(1, 5_000)))
            for i, kind in enumerate(kinds)
        ),
        hash_block=16,
    )


@given(geometries(), st.integers(1, 1_000_000))
def test_one_unit_more_never_fits(table, budget):
    try:
        plan = solve(table, budget)
    except BudgetError:
        assert slow_bytes(table, 1) > budget
        return
    unit = unit_tokens(table)
    units = plan.token_capacity // unit
    assert slow_bytes(table, units) == plan.used_bytes <= budget
    assert slow_bytes(table, units + 1) > budget
    assert plan == PoolPlan(plan.slots_by_group, plan.used_bytes, budget, units * unit)
    for group in table.groups:
        covered = plan.slots_by_group[group.group_id] * group.span_tokens
        assert plan.token_capacity <= covered < plan.token_capacity + group.span_tokens


@st.composite
def retained(draw):
    """A table, a budget, an interval and a reference length."""
    groups = []
    for group_id in range(draw(st.integers(1, 5))):
        kind = draw(st.sampled_from([full, recurrent, window]))
        span = draw(st.sampled_from([16, 32, 64, 128] if kind is recurrent else [16, 32, 48, 64]))
        page = draw(st.integers(1, 5_000))
        if kind is window:
            groups.append(window(group_id, draw(st.integers(1, 300)), span, page))
        else:
            groups.append(kind(group_id, span, page))
    table = table_of(*groups, hash_block=16)
    interval = draw(st.sampled_from([None, 0, 1, 3]))
    retention = None if interval is None else interval * table.alignment_tokens
    return table, draw(st.integers(1, 10**7)), retention, draw(st.integers(1, 5_000))


@settings(max_examples=500)
@given(retained())
def test_one_unit_more_never_fits_under_any_retention(case):
    table, budget, retention, reference = case
    sizer = Sizer(table, retention, reference)
    units = sizer.largest_units(budget)
    assert sizer.used_bytes(units + 1) > budget
    if units == 0:
        return
    plan = solve(table, budget, retention_tokens=retention, reference_tokens=reference)
    assert plan.used_bytes == sizer.used_bytes(units) <= budget
    assert plan.used_bytes == sum(
        g.page_bytes * plan.slots_by_group[g.group_id] for g in table.groups
    )


@settings(max_examples=500)
@given(retained(), st.integers(1, 3_000))
def test_full_groups_cover_the_same_tokens_and_the_others_stay_below_dense(case, units):
    table, _, retention, reference = case
    sizer = Sizer(table, retention, reference)
    slots, dense = sizer.slots(units), Sizer(table).slots(units)
    tokens = units * sizer.unit_tokens
    requests = -(-units // -(-reference // sizer.unit_tokens))
    for group in table.groups:
        mine = slots[group.group_id]
        assert mine <= dense[group.group_id]
        assert sizer.tokens_covered(sizer.slots(units))[group.group_id] >= tokens
        if group.kind is Kind.FULL or retention is None:
            assert tokens <= mine * group.span_tokens < tokens + group.span_tokens
        elif mine < dense[group.group_id]:
            kept = context_count(group, table, reference, retention)
            assert mine >= requests * kept
            assert mine >= requests * (kept and tail_pages(group))


def unit_tokens(table: GroupTable) -> int:
    full_spans = [g.span_tokens for g in table.groups if g.kind == "full"]
    return max(full_spans or [g.span_tokens for g in table.groups])


def slow_bytes(table: GroupTable, units: int) -> int:
    """Bytes when every group covers ``units`` units."""
    tokens = units * unit_tokens(table)
    return sum(g.page_bytes * len(range(0, tokens, g.span_tokens)) for g in table.groups)
