"""`bench_restore` without an engine: its arithmetic, its tables, and its rounds against a
scripted server."""

import json
import time
from collections import Counter
from dataclasses import dataclass, replace
from types import SimpleNamespace

import pytest
from fake_vllm import MODEL, Behaviour, serving

from lmc_grouped.tools.bench_restore import measure
from lmc_grouped.tools.bench_restore.command import main
from lmc_grouped.tools.bench_restore.figures import (
    Metric,
    Phase,
    Question,
    Sample,
    Side,
    Spread,
    answer,
    rotate,
    verdict,
)
from lmc_grouped.tools.bench_restore.measure import (
    Plan,
    make_prompt,
    required_hit_tokens,
    run_rounds,
)
from lmc_grouped.tools.bench_restore.report import Report, compute_ratios
from lmc_grouped.tools.bench_restore.sides import Running
from lmc_grouped.tools.certify.http import HttpClient
from lmc_grouped.tools.errors import ToolError

OURS = (Side.OURS, Phase.RESTORED)
THEIRS = (Side.LMCACHE, Phase.RESTORED)
QUESTION = Question("ours / theirs", OURS, THEIRS, Metric.FIRST_TOKEN, at_most=0.7)


def sample(side: Side, phase: Phase, round_index: int, milliseconds: float) -> Sample:
    seconds = milliseconds / 1e3
    return Sample(side, phase, 4000, round_index, seconds, 2 * seconds, hit_tokens=3968)


def rounds(side_and_phase: tuple[Side, Phase], *milliseconds: float) -> list[Sample]:
    return [sample(*side_and_phase, index, ms) for index, ms in enumerate(milliseconds)]


def report(samples: list[Sample]) -> Report:
    return Report({"vllm": "1.2"}, {"rounds": "3"}, 0.04, 0.5, samples, compute_ratios(samples))


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([3.0], Spread(3.0, 3.0, 3.0)),
        ([5.0, 1.0, 2.0], Spread(2.0, 1.0, 5.0)),
        ([4.0, 1.0, 2.0, 9.0], Spread(3.0, 1.0, 9.0)),
    ],
)
def test_a_spread_is_the_median_and_the_ends(values, expected):
    assert Spread.of(values) == expected


def test_a_spread_of_nothing_is_refused():
    with pytest.raises(ValueError, match="at least one value"):
        Spread.of([])


def test_ratios_are_paired_by_round_and_not_of_medians():
    # The machine gets slower from round to round; the ratio does not move.
    samples = rounds(OURS, 10, 20, 60) + rounds(THEIRS, 40, 40, 120)
    assert answer(samples, QUESTION, 4000) == Spread(0.5, 0.25, 0.5)


def test_the_metric_of_a_question_decides_which_time_is_compared():
    ours = [replace(item, total_seconds=0.3) for item in rounds(OURS, 10)]
    theirs = [replace(item, total_seconds=0.1) for item in rounds(THEIRS, 10)]
    whole = replace(QUESTION, metric=Metric.TOTAL)
    assert answer(ours + theirs, QUESTION, 4000) == Spread(1, 1, 1)
    assert answer(ours + theirs, whole, 4000).median == pytest.approx(3)


def test_a_side_or_a_length_that_was_not_measured_has_no_ratio():
    assert answer(rounds(OURS, 10), QUESTION, 4000) is None
    assert answer(rounds(OURS, 10) + rounds(THEIRS, 10), QUESTION, 2000) is None


@pytest.mark.parametrize(
    ("ratio", "at_most", "text"),
    [
        (0.7, 0.7, "at most 0.7: met"),
        (0.71, 0.7, "at most 0.7: missed"),
        (5.0, None, ""),
    ],
)
def test_a_target_is_said_to_be_met_or_missed(ratio, at_most, text):
    assert verdict(Spread(ratio, 0, 9), at_most) == text


def test_every_round_begins_with_the_next_side():
    orders = [rotate(list(Side), index) for index in range(-1, 3)]
    assert [order[0] for order in orders] == [Side.LMCACHE, Side.NONE, Side.OURS, Side.DISK]
    assert all(sorted(order) == sorted(Side) for order in orders)


def test_prompts_are_the_same_for_all_sides_and_new_in_every_round():
    first = make_prompt(0, 0, 100)
    assert first == make_prompt(0, 0, 100)
    assert len(first) == 100
    others = [make_prompt(0, 1, 100), make_prompt(1, 0, 100), make_prompt(0, 0, 101)]
    assert all(first[:16] != other[:16] for other in others)


@pytest.mark.parametrize(
    ("prompt_tokens", "required"), [(4000, 3840), (4096, 3840), (4097, 4096), (256, 0)]
)
def test_a_restore_has_to_bring_all_whole_chunks_but_never_the_last_token(prompt_tokens, required):
    assert required_hit_tokens(prompt_tokens, 256) == required


def test_the_tables_show_medians_spreads_hits_and_targets():
    samples = rounds(OURS, 40, 50, 60) + rounds(THEIRS, 100, 100, 100)
    text = report(samples).format()
    assert "vllm 1.2, rounds 3, cores used by idle servers 0.04" in text
    rows = [" ".join(line.split()) for line in text.splitlines()]
    assert "4,000 restored lmc_grouped 50 (40..60) 100 (80..120) - 3,968" in rows
    assert (
        "4,000 restored, lmc_grouped / LMCache time to first token 0.50 (0.40..0.60) "
        "at most 0.7: met" in rows
    )


def test_the_threads_that_write_to_disk_have_a_column_where_there_are_some():
    disk = [replace(item, disk_seconds=0.0015) for item in rounds((Side.DISK, Phase.COLD), 40, 50)]
    rows = [" ".join(line.split()) for line in report(disk).format().splitlines()]
    times = "45 (40..50) 90 (80..100) 1.5 (1.5..1.5)"
    assert f"4,000 cold lmc_grouped, disk on {times} 3,968" in rows


def test_the_json_file_holds_every_sample_and_every_ratio(tmp_path):
    path = tmp_path / "bench.json"
    report(rounds(OURS, 40) + rounds(THEIRS, 100)).write(path)
    written = json.loads(path.read_text())
    assert [item["side"] for item in written["samples"]] == ["lmc_grouped", "LMCache MP"]
    assert written["ratios"][0]["ratio"]["median"] == pytest.approx(0.4)


@pytest.mark.parametrize("arguments", [["--rounds", "0"], ["--without", "all"], ["--tokens"]])
def test_wrong_arguments_end_with_usage(arguments, capsys):
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert "usage:" in capsys.readouterr().err


@dataclass(frozen=True, slots=True)
class Served:
    """What a side needs of its server."""

    url: str
    model: str = MODEL

    def client(self) -> HttpClient:
        return HttpClient(self.url, timeout_seconds=20)


def run_side(side: Side, monkeypatch, **behaviour) -> list[Sample]:
    monkeypatch.setattr(measure, "SETTLE_SECONDS", 0)
    plan = Plan(rounds=2, prompt_tokens=(64, 96), seed=0, chunk_tokens=32)
    with serving(Behaviour(**behaviour)) as (url, _):
        return list(run_rounds([Running(side, Served(url), ())], plan))


@pytest.mark.parametrize(
    ("side", "second"), [(Side.OURS, Phase.RESTORED), (Side.NONE, Phase.LOCAL)]
)
def test_every_round_measures_cold_and_then_a_hit(side, second, monkeypatch):
    samples = run_side(side, monkeypatch, has_connector=side is not Side.NONE)
    assert Counter((item.phase, item.prompt_tokens, item.hit_tokens) for item in samples) == {
        (Phase.COLD, 64, 0): 2,
        (second, 64, 48): 2,
        (Phase.COLD, 96, 0): 2,
        (second, 96, 80): 2,
    }
    assert all(0 < item.first_token_seconds <= item.total_seconds for item in samples)


def test_the_disks_threads_are_counted_up_to_the_work_behind_the_request(monkeypatch):
    monkeypatch.setattr(measure, "SETTLE_SECONDS", 0.05)
    plan = Plan(rounds=1, prompt_tokens=(64,), seed=0, chunk_tokens=32)
    busy = SimpleNamespace(thread_cpu_seconds=lambda _: time.perf_counter())
    for side in (Side.DISK, Side.OURS):
        with serving(Behaviour()) as (url, _):
            samples = list(run_rounds([Running(side, Served(url), (busy,))], plan))
        assert len(samples) == 2
        for item in samples:
            expected = item.total_seconds + 0.05 if side is Side.DISK else 0
            assert item.disk_seconds >= expected
            assert (item.disk_seconds > 0) == (side is Side.DISK)


def test_a_restore_that_did_not_happen_is_an_error(monkeypatch):
    with pytest.raises(ToolError, match="64 tokens was to be restored, with 32 tokens"):
        run_side(Side.OURS, monkeypatch, loads_fail=True)


def test_a_restore_that_brought_too_little_is_an_error(monkeypatch):
    with pytest.raises(ToolError, match="and had 0 from the connector"):
        run_side(Side.OURS, monkeypatch, connector_chunk_blocks=8)


def test_requests_of_others_are_an_error(monkeypatch):
    with pytest.raises(ToolError, match="somebody else uses the server"):
        run_side(Side.OURS, monkeypatch, strangers_prompt_tokens=5)


def test_a_cache_that_does_not_empty_is_an_error(monkeypatch):
    monkeypatch.setattr("lmc_grouped.tools.certify.server.RESET_WAIT_SECONDS", 0.1)
    with pytest.raises(ToolError, match="prefix cache did not reset"):
        run_side(Side.OURS, monkeypatch, resets_refused=1_000_000)
