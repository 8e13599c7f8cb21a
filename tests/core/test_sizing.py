"""Sizing: a budget becomes slots that cover the same tokens in every group."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmc_grouped.core.groups import GroupTable
from lmc_grouped.core.sizing import BudgetError, PoolPlan, solve
from tests.factories import full, recurrent, table_of, window

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


def test_a08_two_contexts_of_48_blocks_fit_in_every_group():
    plan = solve(a08_table(), A08_BUDGET_BYTES)
    assert min(plan.slots_by_group.values()) >= 2 * 48


def test_a10_the_heavier_rank_gets_fewer_slots_from_the_same_budget():
    assert solve(table_of(full(0, page_bytes=100)), 13_000).slots_by_group == {0: 130}
    assert solve(table_of(full(0, page_bytes=130)), 13_000).slots_by_group == {0: 100}


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


def unit_tokens(table: GroupTable) -> int:
    full_spans = [g.span_tokens for g in table.groups if g.kind == "full"]
    return max(full_spans or [g.span_tokens for g in table.groups])


def slow_bytes(table: GroupTable, units: int) -> int:
    """Bytes when every group covers ``units`` units."""
    tokens = units * unit_tokens(table)
    return sum(g.page_bytes * len(range(0, tokens, g.span_tokens)) for g in table.groups)
