"""Shared libraries on disk or inside a wheel: what they need and which GPUs they serve."""

import mmap
import re
import zipfile
from dataclasses import dataclass
from pathlib import Path

from lmc_grouped.host import elf
from lmc_grouped.host.elf import BinaryError, Buffer
from lmc_grouped.host.fatbin import DeviceCode, device_code

_RUNTIME = re.compile(r"libcudart\.so\.(\d+)")


@dataclass(frozen=True, slots=True)
class Library:
    """One shared library."""

    name: str
    """Its path, or its path inside the wheel."""
    needed: tuple[str, ...]
    """Other libraries that must be there for it to load."""
    code: DeviceCode

    @property
    def cuda_major(self) -> int | None:
        """Of the CUDA runtime it needs; None where it needs none."""
        found = (_RUNTIME.match(name) for name in self.needed)
        return next((int(match[1]) for match in found if match), None)

    def describe_code(self) -> str:
        """SASS and PTX in words."""
        if not self.code.containers:
            return "no device code"
        sass = ", ".join(map(str, self.code.sass)) or "none"
        ptx = ", ".join(map(str, self.code.ptx)) or "none"
        unknown = "".join(
            f"; an image of unknown kind {k}" for k in sorted(self.code.unknown_kinds)
        )
        return f"SASS {sass}; PTX {ptx}{unknown}"


def read_library(path: Path) -> Library:
    """Read one file; only its tables, however large it is.

    Raises:
        BinaryError: no shared library, a damaged one, or it cannot be read; names the file.
    """
    try:
        with path.open("rb") as file:
            if not path.stat().st_size:
                raise BinaryError(f"{path}: the file is empty")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return _read(str(path), data)
    except OSError as error:
        raise BinaryError(f"{path} cannot be read: {error.strerror or error}") from error


def read_wheel(path: Path, inside: str = "") -> tuple[Library, ...]:
    """Read the shared libraries of a wheel, by name; nothing is unpacked or loaded.

    Args:
        path: the wheel.
        inside: only what lies under this folder of it.

    Raises:
        BinaryError: no wheel, or one with a library that cannot be read.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            names = sorted(n for n in archive.namelist() if n.startswith(inside) and _is_library(n))
            return tuple(_read(name, archive.read(name)) for name in names)
    except zipfile.BadZipFile as error:
        raise BinaryError(f"{path} is no wheel: {error}") from error
    except OSError as error:
        raise BinaryError(f"{path} cannot be read: {error.strerror or error}") from error


def _is_library(name: str) -> bool:
    return re.search(r"\.so(\.\d+)*$", name) is not None


def _read(name: str, data: Buffer) -> Library:
    try:
        parsed = elf.parse(data)
        return Library(name, parsed.needed(), device_code(parsed))
    except BinaryError as error:
        raise BinaryError(f"{name}: {error}") from error
