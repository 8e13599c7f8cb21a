"""The pins: which releases exist, with which wheels, and what field reports name."""

import sys
import tomllib
from dataclasses import dataclass, field
from datetime import date
from functools import cache
from pathlib import Path

FOLDER = Path(__file__).resolve().parent


class PinError(ValueError):
    """A release that is not pinned, or a wheel that is not the pinned one."""


@dataclass(frozen=True, slots=True)
class Release:
    """One LMCache release."""

    version: str
    released: date
    wheels: dict[str, str] = field(repr=False, compare=False)
    """File name -> SHA-256, for the interpreters and platforms we know."""
    distribution: str = "lmcache"
    python_tag: str = f"cp{sys.version_info.major}{sys.version_info.minor}"
    """Which of the wheels is wanted."""
    pip_options: tuple[str, ...] = ()
    """What pip must be told to fetch it."""
    beside: tuple[str, ...] = ()
    """Requirements installed into the same directory."""


@dataclass(frozen=True, slots=True)
class Revision:
    """A commit that a field report names and no index carries."""

    commit: str
    what: str
    observed: str
    link: str


@cache
def releases() -> tuple[Release, ...]:
    """All pinned releases, oldest first."""
    return tuple(Release(**entry) for entry in _pins()["release"])


@cache
def revisions() -> tuple[Revision, ...]:
    """The revisions that are recorded as facts."""
    return tuple(Revision(**entry) for entry in _pins()["revision"])


def newest() -> Release:
    """The newest pinned release."""
    return releases()[-1]


def find(version: str) -> Release:
    """The pinned release of that version.

    Raises:
        PinError: it is not pinned.
    """
    for release in releases():
        if release.version == version:
            return release
    known = ", ".join(release.version for release in releases())
    raise PinError(
        f"LMCache {version} is not pinned; pinned are {known}. "
        "Add a [[release]] to compat/releases.toml and a file to compat/expected/"
    )


def is_pinned(version: str) -> bool:
    """Whether that version is pinned."""
    return any(release.version == version for release in releases())


@cache
def _pins() -> dict[str, list[dict]]:
    return tomllib.loads((FOLDER / "releases.toml").read_text(encoding="utf-8"))
