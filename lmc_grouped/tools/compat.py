"""Ask an LMCache release what it does with KV-cache groups, without and with our patches.

Needs vLLM beside LMCache, and starts neither an engine nor a server. The answers
of a pinned release are compared with what is known of it; those of any other
with the newest pinned one.

exit status: 0 every answer is as known, or the release is not a pinned one;
1 an answer differs from what is known; 2 bad input, or nothing can be asked.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from lmc_grouped.tools.errors import ToolError
from lmc_grouped.tools.tables import Align, format_table

if TYPE_CHECKING:
    from compat.probe import Report
    from compat.verdicts import Verdict


@dataclass(frozen=True, slots=True)
class ReleaseAnswers:
    """One release, its verdicts, and what they were measured against."""

    version: str
    judged_by: str
    """The pinned release whose known defects it was compared with."""
    native: "Sequence[Verdict]"
    patched: "Sequence[Verdict]"
    ours: "Sequence[Verdict]"
    patch_states: Mapping[str, str]

    @property
    def is_pinned(self) -> bool:
        """Whether it was compared with its own expectations."""
        return self.version == self.judged_by

    @property
    def differences(self) -> "list[tuple[str, Verdict]]":
        """Who was asked, and every verdict that is not what is known."""
        asked = (
            ("the release", self.native),
            ("the patched release", self.patched),
            ("our converter", self.ours),
        )
        return [(who, v) for who, verdicts in asked for v in verdicts if not v.is_green]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `lmc-grouped compat`."""
    add = parser.add_argument
    add("--all", action="store_true", help="ask every pinned release; fetches them with pip")
    add("--json", action="store_true", help="print the answers as JSON")
    add(
        "--directory", type=Path, default=Path(".compat"), metavar="DIR",
        help="where fetched releases are kept; default %(default)s",
    )  # fmt: skip


def run(arguments: argparse.Namespace) -> int:
    """Answers on stdout, progress on stderr."""
    releases = _pinned(arguments.directory) if arguments.all else {_installed(): None}
    answers = [_judge(report) for report in _ask(releases)]
    if arguments.json:
        text = msgspec.json.format(msgspec.json.encode([_plain(a) for a in answers]), indent=2)
        sys.stdout.write(text.decode() + "\n")
    else:
        print(_matrix(answers) if arguments.all else _single(answers[0]))
        for each in answers:
            _print_differences(each)
    return int(any(each.is_pinned and each.differences for each in answers))


def _installed() -> str:
    try:
        return metadata.version("lmcache")
    except metadata.PackageNotFoundError:
        raise ToolError(
            "LMCache is not installed here; install it, or ask the pinned releases with --all"
        ) from None


def _pinned(folder: Path) -> dict[str, Path | None]:
    from compat.environments import FetchError, unpacked
    from compat.releases import PinError, releases

    try:
        return {
            release.version: unpacked(release, folder, lambda line: print(line, file=sys.stderr))
            for release in releases()
        }
    except (FetchError, PinError, OSError) as error:
        raise ToolError(f"--all: {error}") from error


def _ask(releases: Mapping[str, Path | None]) -> "list[Report]":
    from compat.runner import ProbeError, ask, request

    try:
        reports = ask([request(version, folder) for version, folder in releases.items()])
    except ProbeError as error:
        raise ToolError(f"nothing could be asked: {error}") from error
    for report in reports:
        if report.failure:
            raise ToolError(f"LMCache {report.version} could not be asked: {report.failure}")
    return reports


def _judge(report: "Report") -> ReleaseAnswers:
    from compat.expectations import expectations
    from compat.releases import is_pinned, newest
    from compat.verdicts import judge, judge_ours

    judged_by = report.version if is_pinned(report.version) else newest().version
    entries = expectations(judged_by)
    return ReleaseAnswers(
        version=report.version,
        judged_by=judged_by,
        native=judge(report, entries),
        patched=judge(report, entries, patched=True),
        ours=judge_ours(report),
        patch_states=report.patch_states,
    )


def _word(verdict: "Verdict") -> str:
    if verdict.is_right:
        return "right"
    raised = isinstance(verdict.answer, str) and verdict.answer.startswith("raises ")
    return "raises" if raised else "wrong"


def _single(answers: ReleaseAnswers) -> str:
    ours = {verdict.case.name: _word(verdict) for verdict in answers.ours}
    rows = [
        [native.case.title, _word(native), _word(patched), ours.get(native.case.name, "-")]
        for native, patched in zip(answers.native, answers.patched, strict=True)
    ]
    headers = ["question", answers.version, "with patches", "our converter"]
    states = "".join(f"\n{name}: {state}" for name, state in answers.patch_states.items())
    return format_table(headers, rows, [Align.LEFT] * len(headers)) + "\n" + states


def _matrix(every: Sequence[ReleaseAnswers]) -> str:
    def cell(native: "Verdict", patched: "Verdict") -> str:
        plain, mended = _word(native), _word(patched)
        return plain if plain == mended else f"{plain} -> {mended}"

    columns = [
        [cell(*pair) for pair in zip(answers.native, answers.patched, strict=True)]
        for answers in every
    ]
    titles = [verdict.case.title for verdict in every[0].native]
    headers = ["question (-> with patches)", *(answers.version for answers in every)]
    rows = [list(row) for row in zip(titles, *columns, strict=True)]
    return format_table(headers, rows, [Align.LEFT] * len(headers))


def _print_differences(answers: ReleaseAnswers) -> None:
    against = "what is known of it" if answers.is_pinned else f"LMCache {answers.judged_by}"
    if not answers.is_pinned:
        print(f"\nLMCache {answers.version} is not pinned: compared with {against}")
    if not answers.differences:
        print(f"\nLMCache {answers.version}: every answer as in {against}")
        return
    print(f"\nLMCache {answers.version}: differs from {against}")
    for who, verdict in answers.differences:
        print(f"  {who}, {verdict.case.name}: {verdict.kind}\n    answer: {verdict.answer}")
        print(f"    {verdict.remedy}")


def _plain(answers: ReleaseAnswers) -> dict[str, Any]:
    def listed(verdicts: "Sequence[Verdict]") -> list[dict[str, Any]]:
        return [
            {
                "case": v.case.name,
                "question": v.case.title,
                "answer": v.answer,
                "is_right": v.is_right,
                "verdict": str(v.kind),
            }
            for v in verdicts
        ]

    return {
        "lmcache": answers.version,
        "judged_by": answers.judged_by,
        "patches": dict(answers.patch_states),
        "release": listed(answers.native),
        "patched": listed(answers.patched),
        "our_converter": listed(answers.ours),
    }
