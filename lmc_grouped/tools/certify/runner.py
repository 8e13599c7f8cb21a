"""Runs the checks and makes a row of whatever happens to them."""

import sys
from collections.abc import Callable, Sequence
from typing import TextIO

from lmc_grouped.tools.certify.checks import CHECKS, Check
from lmc_grouped.tools.certify.discovery import Offer
from lmc_grouped.tools.certify.errors import RequestRefused, ServerGone
from lmc_grouped.tools.certify.judge import failed, not_checked
from lmc_grouped.tools.certify.report import Row
from lmc_grouped.tools.certify.session import NotCheckable, Session

Progress = Callable[[str], None]
"""Told what is being checked; an empty text when all is done."""


def run_checks(
    session: Session, progress: Progress, checks: Sequence[Check] = CHECKS
) -> tuple[list[Row], str | None]:
    """Make every check.

    Returns the rows, one for every name of `checks`, and why the run broke off;
    None when it did not.
    """
    rows: list[Row] = []
    aborted: str | None = None
    for check in checks:
        reason = _missing(check, session.offer)
        if aborted is not None:
            reason = "the server stopped answering"
        if reason is not None:
            rows += [not_checked(name, reason) for name in check.names]
            continue
        progress(", ".join(check.names))
        made, aborted = _run_check(check, session)
        rows += made
    progress("")
    return rows, aborted


def _run_check(check: Check, session: Session) -> tuple[list[Row], str | None]:
    rows: list[Row] = []
    aborted: str | None = None
    try:
        rows += check.run(session)
    except NotCheckable as problem:
        rows += _fill(check.names[len(rows) :], str(problem))
    except RequestRefused as refusal:
        rows.append(failed(check.names[len(rows)], str(refusal)))
        rows += _fill(check.names[len(rows) :], "a request before it was refused")
    except ServerGone as problem:
        aborted = str(problem)
        rows += _fill(check.names[len(rows) :], "the server stopped answering")
    return rows, aborted


def _fill(names: Sequence[str], reason: str) -> list[Row]:
    return [not_checked(name, reason) for name in names]


def _missing(check: Check, offer: Offer) -> str | None:
    return offer.no_counters or (offer.no_reset if check.needs_reset else None)


def stderr_progress(stream: TextIO = sys.stderr) -> Progress:
    """Progress on one line that overwrites itself; plain lines off a terminal."""

    def on_terminal(text: str) -> None:
        stream.write(f"\r\x1b[Kchecking: {text}" if text else "\r\x1b[K")
        stream.flush()

    def off_terminal(text: str) -> None:
        if text:
            stream.write(f"checking: {text}\n")

    return on_terminal if stream.isatty() else off_terminal
