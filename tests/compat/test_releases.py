"""Every case, asked of the real releases, without and with patches.

A known defect is a strict expected failure: the test raises what the release
raised (or ``WrongAnswer``), and a release that suddenly answers right turns the
test red. `make test` asks the oldest release, the newest, and the last one that
stores scratch groups; `make compat` asks all.
"""

import builtins
from collections.abc import Iterator

import pytest

from compat.cases import CASES, Case, Conversion
from compat.expectations import Entry, expectations
from compat.probe import Report
from compat.releases import newest, releases
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
