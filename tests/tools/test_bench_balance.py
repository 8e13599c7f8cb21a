"""`bench_balance` without an engine: its arguments, its arithmetic, its tables and its meter."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from lmc_grouped.connector.metrics import GroupedStats
from lmc_grouped.tools.bench_balance import command
from lmc_grouped.tools.bench_balance.command import SIDES, main, run_engine, task_of
from lmc_grouped.tools.bench_balance.figures import Result, Round, Side, Task
from lmc_grouped.tools.bench_balance.meter import Meter
from lmc_grouped.tools.bench_balance.report import format_model
from lmc_grouped.tools.errors import ToolError

QUIET = Round(
    engine_seconds=2.0,
    balance_seconds=0.01,
    store_seconds=0.1,
    longest_plan_seconds=0.003,
    moved_pages=20,
    moved_bytes=3 * 2**20,
    evicted_pages=500,
    reservations=200,
    stalls=4,
    not_stored_pages=7,
    restorable_tokens=10_000,
    restored_tokens=9_000,
)


def task(side: Side = Side.AUTO) -> Task:
    return task_of("gemma3", Path("models/gemma3"), side, 3)


def result(side: Side = Side.AUTO, *rounds: Round, pages: int = 1) -> Result:
    is_elastic = side.partition == "auto"
    extents = (128, pages * 2**16, (pages,) * 3) if is_elastic else (0, 0, ())
    return Result(task(side), rounds or (QUIET,), *extents)


def row(text: str, name: str) -> list[str]:
    """The cells of a partition's row."""
    [line] = [line for line in text.splitlines() if line.startswith(f"{name}  ")]
    return [cell.strip() for cell in line.removeprefix(name).split("  ") if cell.strip()]


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--rounds", "0"], "0 is not positive"),
        (["--rounds", "few"], "'few' is not a whole number"),
        (["--models", "llama"], "invalid choice: 'llama'"),
        (["--models"], "expected at least one argument"),
        (["gemma3"], "unrecognized arguments: gemma3"),
    ],
)
def test_wrong_arguments_end_with_usage_and_the_reason(
    arguments: list[str], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    shown = capsys.readouterr().err
    assert "usage:" in shown
    assert why in shown


def test_a_row_shows_medians_shares_and_the_longest_plan_of_all_rounds() -> None:
    slow = msgspec.structs.replace(QUIET, balance_seconds=1.0, longest_plan_seconds=0.008)
    text = format_model([result(Side.AUTO, QUIET, slow, QUIET, pages=2)])
    assert "32 MiB of host memory, sized for 1,024 tokens" in text
    assert "40 prompts of 200 tokens and 12 of 1,500" in text
    assert row(text, "auto") == [
        *[
            "128",
            "2/2/2",
            "10.00 ms",
            "0.500%",
            "met",
            "8.00 ms",
            "20",
            "3.00",
            "500",
            "4",
            "2.0%",
            "7",
        ],
        *["5.000%", "2.00 s", "9,000", "90.0%"],
    ]


def test_two_percent_of_engine_time_is_too_much() -> None:
    limit = msgspec.structs.replace(QUIET, balance_seconds=0.04)
    assert row(format_model([result(Side.AUTO, limit)]), "auto")[4] == "missed"


def test_fixed_pools_have_no_extents_and_no_target() -> None:
    cells = row(format_model([result(Side.STATIC)]), "static")
    assert cells[:5] == ["-", "-", "10.00 ms", "0.500%", "-"]


def test_a_round_without_a_reservation_has_no_stalls() -> None:
    assert msgspec.structs.replace(QUIET, reservations=0, stalls=0).stall_share == 0.0


def test_the_report_says_that_extents_were_forced_and_why() -> None:
    text = format_model([result(Side.AUTO), result(Side.FORCED, pages=4)])
    assert text.splitlines()[-1] == (
        "forced extents: the size was set to 4 of the largest pages, 256.0 KiB, so that extents "
        "have to be emptied by moving pages; the plan picks 64.0 KiB, one page of every group, "
        "and evicting a page is then all that is ever needed"
    )
    several = format_model([result(Side.AUTO, pages=2), result(Side.FORCED, pages=4)])
    assert several.endswith("the plan picks 128.0 KiB")
    assert "forced" not in format_model([result(Side.AUTO), result(Side.OFF)])


def test_every_model_has_its_table_and_all_of_it_is_written_as_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "write_tiny_model", lambda _, directory: directory)
    monkeypatch.setattr(
        command, "run_engine", lambda asked: msgspec.structs.replace(result(asked.side), task=asked)
    )
    path = tmp_path / "bench.json"
    assert main(["--models", "gemma3", "qwen3_next", "gemma3", "--json", str(path)]) == 0
    written = msgspec.json.decode(path.read_bytes(), type=list[Result])
    assert [item.task.side for item in written] == [*SIDES["gemma3"], *SIDES["qwen3_next"]]
    assert json.loads(path.read_text())[0]["rounds"][0]["moved_pages"] == 20
    shown = capsys.readouterr().out
    assert shown.count("restored tokens") == 2
    assert "\nqwen3_next: 14 MiB" in shown


def test_an_engine_that_fails_is_an_error_with_the_end_of_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "PROGRAM", "lmc_grouped.no_such_program")
    monkeypatch.setattr(command.importlib.util, "find_spec", lambda _: True)
    with pytest.raises(ToolError, match=r"status 1 and no result;[^\n]*\n.*no_such_program"):
        run_engine(task())
    monkeypatch.setattr(command, "write_tiny_model", lambda _, directory: directory)
    assert main(["--models", "gemma3"]) == 1
    assert "the engine of gemma3, auto, ended with status 1" in capsys.readouterr().err


def test_without_vllm_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(ToolError, match="install vLLM"):
        run_engine(task())


class Scripted:
    """An engine whose every step moves two pages, after one reservation has stalled."""

    def __init__(self) -> None:
        self.stats = GroupedStats()
        self.tier = SimpleNamespace(
            index=SimpleNamespace(
                reserve=lambda operation, pages: pages or None,
                note_shortage=lambda wanted: self.stats.add("stalls", 1),
            )
        )
        self.balance = SimpleNamespace(plan_step=lambda: ["move"], finish=self._finish)
        self.stores = SimpleNamespace(plan_step=self._store)
        self.core = SimpleNamespace(step_fn=self._step)
        self.worker = SimpleNamespace(move_pages=lambda operation: None)
        self.failed = 0

    def take_stats(self) -> GroupedStats:
        stats, self.stats = self.stats, GroupedStats()
        return stats

    def _finish(self, operation_id: int, failure: str | None) -> None:
        self.stats.add("moved_pages", 2, 0)
        self.stats.add("moved_bytes", 100, 0)
        self.stats.add("failed_moves", self.failed)

    def _store(self) -> None:
        index: Any = self.tier.index
        index.note_shortage({})
        index.reserve(1, [])
        index.reserve(2, ["page"])
        self.stats.add("not_stored_pages", 3, "no_room")
        self.stats.add("not_stored_pages", 9, "null_block")
        self.stats.add("evicted_pages", 5, 1)

    def _step(self) -> str:
        self.stores.plan_step()
        self.balance.plan_step()
        self.worker.move_pages(None)
        self.balance.finish(1, failure=None)
        self.take_stats()  # as an engine does that keeps statistics
        return "outputs"


def test_the_meter_counts_what_happened_since_its_start_and_changes_nothing() -> None:
    scripted = Scripted()
    meter = Meter(scripted.core, scripted, scripted.worker)
    scripted.core.step_fn()
    meter.start()
    assert [scripted.core.step_fn(), scripted.core.step_fn()] == ["outputs", "outputs"]
    seen = meter.read(restorable_tokens=10, restored_tokens=4)
    assert (seen.moved_pages, seen.moved_bytes, seen.evicted_pages) == (4, 200, 10)
    assert (seen.reservations, seen.stalls, seen.not_stored_pages) == (4, 2, 6)
    assert (seen.restorable_tokens, seen.restored_tokens) == (10, 4)
    parts = seen.balance_seconds + seen.store_seconds
    assert 0 < seen.longest_plan_seconds < parts < seen.engine_seconds


def test_a_failed_move_is_an_error_and_no_measurement() -> None:
    scripted = Scripted()
    scripted.failed = 1
    meter = Meter(scripted.core, scripted, scripted.worker)
    scripted.core.step_fn()
    with pytest.raises(RuntimeError, match="1 moves failed"):
        meter.read(restorable_tokens=10, restored_tokens=4)
