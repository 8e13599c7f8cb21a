"""What doctor found out, one line each."""

from collections.abc import Sequence
from enum import StrEnum

import msgspec


class State(StrEnum):
    """What a finding means for serving."""

    OK = "ok"
    NOTE = "note"
    """Neither good nor bad."""
    WARN = "warn"
    """Serving works, but not as it could, or it may fail."""
    FAIL = "fail"
    """Serving would fail."""


class Finding(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line."""

    subject: str
    """A short name, the same in every report."""
    state: State
    text: str
    """What was seen."""
    remedy: str = ""
    """What to do about it."""


class Section(msgspec.Struct, frozen=True):
    """Findings that belong together."""

    title: str
    findings: tuple[Finding, ...]


def serves(sections: Sequence[Section]) -> bool:
    """Whether nothing that was found stops serving."""
    return all(each.state is not State.FAIL for section in sections for each in section.findings)


def ok(subject: str, text: str) -> Finding:
    """Nothing to do."""
    return Finding(subject, State.OK, text)


def note(subject: str, text: str, remedy: str = "") -> Finding:
    """Worth knowing."""
    return Finding(subject, State.NOTE, text, remedy)


def warn(subject: str, text: str, remedy: str) -> Finding:
    """Worth doing something about."""
    return Finding(subject, State.WARN, text, remedy)


def fail(subject: str, text: str, remedy: str) -> Finding:
    """Serving would fail until something is done."""
    return Finding(subject, State.FAIL, text, remedy)
