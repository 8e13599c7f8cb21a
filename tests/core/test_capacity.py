"""Capacity: contexts, ceilings and shared rows, on the numbers of the field cases."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmc_grouped.core.capacity import (
    ceiling_tokens,
    context_pages,
    largest_page_bytes,
    least_budget_bytes,
    shared_rows,
    starved_below_tokens,
)
from lmc_grouped.core.sizing import Sizer, solve
from tests.core.test_sizing import A08_BUDGET_BYTES, a08_table, retained
from tests.factories import full, recurrent, table_of, window


def test_a08_shared_rows_of_the_published_geometry_are_419():
    table = a08_table()
    context = context_pages(table, 65_536, 0)
    plan = shared_rows(context, A08_BUDGET_BYTES, largest_page_bytes(table.groups))
    assert (plan.rows, plan.row_bytes) == (419, 10_235_904)
    assert plan.used_bytes == 419 * 10_235_904
    assert plan.rows_per_context == 83 + 4
    assert plan.contexts == 4


def test_a09_windows_and_states_do_not_count_as_growing():
    table = table_of(full(0, 256), window(1, 1_024, 256), recurrent(2, 256))
    context = context_pages(table, 36_864, 0)
    assert context.pages_by_group == {0: 144, 1: 4, 2: 1}
    assert shared_rows(context, 4_000 * 64, 64).token_capacity == 989_637
    charged_as_growing = context_pages(
        table_of(*(full(group_id, 256) for group_id in range(3))), 36_864, 0
    )
    assert shared_rows(charged_as_growing, 4_000 * 64, 64).token_capacity == 341_333


def test_a09_nine_state_groups_are_charged_with_nine_rows():
    table = table_of(full(0, 528), *(recurrent(i, 528) for i in range(1, 10)))
    context = context_pages(table, 36_432, 0)
    assert sum(context.pages_by_group.values()) == 78
    assert shared_rows(context, 8_000 * 64, 64).token_capacity == 3_736_615


def test_the_ceiling_is_the_budget_over_the_bytes_of_one_context():
    context = context_pages(a08_table(), 65_536, 0)
    assert context.context_bytes == 83 * 10_235_904 + 3 * 9_633_792 + 802_816
    assert ceiling_tokens(context, A08_BUDGET_BYTES) == 320_118
    assert round(ceiling_tokens(context, A08_BUDGET_BYTES) / 65_536, 2) == 4.88


@pytest.mark.parametrize(
    ("reference", "context", "contexts"), [(65_536, 65_536, 4), (65_536, 16_384, 10)]
)
def test_pools_sized_for_one_length_hold_fewer_contexts_of_another(reference, context, contexts):
    table = a08_table()
    plan = solve(table, A08_BUDGET_BYTES, retention_tokens=0, reference_tokens=reference)
    assert context_pages(table, context, 0).contexts(plan.slots_by_group) == contexts


def test_a09_states_that_run_out_first_are_seen_at_the_lengths_where_they_do():
    table = a08_table()
    plan = solve(table, A08_BUDGET_BYTES, retention_tokens=0, reference_tokens=65_536)
    starved = starved_below_tokens(table, plan.slots_by_group, table.groups[1], 0, 65_536)
    # 10 states and 390 pages: one state per 39 pages.
    assert starved == 38 * 784
    assert starved_below_tokens(table, plan.slots_by_group, table.groups[0], 0, 65_536) == 0
    dense = solve(table, A08_BUDGET_BYTES)
    assert not any(
        starved_below_tokens(table, dense.slots_by_group, g, None, 65_536) for g in table.groups
    )


def test_a09_a_state_pool_too_small_for_the_fill_is_seen_at_its_length():
    # The report's shape: 565 states for 200 prompts of three checkpoints.
    table = table_of(full(0, 256), recurrent(1, 256))
    slots = {0: 200 * 39 * 3 // 2, 1: 565}
    assert starved_below_tokens(table, slots, table.groups[1], 4_096, 131_072) >= 10_000


def test_without_full_groups_nothing_runs_out_first():
    table = table_of(window(0, 64), recurrent(1))
    assert starved_below_tokens(table, {0: 4, 1: 1}, table.groups[1], 0, 640) == 0


def test_a_context_below_the_alignment_cannot_be_restored():
    table = table_of(full(0, 1648), full(1, 816), recurrent(2, 1648), hash_block=16)
    context = context_pages(table, 65_536, 0)  # the spans meet at 84,048
    assert not context.is_restorable
    assert context.contexts(dict.fromkeys((0, 1, 2), 10**6)) == 0
    assert ceiling_tokens(context, 2**40) == 0
    assert shared_rows(context, 2**40, 64).token_capacity == 0
    assert least_budget_bytes(Sizer(table, 0, 65_536), context) == 0


def test_the_least_budget_of_one_context_is_named_to_the_byte():
    table = a08_table()
    sizer, context = Sizer(table, 0, 65_536), context_pages(table, 65_536, 0)
    least = least_budget_bytes(sizer, context)
    assert least == 83 * 10_235_904 + 2 * (3 * 9_633_792 + 802_816)

    def contexts(budget: int) -> int:
        plan = solve(table, budget, retention_tokens=0, reference_tokens=65_536)
        return context.contexts(plan.slots_by_group)

    assert (contexts(least - 1), contexts(least)) == (0, 1)


@settings(max_examples=500)
@given(retained())
def test_pools_of_the_least_budget_hold_one_context_and_no_smaller_ones_do(case):
    table, _, retention, reference = case
    sizer, context = Sizer(table, retention, reference), context_pages(table, reference, retention)
    least = least_budget_bytes(sizer, context)
    if not context.is_restorable:
        assert least == 0
        return
    assert context.contexts(sizer.slots(sizer.largest_units(least))) >= 1
    assert context.contexts(sizer.slots(sizer.largest_units(least - 1))) == 0


@settings(max_examples=500)
@given(retained(), st.integers(1, 20))
def test_no_partition_holds_more_contexts_than_the_ceiling(case, factor):
    table, budget, retention, reference = case
    context = context_pages(table, reference, retention)
    ceiling = ceiling_tokens(context, budget * factor)
    sizer = Sizer(table, retention, reference)
    pools = sizer.slots(sizer.largest_units(budget * factor))
    assert context.contexts(pools) * reference <= ceiling
    rows = shared_rows(context, budget * factor, largest_page_bytes(table.groups))
    assert rows.contexts * reference <= rows.token_capacity <= ceiling
