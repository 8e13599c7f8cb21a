"""Throw-away copies of what is pinned, fetched with plain pip and unpacked.

An LMCache release is pure enough to run from an unpacked wheel put first on the path, so it
costs one download and no environment of its own: what it imports is what the
environment in use has. So are the Python sources of an engine.
"""

import hashlib
import subprocess
import sys
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from compat.releases import PinError

_BARE = ("--no-deps", "--only-binary=:all:")

DEFAULT_FOLDER = Path(".compat")
"""In the working directory: the root of the clone when `make` runs."""


class Pinned(Protocol):
    """What is needed to fetch something: a ``Release`` or an ``Engine``."""

    @property
    def distribution(self) -> str: ...
    @property
    def version(self) -> str: ...
    @property
    def wheels(self) -> Mapping[str, str]: ...
    @property
    def python_tag(self) -> str: ...
    @property
    def pip_options(self) -> Sequence[str]: ...
    @property
    def beside(self) -> Sequence[str]: ...


class FetchError(RuntimeError):
    """pip could not fetch a wheel."""


def unpacked(
    pinned: Pinned, folder: Path = DEFAULT_FOLDER, note: Callable[[str], None] = lambda line: None
) -> Path:
    """The directory that holds the packages of what is pinned; fetched when missing.

    Args:
        pinned: a release or an engine.
        folder: where wheels and unpacked wheels are kept.
        note: told what is being fetched.

    Raises:
        FetchError: pip failed.
        PinError: the wheel's name or hash is not a pinned one.
    """
    target = folder / f"{pinned.distribution}-{pinned.version}"
    if target.is_dir():
        return target
    wheel = wheel_of(pinned, folder, note)
    # Renamed when complete, so that an interrupted unpacking is not taken for one.
    partial = folder / f"{target.name}.partial"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(partial)
    if pinned.beside:
        _pip("install", *_BARE, "--upgrade", "--target", str(partial), *pinned.beside)
    partial.rename(target)
    return target


def wheel_of(
    pinned: Pinned, folder: Path = DEFAULT_FOLDER, note: Callable[[str], None] = lambda line: None
) -> Path:
    """The wheel of what is pinned; fetched when missing.

    Raises:
        FetchError: pip failed.
        PinError: the wheel's name or hash is not a pinned one.
    """
    wheel = _cached_wheel(pinned, folder)
    if wheel is None:
        note(f"fetching {pinned.distribution} {pinned.version}")
        wheel = _fetch(pinned, folder)
    _check(pinned, wheel)
    return wheel


def _cached_wheel(pinned: Pinned, folder: Path) -> Path | None:
    name = pinned.distribution.replace("-", "_")
    pattern = f"{name}-{pinned.version}-{pinned.python_tag}-*.whl"
    found = sorted((folder / "wheels").glob(pattern))
    return found[0] if found else None


def _fetch(pinned: Pinned, folder: Path) -> Path:
    wheels = folder / "wheels"
    wheels.mkdir(parents=True, exist_ok=True)
    requirement = f"{pinned.distribution}=={pinned.version}"
    _pip("download", *_BARE, *pinned.pip_options, "-d", str(wheels), requirement)
    wheel = _cached_wheel(pinned, folder)
    if wheel is None:
        raise FetchError(f"pip said it fetched {requirement}, but no such wheel is in {wheels}")
    return wheel


def _pip(*arguments: str) -> None:
    command: Sequence[str] = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]
    done = subprocess.run([*command, *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise FetchError(f"pip {' '.join(arguments)} failed: {done.stderr.strip()[-500:]}")


def _check(pinned: Pinned, wheel: Path) -> None:
    expected = pinned.wheels.get(wheel.name)
    found = hashlib.sha256(wheel.read_bytes()).hexdigest()
    if found != expected:
        known = expected or f"none; known wheels are {', '.join(pinned.wheels)}"
        raise PinError(
            f"{wheel.name} has SHA-256 {found}, pinned is {known}. "
            "Remove the file and fetch it again, or correct the pin in compat/"
        )
