"""Every case, asked of the real releases, without and with patches.

A known defect is a strict expected failure: the test raises what the release
raised (or ``WrongAnswer``), and a release that suddenly answers right turns the
test red. `make test` asks the oldest release, the newest, and the last one that
stores scratch groups; `make compat` asks all.
"""

import builtins
import shutil
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest

from compat.cases import CASES, Case, Conversion
from compat.expectations import Entry, expectations
from compat.probe import Report
from compat.releases import newest, releases
from compat.runner import ask
from compat.runner import request as question
from compat.verdicts import Kind, Verdict, judge, judge_ours

QUICK = ("0.5.0", "0.5.5", newest().version)


class WrongAnswer(AssertionError):
    """The wrong answer that the expectations file tells."""


class Unexpected(AssertionError):
    """An answer that no expectation tells: never an expected failure."""


def versions() -> list:
    return [
        pytest.param(r.version, marks=() if r.version in QUICK else pytest.mark.compat)
        for r in releases()
    ]


def native_and_patched() -> Iterator:
    for release in releases():
        quick = [] if release.version in QUICK else [pytest.mark.compat]
        entries = expectations(release.version)
        for case in CASES:
            entry = entries.get(case.name)
            known = [] if entry is None else [expected_failure(release.version, entry)]
            name = f"{release.version}-{case.name}"
            yield pytest.param(release.version, case, False, marks=quick + known, id=name)
            known = [] if entry is None or entry.mended_by else known
            yield pytest.param(
                release.version, case, True, marks=quick + known, id=f"{name}-patched"
            )


def expected_failure(version: str, entry: Entry) -> pytest.MarkDecorator:
    return pytest.mark.xfail(
        strict=True,
        raises=failure_of(entry),
        reason=f"{entry.defect.reason} ({entry.defect.link}); when it passes, retire "
        f'cases."{entry.case}" in compat/expected/{version}.toml',
    )


def failure_of(entry: Entry) -> type[Exception]:
    return WrongAnswer if entry.raises is None else getattr(builtins, entry.raises)


def verdict_on(verdicts: list[Verdict], case: Case) -> Verdict:
    return next(verdict for verdict in verdicts if verdict.case is case)


def settle(verdict: Verdict) -> None:
    """Pass, fail as the expectations say, or fail in a way that nothing expects."""
    if verdict.kind is Kind.KNOWN_DEFECT:
        assert verdict.entry is not None
        raise failure_of(verdict.entry)(verdict.answer)
    if verdict.kind in (Kind.CHANGED, Kind.NEW_DEFECT):
        raise Unexpected(f"{verdict.kind}: {verdict.answer}; {verdict.remedy}")


@pytest.mark.parametrize(("version", "case", "patched"), list(native_and_patched()))
def test_a_release_answers_what_is_expected_of_it(
    version: str, case: Case, patched: bool, reports: dict[str, Report]
):
    if reports[version].failure:
        raise Unexpected(reports[version].failure)
    settle(verdict_on(judge(reports[version], expectations(version), patched=patched), case))


@pytest.mark.parametrize("version", versions())
def test_our_converter_is_right_in_every_release(version: str, reports: dict[str, Report]):
    wrong = [v for v in judge_ours(reports[version]) if v.kind is not Kind.RIGHT]
    assert wrong == []
    conversions = [case for case in CASES if isinstance(case, Conversion) and case.ours]
    assert len(reports[version].ours) == len(conversions)


@pytest.mark.parametrize("version", versions())
def test_every_patch_that_mends_something_was_applied(version: str, reports: dict[str, Report]):
    needed = {name for e in expectations(version).values() for name in e.mended_by}
    states = reports[version].patch_states
    assert {name for name, state in states.items() if state == "applied"} == needed
    allowed = {"applied", "not needed", "not here"}
    assert set(states.values()) <= allowed


@pytest.mark.parametrize("version", versions())
def test_patches_can_be_applied_twice_and_taken_out(version: str, reports: dict[str, Report]):
    report = reports[version]
    assert report.patch_states_again == report.patch_states
    assert report.reverted == report.native
    assert report.patched != report.native


@pytest.mark.compat
def test_a_release_that_nobody_pinned_is_asked_and_compared(tmp_path: Path):
    made_up = next_release(tmp_path)
    (report,) = ask([question("0.5.99", made_up)])
    assert report.failure == ""
    verdicts = judge(report, expectations(newest().version))
    assert [v.case.name for v in verdicts if not v.is_green] == []


@pytest.mark.compat
def test_another_lmcache_than_the_one_asked_for_is_refused(tmp_path: Path):
    made_up = next_release(tmp_path)
    wrong_version, wrong_place = ask([question("0.5.98", made_up), question("0.5.6", tmp_path)])
    assert "imported 0.5.99" in wrong_version.failure
    assert wrong_place.failure.startswith("WrongRelease")
    assert wrong_place.native == {}


def next_release(folder: Path) -> Path:
    """The newest release under a version that nobody pinned."""
    made_up = folder / "made-up"
    made_up.mkdir()
    package = Path(metadata.distribution("lmcache").locate_file("lmcache"))
    shutil.copytree(package, made_up / "lmcache")
    information = made_up / "lmcache-0.5.99.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: lmcache\nVersion: 0.5.99\n")
    return made_up
