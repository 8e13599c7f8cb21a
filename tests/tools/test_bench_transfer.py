"""The transfer benchmark: its sides copy the same bytes, its report pairs rounds."""

import pytest

from lmc_grouped.tools.bench_transfer.command import main
from lmc_grouped.tools.bench_transfer.memory import Ids, Memory, Order
from lmc_grouped.tools.bench_transfer.report import Sample, format_samples
from lmc_grouped.tools.bench_transfer.sides import SIDES, Side

PAGE_BYTES = 65_536
MIB = 2**20


@pytest.mark.parametrize("order", Order)
@pytest.mark.parametrize("side", Side)
def test_a_side_brings_every_byte_back(side, order):
    memory = Memory(PAGE_BYTES, 2 * MIB)
    store, load = SIDES[side](memory, Ids.of(order, memory.pages))
    store()
    memory.wipe_cache()
    with pytest.raises(RuntimeError, match="bytes came back wrong"):
        memory.check(side)
    load()
    memory.check(side)


def test_an_operation_names_every_page_once():
    for order in Order:
        ids = Ids.of(order, 20)
        assert sorted(ids.block_ids) == sorted(ids.slots) == list(range(20))
    assert Ids.of(Order.DESCENDING, 3) == Ids([2, 1, 0], [0, 1, 2])
    assert Ids.of(Order.RANDOM, 20).block_ids != Ids.of(Order.RANDOM, 20).slots


def test_a_page_that_is_not_cut_into_heads_is_refused():
    with pytest.raises(ValueError, match="40000 bytes; allowed are multiples of 32768"):
        Memory(40_000, MIB)


def test_the_command_prints_rates_ratios_and_where_the_time_goes(capsys):
    few = ["--rounds", "2", "--mib", "2", "--page-bytes", str(PAGE_BYTES)]
    assert main([*few, "--without", "lmcache_hnd"]) == 0
    out = capsys.readouterr().out
    assert "32 pages of 65,536 bytes" in out
    assert out.count("lmc_grouped / LMCache torch operations, NHD") == len(Order)
    assert "HND" not in out
    assert "per page out, random" in out


def test_without_our_side_the_parts_of_a_page_are_printed_alone(capsys):
    few = ["--rounds", "1", "--mib", "1", "--page-bytes", str(PAGE_BYTES)]
    assert main([*few, *(f"--without={s.name.lower()}" for s in Side if s is not Side.WHOLE)]) == 0
    assert "per page: ids" in capsys.readouterr().out


def test_the_command_compares_sizes_of_runs(capsys):
    assert main(["--runs", "--rounds", "1", "--mib", "1"]) == 0
    out = capsys.readouterr().out
    assert "strided / direct" in out
    assert "32,768" in out


def test_ratios_are_paired_within_a_round():
    samples = [
        Sample(side, Order.RANDOM, number, rate, 1.0)
        for side, rates in ((Side.NAIVE, (10.0, 1.0)), (Side.OURS, (5.0, 2.0)))
        for number, rate in enumerate(rates)
    ]
    assert "1.25 (0.50..2.00)" in format_samples(samples, 2, PAGE_BYTES)
