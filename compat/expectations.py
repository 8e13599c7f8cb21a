"""What each release is known to get wrong: ``expected/<version>.toml``.

A case that a file does not name must give the right answer there. A file has
two kinds of tables for them: ``defects.<id>`` (reason, upstream link, the patch
that mends it) and ``cases."<name>"`` (which defect, and what is observed: a
``result``, or the type it ``raises``). ``extension`` says what the wheel's
compiled CUDA operations hold.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from compat.cases import CASES, Answer
from compat.releases import FOLDER

RAISES = "raises "
"""How an answer says that the release raised, before the exception's type."""


class ExpectationError(ValueError):
    """An expectations file that cannot be used."""


@dataclass(frozen=True, slots=True)
class Defect:
    """One thing a release gets wrong."""

    reason: str
    link: str
    """Where upstream it is reported or mended."""


@dataclass(frozen=True, slots=True)
class Entry:
    """The known wrong answer of one release to one case."""

    case: str
    defect: Defect
    observed: Answer
    mended_by: tuple[str, ...] = ()
    """Patches that, together, turn the answer into the right one."""
    observed_patched: Answer = None
    """The answer with all patches on, where they change it without mending it."""

    @property
    def raises(self) -> str | None:
        """The exception's type, when one is raised."""
        word, _, name = (
            self.observed.partition(" ") if isinstance(self.observed, str) else ("",) * 3
        )
        return name if word == "raises" else None


@dataclass(frozen=True, slots=True)
class Extension:
    """The compiled CUDA operations in a release's wheel."""

    module: str
    """Dotted name."""
    fat_binaries: int
    sass: tuple[str, ...]
    """Architectures that every fat binary is compiled for."""
    ptx: tuple[str, ...]
    cuda_major: int
    """Of the CUDA runtime that must be there."""


@cache
def expectations(version: str) -> Mapping[str, Entry]:
    """The entries of one release by case name.

    Raises:
        ExpectationError: there is no file, or it does not fit the cases.
    """
    return read(_path(version))


def extension(version: str) -> Extension:
    """What the wheel of one release holds for GPUs.

    Raises:
        ExpectationError: there is no file, or it does not say.
    """
    path = _path(version)
    table = tomllib.loads(path.read_text(encoding="utf-8")).get("extension")
    if table is None:
        raise ExpectationError(f"{path} has no table [extension]")
    try:
        return Extension(**table | {key: tuple(table[key]) for key in ("sass", "ptx")})
    except (KeyError, TypeError) as error:
        raise ExpectationError(f"{path}: [extension]: {error}") from error


def _path(version: str) -> Path:
    path = FOLDER / "expected" / f"{version}.toml"
    if not path.is_file():
        raise ExpectationError(f"{path} is missing; write one for LMCache {version}")
    return path


def read(path: Path) -> Mapping[str, Entry]:
    """The entries of one file.

    Raises:
        ExpectationError: a case or defect is unknown, or a table is incomplete.
    """
    tables = tomllib.loads(path.read_text(encoding="utf-8"))
    defects = {name: Defect(**table) for name, table in tables.get("defects", {}).items()}
    entries = {}
    for name, table in tables.get("cases", {}).items():
        entries[name] = _entry(f"{path.name}: {name}", name, dict(table), defects)
    return entries


def _entry(where: str, name: str, table: dict[str, Any], defects: Mapping[str, Defect]) -> Entry:
    right = {case.name: case.right for case in CASES}
    if name not in right:
        raise ExpectationError(f"{where}: there is no such case")
    defect = table.pop("defect", None)
    if defect not in defects:
        raise ExpectationError(f"{where}: defect {defect!r} is none of {sorted(defects)}")
    observed = _answer(where, table)
    if observed == right[name]:
        raise ExpectationError(f"{where}: the observed answer is the right one; remove the entry")
    mended_by = tuple(table.pop("mended_by", ()))
    patched = table.pop("patched", None)
    if table:
        raise ExpectationError(f"{where}: unknown keys {sorted(table)}")
    return Entry(
        case=name,
        defect=defects[defect],
        observed=observed,
        mended_by=mended_by,
        observed_patched=None if patched is None else _answer(where, dict(patched)),
    )


def _answer(where: str, table: dict[str, Any]) -> Answer:
    given = [key for key in ("result", "raises") if key in table]
    if len(given) != 1:
        raise ExpectationError(f"{where}: give either result or raises, found {given}")
    value = table.pop(given[0])
    return f"{RAISES}{value}" if given[0] == "raises" else value
