"""The command `lmc-grouped compat`, with made-up reports; tests/compat asks the real releases."""

import json
from importlib import metadata

import pytest

from compat import environments, runner
from compat.cases import CASES, Conversion
from compat.environments import FetchError
from compat.expectations import expectations
from compat.probe import Report
from compat.releases import newest, releases
from compat.runner import ProbeError
from lmc_grouped.cli import main


def known_report(version: str, told_as: str | None = None, **changes) -> Report:
    """A report that says exactly what is known of a release."""
    native = {case.name: case.right for case in CASES}
    patched = dict(native)
    for name, entry in expectations(version).items():
        native[name] = entry.observed
        if not entry.mended_by:
            patched[name] = entry.observed
    fields = {
        "native": native,
        "patched": patched,
        "ours": {c.name: c.right_ours for c in CASES if isinstance(c, Conversion) and c.ours},
        "patch_states": {"P1": "applied"},
    }
    return Report(told_as or version, **fields | changes)


@pytest.fixture
def ask(monkeypatch: pytest.MonkeyPatch):
    """Let the probes answer with given reports; returns what was asked of them."""
    asked: list[str] = []

    def answer(*reports: Report):
        def ask(requests):
            asked.extend(request.version for request in requests)
            return list(reports)

        monkeypatch.setattr(runner, "ask", ask)
        return asked

    monkeypatch.setattr(metadata, "version", lambda name: newest().version)
    return answer


def test_the_installed_release_is_asked_and_its_patches_are_told(ask, capsys):
    asked = ask(known_report("0.5.6"))
    assert main(["compat"]) == 0
    assert asked == ["0.5.6"]
    out = capsys.readouterr().out
    row = next(line for line in out.splitlines() if line.startswith("alignment of hits"))
    assert row.split()[-3:] == ["wrong", "right", "-"]
    assert "P1: applied" in out
    assert "every answer as in what is known of it" in out


def test_an_answer_that_is_not_known_ends_with_status_1_and_the_remedy(ask, capsys):
    told = known_report("0.5.6")
    ask(known_report("0.5.6", native={**told.native, "window": ["group 0"]}))
    assert main(["compat"]) == 1
    out = capsys.readouterr().out
    assert "the release, window: wrong, and no entry says so" in out
    assert "add compat/expected/0.5.6.toml" in out


def test_a_wrong_converter_of_ours_ends_with_status_1(ask, capsys):
    told = known_report("0.5.6")
    ask(known_report("0.5.6", ours={**told.ours, "window": []}))
    assert main(["compat"]) == 1
    assert "our converter, window" in capsys.readouterr().out


def test_an_unknown_release_is_compared_with_the_newest_known_one(ask, capsys, monkeypatch):
    monkeypatch.setattr(metadata, "version", lambda name: "0.5.7")
    told = known_report("0.5.6")
    mended = {**told.native, "alignment/ring-256": "hits are aligned to 256"}
    asked = ask(known_report("0.5.6", "0.5.7", native=mended))
    assert main(["compat"]) == 0
    assert asked == ["0.5.7"]
    out = capsys.readouterr().out
    assert "LMCache 0.5.7 is not pinned: compared with LMCache 0.5.6" in out
    assert "alignment/ring-256: unexpected pass" in out


def test_json_has_every_case_of_every_release(ask, capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(environments, "unpacked", lambda release, folder, note: tmp_path)
    versions = [release.version for release in releases()]
    asked = ask(*map(known_report, versions))
    assert main(["compat", "--all", "--json"]) == 0
    assert asked == versions
    told = json.loads(capsys.readouterr().out)
    assert [each["lmcache"] for each in told] == versions
    for each in told:
        assert len(each["release"]) == len(each["patched"]) == len(CASES)
        known = [v for v in each["release"] if v["verdict"] == "known defect"]
        assert {v["case"] for v in known} == set(expectations(each["lmcache"]))
        assert not any(v["is_right"] for v in known)


def test_the_matrix_shows_what_patches_change(ask, capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(environments, "unpacked", lambda release, folder, note: tmp_path)
    ask(*(known_report(release.version) for release in releases()))
    assert main(["compat", "--all"]) == 0
    out = capsys.readouterr().out
    row = next(line for line in out.splitlines() if line.startswith("block ids of 32 tokens"))
    assert row.count("raises -> right") == 6


@pytest.mark.parametrize("json_too", [[], ["--json"]])
def test_what_cannot_be_asked_ends_with_status_2(ask, capsys, monkeypatch, json_too):
    ask(Report("0.5.6", failure="ImportError: no vllm"))
    assert main(["compat", *json_too]) == 2
    assert "no vllm" in capsys.readouterr().err

    def nothing(requests):
        raise ProbeError("its last words")

    monkeypatch.setattr(runner, "ask", nothing)
    assert main(["compat", *json_too]) == 2
    assert "its last words" in capsys.readouterr().err


def test_a_missing_lmcache_or_wheel_ends_with_status_2(ask, capsys, monkeypatch):
    def missing(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", missing)
    assert main(["compat"]) == 2
    assert "LMCache is not installed here" in capsys.readouterr().err

    def unfetched(*arguments):
        raise FetchError("pip has no network")

    monkeypatch.setattr(environments, "unpacked", unfetched)
    assert main(["compat", "--all"]) == 2
    assert "pip has no network" in capsys.readouterr().err
