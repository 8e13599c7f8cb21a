"""A wrong expectation is red in both directions, and a file that cannot be right is refused."""

from pathlib import Path

import pytest

from compat.cases import CASES, find
from compat.expectations import Defect, Entry, ExpectationError, expectations, read
from compat.probe import Report
from compat.releases import newest
from compat.verdicts import Kind, judge, judge_ours
from tests.compat.test_releases import Unexpected, WrongAnswer, failure_of, settle

DEFECT = Defect("because", "https://example.org/1")
CASE = "slices/zero-span"
WRONG = [[10], [77], [20]]


def report(answer) -> Report:
    """A release that is right everywhere but in one case, with patches or without."""
    answers = {case.name: case.right for case in CASES} | {CASE: answer}
    return Report("0.5.9", native=answers, patched=answers)


def entry(observed=WRONG, **more) -> Entry:
    return Entry(CASE, DEFECT, observed, **more)


def kind_of(answer, entries: dict[str, Entry], *, patched: bool) -> Kind:
    kinds = {v.case.name: v.kind for v in judge(report(answer), entries, patched=patched)}
    assert {kind for name, kind in kinds.items() if name != CASE} == {Kind.RIGHT}
    return kinds[CASE]


@pytest.mark.parametrize(
    ("answer", "entries", "kind"),
    [
        (find(CASE).right, {}, Kind.RIGHT),
        (WRONG, {CASE: entry()}, Kind.KNOWN_DEFECT),
        ("raises ZeroDivisionError", {CASE: entry("raises ZeroDivisionError")}, Kind.KNOWN_DEFECT),
        (find(CASE).right, {CASE: entry()}, Kind.UNEXPECTED_PASS),
        (WRONG, {}, Kind.NEW_DEFECT),
        (WRONG, {CASE: entry("raises ZeroDivisionError")}, Kind.CHANGED),
        ("raises KeyError", {CASE: entry("raises ZeroDivisionError")}, Kind.CHANGED),
    ],
)
def test_an_answer_is_judged_by_the_entry(answer, entries, kind: Kind):
    assert kind_of(answer, entries, patched=False) is kind


@pytest.mark.parametrize(
    ("answer", "entries", "kind"),
    [
        (find(CASE).right, {CASE: entry(mended_by=("P2",))}, Kind.RIGHT),
        (WRONG, {CASE: entry(mended_by=("P2",))}, Kind.CHANGED),
        (WRONG, {CASE: entry()}, Kind.KNOWN_DEFECT),
        (find(CASE).right, {CASE: entry()}, Kind.UNEXPECTED_PASS),
        ([], {CASE: entry(observed_patched=[])}, Kind.KNOWN_DEFECT),
    ],
)
def test_with_patches_a_mended_case_must_be_right(answer, entries, kind: Kind):
    assert kind_of(answer, entries, patched=True) is kind


def test_an_unexpected_pass_names_the_entry_to_retire():
    (verdict,) = [v for v in judge(report(find(CASE).right), {CASE: entry()}) if v.remedy]
    assert f'compat/expected/0.5.9.toml, cases."{CASE}"' in verdict.remedy


def test_a_removed_entry_of_a_real_release_is_red():
    known = dict(expectations("0.5.5"))
    answers = {case.name: case.right for case in CASES}
    answers |= {name: e.observed for name, e in known.items()}
    told = Report("0.5.5", native=answers)
    assert all(v.is_green for v in judge(told, known))
    for name in list(known):
        fewer = {other: e for other, e in known.items() if other != name}
        assert [v.case.name for v in judge(told, fewer) if not v.is_green] == [name]


def test_only_what_is_expected_is_an_expected_failure():
    def verdict(answer, entries):
        return next(v for v in judge(report(answer), entries) if v.case.name == CASE)

    settle(verdict(find(CASE).right, {CASE: entry()}))  # passes: strict xfail makes it red
    with pytest.raises(WrongAnswer):
        settle(verdict(WRONG, {CASE: entry()}))
    raising = entry("raises ZeroDivisionError")
    assert failure_of(raising) is ZeroDivisionError
    with pytest.raises(ZeroDivisionError):
        settle(verdict("raises ZeroDivisionError", {CASE: raising}))
    for answer, entries in ((WRONG, {}), (WRONG, {CASE: raising})):
        with pytest.raises(Unexpected):
            settle(verdict(answer, entries))


def test_our_converter_has_no_known_defects():
    told = Report("0.5.9", ours={"scratch/LBHNC": ["group 1"]})
    with pytest.raises(KeyError):
        judge_ours(told)
    every = {c.name: c.right_ours for c in CASES if hasattr(c, "right_ours")}
    wrong = Report("0.5.9", ours=every | {"scratch/LBHNC": ["group 1"]})
    assert [v.case.name for v in judge_ours(wrong) if not v.is_green] == ["scratch/LBHNC"]


ENTRY = '[defects.d]\nreason = "r"\nlink = "l"\n[cases."slices/zero-span"]\ndefect = "d"\n'


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ('[cases."nonsense"]\ndefect = "d"\nresult = 1\n', "no such case"),
        (ENTRY.replace('defect = "d"', 'defect = "e"') + "result = 1\n", "'e' is none of"),
        (ENTRY, "either result or raises"),
        (ENTRY + 'result = 1\nraises = "ValueError"\n', "either result or raises"),
        (ENTRY + "result = [[10, 11], [], [20, 21]]\n", "is the right one"),
        (ENTRY + "result = 1\nskip = true\n", "unknown keys ['skip']"),
    ],
)
def test_an_expectation_that_cannot_be_is_refused(tmp_path: Path, text: str, complaint: str):
    path = tmp_path / "0.5.9.toml"
    path.write_text(text)
    with pytest.raises(ExpectationError) as refused:
        read(path)
    assert complaint in str(refused.value)


def test_the_newest_release_is_judged_like_any_other():
    assert all(e.defect.reason and e.defect.link for e in expectations(newest().version).values())
