"""Whether LMCache's compiled operations can run on a device.

Its extension is read and its load is tried elsewhere: neither the version nor a package's
name says what a build holds. Releases hold no code for compute capability 7.0.
"""

import importlib.util
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.machinery import EXTENSION_SUFFIXES
from itertools import product
from pathlib import Path

from lmc_grouped.host.elf import BinaryError
from lmc_grouped.host.libraries import Library, read_library

PACKAGE = "lmcache"
EXTENSIONS = ("cuda_ops", "c_ops")
"""Names of the extension with the CUDA operations: from 0.5.4, and before."""
LOAD_TIMEOUT_SECONDS = 120
_LOAD = """
import importlib.util, sys
import torch
spec = importlib.util.spec_from_file_location(sys.argv[1], sys.argv[2])
spec.loader.exec_module(importlib.util.module_from_spec(spec))
"""
"""torch first: it brings the libraries that the extension needs."""
_MAPS = Path("/proc/self/maps")


class ExtensionError(RuntimeError):
    """There is no extension to be asked: why."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Yes or no, and why."""

    can_run: bool
    reason: str


@dataclass(frozen=True, slots=True)
class Extension:
    """The compiled operations of one LMCache."""

    module: str
    """Dotted name."""
    library: Library

    def code_for(self, capability: tuple[int, int]) -> Answer:
        """Whether it holds code for a device of that compute capability."""
        number = capability[0] * 10 + capability[1]
        holds = f"{self.module} holds {self.library.describe_code()}"
        if self.library.code.serves(capability):
            return Answer(True, f"{holds}: enough for sm_{number}")
        return Answer(False, f"{holds}: nothing for sm_{number}")


def installed() -> Extension:
    """The extension of the LMCache on the path; neither is imported.

    Raises:
        ExtensionError: LMCache is missing, has no CUDA extension, or it cannot be read.
    """
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise ExtensionError("LMCache is not installed")
    folder = Path(spec.submodule_search_locations[0])
    for name, suffix in product(EXTENSIONS, EXTENSION_SUFFIXES):
        path = folder / f"{name}{suffix}"
        if path.exists():
            try:
                return Extension(f"{PACKAGE}.{name}", read_library(path))
            except BinaryError as error:
                raise ExtensionError(str(error)) from error
    raise ExtensionError(
        f"LMCache in {folder} has no compiled CUDA operations for this Python "
        f"(no {' or '.join(EXTENSIONS)} that ends in {', '.join(EXTENSION_SUFFIXES)})"
    )


def of_wheel(libraries: tuple[Library, ...]) -> Extension | None:
    """The extension among the libraries of an LMCache wheel; None where there is none."""
    for name in EXTENSIONS:
        for library in libraries:
            if library.name.startswith(f"{PACKAGE}/{name}."):
                return Extension(f"{PACKAGE}.{name}", library)
    return None


def is_loaded(extension: Extension) -> bool:
    """Whether this process has it mapped: true after LMCache's own import succeeded."""
    return str(Path(extension.library.name).resolve()) in _MAPS.read_text(errors="replace")


def load_failure(extension: Extension) -> str | None:
    """Why the extension does not load; None when it does. Tried in another process."""
    command = [sys.executable, "-P", "-c", _LOAD, extension.module, extension.library.name]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=LOAD_TIMEOUT_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return f"loading it took more than {LOAD_TIMEOUT_SECONDS} s"
    if done.returncode == 0:
        return None
    if done.returncode < 0:
        return f"the process that loaded it was ended by signal {-done.returncode}"
    return (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]


def can_run(
    capability: tuple[int, int],
    *,
    find: Callable[[], Extension] = installed,
    try_load: Callable[[Extension], str | None] = load_failure,
) -> Answer:
    """Whether LMCache's compiled operations run on a device of that compute capability.

    Args:
        capability: of the device, such as ``(7, 0)``.
        find: gives the extension to judge.
        try_load: says why it does not load.
    """
    try:
        extension = find()
    except ExtensionError as error:
        return Answer(False, str(error))
    answer = extension.code_for(capability)
    if not answer.can_run:
        return answer
    failure = None if is_loaded(extension) else try_load(extension)
    if failure is not None:
        return Answer(False, f"{extension.module} does not load: {failure}")
    return Answer(True, f"{answer.reason}, and it loads")
