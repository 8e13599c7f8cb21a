"""The disk benchmark: its sides move the same bytes, its report pairs rounds."""

import pytest

from lmc_grouped.host.disk.checksum import CRC32_LIBRARY
from lmc_grouped.tools.bench_disk.command import main
from lmc_grouped.tools.bench_disk.report import Sample, format_samples
from lmc_grouped.tools.bench_disk.sides import SIDES, Mode, Pages, Side, order


@pytest.mark.parametrize("mode", Mode)
@pytest.mark.parametrize("side", [Side.PLAIN, Side.OURS])
def test_a_side_brings_every_page_back(tmp_path, side, mode):
    pages = Pages(3, 8_192)
    pages.wipe()
    with pytest.raises(RuntimeError, match="page 0 came back with other bytes"):
        pages.check()
    with SIDES[side](tmp_path, mode, pages) as (put, get):
        put()
        get()
    pages.check()


def test_the_command_prints_rates_ratios_and_recovery(tmp_path, capsys):
    few = ["--rounds", "1", "--pages", "2", "--records", "50", "--without", "lmcache"]
    assert main([*few, "--work-dir", str(tmp_path / "work")]) == 0
    out = capsys.readouterr().out
    assert out.count("lmc_grouped / plain") == 2
    assert "LMCache" not in out
    assert f"the tier uses {CRC32_LIBRARY}" in out
    assert "opening a store of 50 pages" in out
    assert list(tmp_path.iterdir()) == []


def test_the_command_compares_shapes(tmp_path, capsys):
    few = ["--shapes", "--rounds", "1", "--pages", "2", "--records", "50"]
    assert main([*few, "--work-dir", str(tmp_path / "work")]) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in ("slot files", "segment files", "a file per page"))


def test_ratios_are_paired_within_a_round():
    samples = [
        Sample(side, Mode.DIRECT, number, put, 100.0)
        for side, puts in ((Side.PLAIN, (100.0, 10.0)), (Side.OURS, (50.0, 20.0)))
        for number, put in enumerate(puts)
    ]
    assert "1.25 (0.50..2.00)  1.00 (1.00..1.00)" in format_samples(samples, 2, 8_192)


def test_every_round_begins_with_the_next_side():
    assert [order(list(Side), number)[0] for number in range(4)] == [*Side, Side.PLAIN]
