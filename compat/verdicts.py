"""Answers against expectations."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from compat.cases import CASES, Answer, Case, Conversion
from compat.expectations import Entry
from compat.probe import Report


class Kind(StrEnum):
    """What an answer means."""

    RIGHT = "right"
    KNOWN_DEFECT = "known defect"
    UNEXPECTED_PASS = "unexpected pass"
    CHANGED = "known defect, but another answer"
    NEW_DEFECT = "wrong, and no entry says so"


GREEN = frozenset({Kind.RIGHT, Kind.KNOWN_DEFECT})


@dataclass(frozen=True, slots=True)
class Verdict:
    """One case of one release."""

    case: Case
    kind: Kind
    answer: Answer
    entry: Entry | None
    remedy: str = ""
    """What to do about a verdict that is not green."""

    @property
    def is_right(self) -> bool:
        """Whether the answer is the right one, whatever was expected."""
        return self.kind in (Kind.RIGHT, Kind.UNEXPECTED_PASS)

    @property
    def is_green(self) -> bool:
        """Whether the answer is what the expectations say."""
        return self.kind in GREEN


def judge(report: Report, entries: Mapping[str, Entry], *, patched: bool = False) -> list[Verdict]:
    """One verdict per case: the release's own answers, or those with patches on."""
    answers = report.patched if patched else report.native
    return [
        _verdict(report.version, case, answers[case.name], entries.get(case.name), patched)
        for case in CASES
    ]


def judge_ours(report: Report) -> list[Verdict]:
    """One verdict per conversion: our converter has no known defects."""
    verdicts = []
    for case in CASES:
        if isinstance(case, Conversion) and case.ours:
            answer = report.ours[case.name]
            kind = Kind.RIGHT if answer == case.right_ours else Kind.NEW_DEFECT
            remedy = "" if kind is Kind.RIGHT else f"the right answer is {case.right_ours}"
            verdicts.append(Verdict(case, kind, answer, None, remedy))
    return verdicts


def _verdict(
    version: str, case: Case, answer: Answer, entry: Entry | None, patched: bool
) -> Verdict:
    where = f'compat/expected/{version}.toml, cases."{case.name}"'
    if entry is None:
        if answer == case.right:
            return Verdict(case, Kind.RIGHT, answer, None)
        remedy = f"the right answer is {case.right}; if upstream broke it, add {where}"
        return Verdict(case, Kind.NEW_DEFECT, answer, None, remedy)
    expected = _expected(case, entry, patched)
    if answer == expected:
        kind = Kind.RIGHT if answer == case.right else Kind.KNOWN_DEFECT
        return Verdict(case, kind, answer, entry)
    if answer == case.right:
        remedy = f"right {'with' if patched else 'without'} patches: retire or correct {where}"
        return Verdict(case, Kind.UNEXPECTED_PASS, answer, entry, remedy)
    return Verdict(case, Kind.CHANGED, answer, entry, f"{where} says {expected}")


def _expected(case: Case, entry: Entry, patched: bool) -> Answer:
    if not patched:
        return entry.observed
    if entry.mended_by:
        return case.right
    return entry.observed if entry.observed_patched is None else entry.observed_patched
