"""`lmc-grouped certify` against a scripted server over real HTTP."""

import json
import socket
from contextlib import redirect_stdout
from dataclasses import dataclass
from functools import cache
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from fake_vllm import BLOCK_TOKENS, Behaviour, Tier, serving

from lmc_grouped.cli import main
from lmc_grouped.tools.certify import server

TOKENS = 400
TURN_TWO_TOKENS = TOKENS + 16 + 64
ROWS = [
    "cold", "local hit", "restored", "multi-turn", "sibling 1", "sibling 2", "sibling 3",
    "sibling 4", "block end - 1", "block end", "block end + 1", "after pressure",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one run of the command left behind."""

    status: int
    out: str
    report: dict[str, Any]

    def row(self, check: str) -> dict[str, Any]:
        return next(row for row in self.report["rows"] if row["check"] == check)

    def verdicts(self) -> dict[str, str]:
        return {row["check"]: row["verdict"] for row in self.report["rows"]}

    def not_passed(self) -> dict[str, str]:
        """Verdicts other than pass; the pressure check, which is off, aside."""
        return {
            check: verdict
            for check, verdict in self.verdicts().items()
            if verdict != "pass" and check != "after pressure"
        }


@cache
def certify(behaviour: Behaviour, *extra: str) -> Outcome:
    with TemporaryDirectory() as directory, serving(behaviour) as (url, _):
        file = Path(directory) / "report.json"
        arguments = ["certify", "--url", url, "--json", str(file), "--tokens", str(TOKENS)]
        with redirect_stdout(StringIO()) as out:
            status = main([*arguments, *extra])
        return Outcome(status, out.getvalue(), json.loads(file.read_text()))


def last_boundary(prompt_tokens: int) -> int:
    return (prompt_tokens - 1) // BLOCK_TOKENS * BLOCK_TOKENS


def test_a_server_that_restores_exactly_passes_every_check():
    outcome = certify(Behaviour(), "--pressure-tokens", "800")
    assert outcome.status == 0
    assert outcome.verdicts() == dict.fromkeys(ROWS, "pass")
    restored = outcome.row("restored")
    assert restored["restored_tokens"] == restored["allowed_restored_tokens"] == 384
    assert restored["required_restored_tokens"] == 340
    assert restored["is_equal_ids"] is True
    assert restored["compared_with"] == "local hit"
    assert restored["largest_logprob_difference"] == 0.0
    assert restored["cold_first_token_seconds"] > 0
    assert restored["first_token_seconds"] > 0
    assert outcome.row("cold")["restored_tokens"] == 0
    assert outcome.row("local hit")["local_hit_tokens"] == 384


def test_the_table_has_a_line_for_every_check_and_the_summary_counts_them():
    outcome = certify(Behaviour())
    lines = outcome.out.splitlines()
    assert [line.split("  ")[0] for line in lines[2:14]] == ROWS
    restored = next(line for line in lines if line.startswith("restored"))
    assert "96.0%" in restored
    assert restored.endswith("pass")
    assert lines[-1] == "11 pass, 0 fail, 1 not checked."


def test_a_turn_restores_what_the_turn_before_stored():
    row = certify(Behaviour()).row("multi-turn")
    assert row["prompt_tokens"] == TURN_TWO_TOKENS
    assert last_boundary(TOKENS) <= row["restored_tokens"] <= last_boundary(TURN_TWO_TOKENS)


def test_prompts_around_a_block_end_restore_no_further_than_their_last_token_but_one():
    outcome = certify(Behaviour())
    rows = [outcome.row(name) for name in ROWS[8:11]]
    assert [row["prompt_tokens"] for row in rows] == [383, 384, 385]
    assert [row["restored_tokens"] for row in rows] == [368, 368, 384]


def test_the_third_sibling_is_the_first_a_recurrent_model_restores():
    outcome = certify(Behaviour(is_recurrent=True))
    assert outcome.status == 0
    restored = [outcome.row(f"sibling {n}")["restored_tokens"] for n in range(1, 5)]
    shared_tokens = TOKENS - BLOCK_TOKENS - 64
    assert restored == [0, 0, shared_tokens, shared_tokens]


def test_a_recurrent_model_without_junctions_fails_on_the_last_sibling():
    outcome = certify(Behaviour(is_recurrent=True, has_junctions=False))
    assert outcome.status == 1
    assert outcome.not_passed() == {"sibling 4": "fail"}


def test_a_server_without_a_connector_is_not_certified():
    outcome = certify(Behaviour(has_connector=False))
    assert outcome.status == 1
    assert outcome.verdicts()["restored"] == "fail"
    assert "no KV connector was asked" in outcome.row("restored")["reason"]
    assert outcome.row("restored")["is_equal_ids"] is True


def test_wrong_ids_after_a_restore_fail():
    outcome = certify(Behaviour(wrong_ids_after_restore=True))
    assert outcome.status == 1
    assert outcome.verdicts()["restored"] == "fail"
    assert outcome.row("restored")["is_equal_ids"] is False
    assert outcome.verdicts()["local hit"] == "pass"


def test_a_small_shift_after_a_restore_fails_although_the_ids_are_equal():
    outcome = certify(Behaviour(restore_logprob_shift=0.004))
    assert outcome.status == 1
    row = outcome.row("restored")
    assert (row["verdict"], row["is_equal_ids"]) == ("fail", True)
    assert row["largest_logprob_difference"] == pytest.approx(0.004)
    assert "at most 0.0001 is allowed" in row["reason"]


def test_a_shift_that_the_engines_own_hits_have_too_passes():
    outcome = certify(Behaviour(hit_logprob_shift=0.1))
    assert outcome.status == 0
    row = outcome.row("restored")
    assert row["largest_logprob_difference"] == 0.0
    assert row["largest_logprob_difference_to_cold"] == pytest.approx(0.0384)


def test_a_restore_in_coarser_steps_is_compared_with_a_local_hit_of_its_own_length():
    coarse = {"hit_logprob_shift": 0.1, "connector_chunk_blocks": 10}
    outcome = certify(Behaviour(**coarse), "--min-restored", "0.5")
    assert outcome.status == 0
    row = outcome.row("restored")
    assert (row["restored_tokens"], outcome.row("local hit")["local_hit_tokens"]) == (320, 384)
    assert (row["compared_with"], row["largest_logprob_difference"]) == ("local hit", 0.0)


def test_a_restore_is_not_passed_on_being_close_to_a_cold_run():
    strange = {"hit_logprob_shift": 0.1, "connector_chunk_blocks": 10, "honours_salt": False}
    outcome = certify(Behaviour(**strange), "--min-restored", "0.5")
    row = outcome.row("restored")
    assert (row["verdict"], row["compared_with"]) == ("not checked", "cold")
    assert "no run with as many hit tokens" in row["reason"]


def test_a_tie_that_breaks_the_other_way_passes_and_is_mentioned():
    outcome = certify(Behaviour(tie_after_hit=True))
    assert outcome.status == 0
    assert "two tokens 0 apart" in outcome.row("local hit")["reason"]
    assert "a cold run gives other ids" in outcome.row("restored")["reason"]


def test_restoring_past_the_last_usable_boundary_fails():
    outcome = certify(Behaviour(restores_past_end=True))
    assert outcome.status == 1
    assert outcome.verdicts()["block end"] == "fail"
    assert "384 tokens restored, at most 368" in outcome.row("block end")["reason"]


def test_a_promise_the_connector_does_not_keep_is_not_a_restore():
    outcome = certify(Behaviour(loads_fail=True))
    assert outcome.status == 1
    assert outcome.row("restored")["restored_tokens"] == 0
    assert "the connector promised 384" in outcome.row("restored")["reason"]


def test_a_request_the_server_fails_is_a_failed_check_and_the_rest_still_runs():
    outcome = certify(Behaviour(refuses_after_restore=True))
    assert outcome.status == 1
    assert outcome.verdicts()["restored"] == "fail"
    assert "the load failed" in outcome.row("restored")["reason"]
    assert outcome.verdicts()["multi-turn"] == "fail"


def test_an_evicted_prompt_is_recomputed_and_passes_after_pressure():
    behaviour = Behaviour(host_tier_boundaries=60)
    outcome = certify(behaviour, "--pressure-tokens", "1200")
    row = outcome.row("after pressure")
    assert (row["verdict"], row["restored_tokens"]) == ("pass", 0)
    assert row["compared_with"] == "cold"


@pytest.mark.parametrize(
    ("behaviour", "reason"),
    [
        (Behaviour(has_reset=False), "VLLM_SERVER_DEV_MODE=1"),
        (Behaviour(has_metrics=False), "no prefix-cache counters"),
        (Behaviour(has_logprobs=False), "no log-probabilities"),
        (Behaviour(has_token_ids=False), "no token ids"),
        (Behaviour(strangers_prompt_tokens=7), "nobody else uses the server"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_the_server_does_not_offer_is_not_checked_and_not_certified(
    behaviour: Behaviour, reason: str
):
    outcome = certify(behaviour)
    assert outcome.status == 1
    assert outcome.verdicts()["restored"] == "not checked"
    assert "fail" not in outcome.verdicts().values()
    assert reason in outcome.out
    assert "nothing is certified" in outcome.out


def test_wrong_ids_fail_even_without_log_probabilities():
    outcome = certify(Behaviour(has_logprobs=False, wrong_ids_after_restore=True))
    assert outcome.status == 1
    assert outcome.verdicts()["restored"] == "fail"


def test_block_ends_are_not_checked_when_the_block_size_is_unknown():
    outcome = certify(Behaviour(tells_block_size=False))
    assert outcome.status == 0
    assert outcome.not_passed() == dict.fromkeys(ROWS[8:11], "not checked")


def test_what_needs_a_salt_is_not_checked_on_a_server_that_ignores_it():
    outcome = certify(Behaviour(honours_salt=False))
    assert outcome.not_passed() == dict.fromkeys(ROWS[3:8], "not checked")
    assert "does not heed cache_salt" in outcome.row("multi-turn")["reason"]


def test_a_reset_that_is_refused_at_first_is_tried_again():
    assert certify(Behaviour(resets_refused=3)).status == 0


def test_a_cache_that_never_resets_leaves_every_restore_unchecked(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(server, "RESET_WAIT_SECONDS", 0.05)
    outcome = certify(Behaviour(resets_refused=1_000_000))
    assert outcome.status == 1
    assert outcome.not_passed() == dict.fromkeys(ROWS[2:11], "not checked")
    assert "did not reset" in outcome.row("restored")["reason"]


def test_counters_that_come_late_are_waited_for():
    assert certify(Behaviour(late_reads=1)).status == 0


def test_a_server_that_dies_midway_ends_with_status_2_and_what_was_measured():
    outcome = certify(Behaviour(dies_at_completion=6))
    assert outcome.status == 2
    verdicts = outcome.verdicts()
    assert list(verdicts) == ROWS
    assert verdicts["cold"] == verdicts["local hit"] == "pass"
    assert verdicts["after pressure"] == "not checked"
    assert outcome.report["aborted"]
    assert "Aborted" in outcome.out


def test_a_data_parallel_server_is_asked_at_its_first_engine_only(tmp_path: Path):
    with serving(Behaviour(engines=2)) as (url, fake):
        assert main(["certify", "--url", url, "--tokens", str(TOKENS)]) == 0
    assert set(fake.ranks) == {"0"}


def test_no_two_runs_send_the_same_prompt():
    with serving(Behaviour()) as (url, _):
        first = main(["certify", "--url", url, "--tokens", str(TOKENS)])
        second = main(["certify", "--url", url, "--tokens", str(TOKENS)])
    assert (first, second) == (0, 0)


def test_a_seed_used_twice_fails_the_cold_check():
    with serving(Behaviour()) as (url, _):
        arguments = ["certify", "--url", url, "--tokens", str(TOKENS), "--seed", "same"]
        assert main(arguments) == 0
        assert main(arguments) == 1


def test_a_prompt_of_the_run_before_a_restart_is_found_and_compared(tmp_path: Path):
    file = tmp_path / "report.json"
    with serving(Behaviour()) as (url, fake):
        arguments = ["certify", "--url", url, "--tokens", str(TOKENS), "--seed", "same"]
        assert main(arguments) == 0
        fake.local = Tier()  # what a restart leaves: the connector's pages
        assert main([*arguments, "--after-restart", "--json", str(file)]) == 0
    (row,) = json.loads(file.read_text())["rows"]
    assert (row["check"], row["verdict"], row["restored_tokens"]) == ("after restart", "pass", 384)
    assert row["compared_with"] == "local hit"


@pytest.mark.parametrize(
    ("behaviour", "reason"),
    [
        (Behaviour(), "0 tokens restored, at least 340 required"),
        (Behaviour(wrong_ids_after_restore=True), "token ids differ"),
        (Behaviour(restore_logprob_shift=0.004), "log-probabilities differ by 0.004"),
    ],
)
def test_a_prompt_that_is_lost_or_wrong_after_a_restart_fails(
    behaviour: Behaviour, reason: str, tmp_path: Path
):
    file = tmp_path / "report.json"
    with serving(behaviour) as (url, _):
        arguments = ["certify", "--url", url, "--tokens", str(TOKENS), "--seed", "same"]
        if behaviour != Behaviour():  # else nothing was stored: another server, another disk
            main(arguments)
        assert main([*arguments, "--after-restart", "--json", str(file)]) == 1
    (row,) = json.loads(file.read_text())["rows"]
    assert (row["verdict"], reason in row["reason"]) == ("fail", True)


def test_the_default_length_is_cut_to_what_the_model_takes(tmp_path: Path):
    file = tmp_path / "report.json"
    with serving(Behaviour(max_model_len=600)) as (url, _):
        assert main(["certify", "--url", url, "--json", str(file)]) == 0
    assert json.loads(file.read_text())["rows"][0]["prompt_tokens"] == 600 - 96


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (["--tokens", "4001"], "give at most 4000"),
        (["--tokens", "5"], "allowed is at least 32"),
        (["--min-restored", "1.5"], "allowed is from 0 to 1"),
        (["--tolerance", "nan"], "allowed is at least 0"),
        (["--model", "other"], "the server has ['fake']"),
        (["--json", "/nowhere/report.json"], "cannot be written"),
        (["--after-restart"], "needs the --seed of the run before"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_bad_input_ends_with_status_2_and_says_what_is_allowed(
    extra: list[str], message: str, capsys: pytest.CaptureFixture[str]
):
    with serving(Behaviour()) as (url, _):
        status = main(["certify", "--url", url, *extra])
    assert status == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("url", ["localhost:8000", "ftp://host", "http://", "http://host:x"])
def test_an_address_that_is_not_http_ends_with_status_2(
    url: str, capsys: pytest.CaptureFixture[str]
):
    assert main(["certify", "--url", url]) == 2
    assert "allowed is http://HOST" in capsys.readouterr().err


def test_a_server_that_is_not_there_ends_with_status_2(capsys: pytest.CaptureFixture[str]):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and not listening: nobody can answer
        assert main(["certify", "--url", f"http://127.0.0.1:{taken.getsockname()[1]}"]) == 2
    error = capsys.readouterr().err
    assert "is reachable" in error
    assert "Traceback" not in error
