"""Findings on one screen."""

import textwrap
from collections.abc import Sequence

from lmc_grouped.tools.doctor.findings import Finding, Section, State, serves

WIDTH = 100


def format_report(sections: Sequence[Section]) -> str:
    """Sections, then one line that says whether serving would work."""
    every = [finding for section in sections for finding in section.findings]
    column = max(len(finding.subject) for finding in every) + 2
    lines = []
    for section in sections:
        lines.append(section.title)
        lines += [line for finding in section.findings for line in _lines(finding, column)]
        lines.append("")
    failing = [finding.subject for finding in every if finding.state is State.FAIL]
    warned = [finding.subject for finding in every if finding.state is State.WARN]
    if serves(sections):
        lines.append("nothing found here stops serving")
    else:
        lines.append(f"serving would fail: {', '.join(failing)}")
    if warned:
        lines.append(f"look at: {', '.join(warned)}")
    return "\n".join(lines)


def _lines(finding: Finding, column: int) -> list[str]:
    head = f"  {finding.state:<5} {finding.subject:<{column}}"
    lines = textwrap.wrap(
        finding.text,
        WIDTH,
        initial_indent=head,
        subsequent_indent=" " * len(head),
        break_long_words=False,
        break_on_hyphens=False,
    )
    if finding.remedy and finding.state is not State.OK:
        lines += textwrap.wrap(
            finding.remedy,
            WIDTH,
            initial_indent=" " * len(head) + "-> ",
            subsequent_indent=" " * (len(head) + 3),
            break_long_words=False,
            break_on_hyphens=False,
        )
    return lines
