"""The ways to cut a budget."""

import pytest

from lmc_grouped.core.groups import GroupTable
from lmc_grouped.core.partition import cut
from lmc_grouped.core.pools import Partition
from lmc_grouped.core.sizing import BudgetError, solve
from tests.core.test_sizing import A08_BUDGET_BYTES, a08_table
from tests.factories import full, recurrent, table_of

SIZED = {"retention_tokens": 0, "reference_tokens": 65_536}


def test_static_pools_are_those_of_the_solve():
    solved = solve(a08_table(), A08_BUDGET_BYTES, **SIZED)
    assert cut(a08_table(), A08_BUDGET_BYTES, partition=Partition.STATIC, **SIZED) == solved
    assert solved.partition is Partition.STATIC


def test_a_budget_below_what_one_request_keeps_is_cut_into_static_pools():
    solved = solve(a08_table(), A08_BUDGET_BYTES // 8, **SIZED)
    plan = cut(a08_table(), A08_BUDGET_BYTES // 8, partition=Partition.AUTO, **SIZED)
    assert plan == solved
    assert plan.partition is Partition.STATIC


def test_a08_shared_rows_give_every_group_all_419_rows():
    plan = cut(a08_table(), A08_BUDGET_BYTES, partition=Partition.OFF, **SIZED)
    assert plan.slots_by_group == dict.fromkeys((0, 2, 3, 4, 5), 419)
    assert plan.row_bytes == 10_235_904
    assert plan.used_bytes == 419 * 10_235_904 <= A08_BUDGET_BYTES


def test_a_budget_below_one_row_says_how_much_one_takes():
    table = table_of(full(0, page_bytes=2**20), recurrent(1, page_bytes=64))
    with pytest.raises(BudgetError, match=r"no row of 1048576 bytes.*at least 0.000977 GB"):
        cut(table, 1_000, partition=Partition.OFF, **SIZED)


def test_a_rank_without_layers_sets_no_limit_to_the_rows():
    plan = cut(table_of(full(0, page_bytes=0)), 1_000, partition=Partition.OFF, **SIZED)
    assert (plan.slots_by_group, plan.used_bytes) == ({0: 1_000}, 0)


def test_a01_a_model_without_groups_gets_no_pools_in_any_partition():
    nothing = GroupTable(groups=(), alignment_tokens=8, hash_block_tokens=8)
    for partition in Partition:
        assert cut(nothing, 1_000, partition=partition, **SIZED).slots_by_group == {}
