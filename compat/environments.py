"""Throw-away copies of the pinned releases, fetched with plain pip and unpacked.

LMCache is pure enough to run from an unpacked wheel put first on the path, so
a release costs one download and no environment of its own: what it imports is
what the environment in use has.
"""

import hashlib
import subprocess
import sys
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path

from compat.releases import PinError, Release

DEFAULT_FOLDER = Path(".compat")
"""In the working directory: the root of the clone when `make` runs."""


class FetchError(RuntimeError):
    """pip could not fetch a wheel."""


def unpacked(
    release: Release, folder: Path = DEFAULT_FOLDER, note: Callable[[str], None] = lambda line: None
) -> Path:
    """The directory that holds the release's packages; fetched when missing.

    Args:
        release: a pinned release.
        folder: where wheels and unpacked releases are kept.
        note: told what is being fetched.

    Raises:
        FetchError: pip failed.
        PinError: the wheel's name or hash is not a pinned one.
    """
    target = folder / f"lmcache-{release.version}"
    if target.is_dir():
        return target
    wheel = _cached_wheel(release, folder)
    if wheel is None:
        note(f"fetching LMCache {release.version}")
        wheel = _fetch(release, folder)
    _check(release, wheel)
    # Renamed when complete, so that an interrupted unpacking is not taken for one.
    partial = folder / f"{target.name}.partial"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(partial)
    partial.rename(target)
    return target


def _cached_wheel(release: Release, folder: Path) -> Path | None:
    found = sorted((folder / "wheels").glob(f"lmcache-{release.version}-{_python_tag()}-*.whl"))
    return found[0] if found else None


def _fetch(release: Release, folder: Path) -> Path:
    wheels = folder / "wheels"
    wheels.mkdir(parents=True, exist_ok=True)
    _pip("download", "--no-deps", "--only-binary=:all:", "-d", str(wheels),
         f"lmcache=={release.version}")  # fmt: skip
    wheel = _cached_wheel(release, folder)
    if wheel is None:
        raise FetchError(f"pip said it fetched LMCache {release.version}, but no wheel is there")
    return wheel


def _pip(*arguments: str) -> None:
    command: Sequence[str] = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]
    done = subprocess.run([*command, *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise FetchError(f"pip {' '.join(arguments)} failed: {done.stderr.strip()[-500:]}")


def _check(release: Release, wheel: Path) -> None:
    pinned = release.wheels.get(wheel.name)
    found = hashlib.sha256(wheel.read_bytes()).hexdigest()
    if found != pinned:
        expected = pinned or f"none; known wheels are {', '.join(release.wheels)}"
        raise PinError(
            f"{wheel.name} has SHA-256 {found}, pinned is {expected}. "
            "Remove the file and fetch it again, or correct compat/releases.toml"
        )


def _python_tag() -> str:
    return f"cp{sys.version_info.major}{sys.version_info.minor}"
