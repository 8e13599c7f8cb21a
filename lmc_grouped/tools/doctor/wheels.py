"""`lmc-grouped doctor --wheel`: what the libraries in wheels are compiled for."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from lmc_grouped.tools.errors import ToolError
from lmc_grouped.tools.tables import Align, format_table

if TYPE_CHECKING:
    from lmc_grouped.host.libraries import Library


class LibraryFacts(msgspec.Struct, frozen=True):
    """One library with code for GPUs."""

    file: str
    """The wheel, or the library itself."""
    library: str
    """Its path inside the wheel."""
    fat_binaries: int
    sass: tuple[str, ...]
    ptx: tuple[str, ...]
    needed: tuple[str, ...]
    """Libraries that must be there for it to load."""
    cuda_major: int | None
    """Of the CUDA runtime among them."""


def read_files(paths: Sequence[Path]) -> list[LibraryFacts]:
    """All libraries with device code in wheels, or shared libraries given by themselves.

    Raises ToolError naming a file that cannot be read.
    """
    from lmc_grouped.host.elf import BinaryError
    from lmc_grouped.host.libraries import read_library, read_wheel

    facts = []
    for path in paths:
        try:
            libraries = read_wheel(path) if path.suffix == ".whl" else (read_library(path),)
        except BinaryError as error:
            raise ToolError(f"--wheel: {error}") from error
        facts += [_facts(path, each) for each in libraries if each.code.containers]
    return facts


def _facts(path: Path, library: "Library") -> LibraryFacts:
    return LibraryFacts(
        file=path.name,
        library=library.name,
        fat_binaries=len(library.code.containers),
        sass=tuple(map(str, library.code.sass)),
        ptx=tuple(map(str, library.code.ptx)),
        needed=library.needed,
        cuda_major=library.cuda_major,
    )


def format_files(paths: Sequence[Path], facts: Sequence[LibraryFacts]) -> str:
    """A line per library; files without any are named below."""
    headers = ["file", "library", "compiled for", "PTX", "CUDA runtime"]
    rows = [
        [
            "-".join(each.file.split("-")[:2]),
            each.library,
            " ".join(name.removeprefix("sm_") for name in each.sass) or "none",
            " ".join(name.removeprefix("compute_") for name in each.ptx) or "none",
            str(each.cuda_major or "none"),
        ]
        for each in facts
    ]
    lines = [format_table(headers, rows, [Align.LEFT] * len(headers))] if rows else []
    told = {each.file for each in facts}
    lines += [f"{path.name}: no code for GPUs" for path in paths if path.name not in told]
    return "\n".join(lines)
