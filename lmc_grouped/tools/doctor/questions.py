"""Run as a program: one question to an installed package, answered in a process of its own.

Importing torch, vLLM or LMCache may fail in many ways and may end the process; doctor
goes on. The reply goes to the file named on the command line, because these packages
write to standard output.
"""

import os
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec


class TorchFacts(msgspec.Struct, frozen=True, tag=True):
    """What torch says of itself."""

    version: str
    cuda: str | None
    """Version of CUDA that it is built for."""
    architectures: tuple[str, ...]
    """Of the CUDA devices that it holds code for."""


class EngineFacts(msgspec.Struct, frozen=True, tag=True):
    """What vLLM says of itself."""

    version: str


class SettingsFacts(msgspec.Struct, frozen=True, tag=True):
    """LMCache's configuration as the connector reads it."""

    budget_bytes: int
    """Of host memory, per worker."""
    disk_root: str | None
    disk_cap_bytes: int
    """Per worker; 0 without a disk."""


class PatchFacts(msgspec.Struct, frozen=True, tag=True):
    """What would become of each patch of LMCache's own connector, by name."""

    states: dict[str, str]


class Unanswered(msgspec.Struct, frozen=True, tag=True):
    """Why there is no answer."""

    reason: str
    is_refusal: bool = False
    """The package works, and refuses to serve: the reason says what to do."""


Reply = TorchFacts | EngineFacts | SettingsFacts | PatchFacts | Unanswered


def about_torch() -> Reply:
    """Version, CUDA and architectures of torch."""
    import torch

    cuda = torch.version.cuda
    # Empty where no device is to be seen, whatever torch holds: then the flags it was built with.
    found = torch.cuda.get_arch_list() if cuda else []
    if cuda and not found:
        found = (torch._C._cuda_getArchFlags() or "").split()
    return TorchFacts(str(torch.__version__), cuda, tuple(found))


def about_engine() -> Reply:
    """Version of vLLM, where its connectors can be ours."""
    from lmc_grouped.adapters import engine

    try:
        engine.check_version()
        return EngineFacts(engine.installed_version())
    except engine.EngineError as error:
        return Unanswered(str(error), is_refusal=True)


def about_settings() -> Reply:
    """LMCache's configuration, from its file or the environment."""
    from lmc_grouped.adapters.lmcache_config import read_settings
    from lmc_grouped.adapters.lmcache_file import ConfigError

    try:
        settings = read_settings({})
    except ConfigError as error:
        return Unanswered(str(error), is_refusal=True)
    disk = settings.disk
    return SettingsFacts(
        settings.budget_bytes,
        str(disk.root) if disk else None,
        disk.cap_bytes if disk else 0,
    )


def about_patches() -> Reply:
    """Which patches this LMCache would get beside this vLLM."""
    import patches

    names = os.environ.get("LMC_GROUPED_PATCHES") or "auto"
    return PatchFacts({name: str(state) for name, state in patches.apply(names).items()})


QUESTIONS: dict[str, Callable[[], Reply]] = {
    "torch": about_torch,
    "engine": about_engine,
    "settings": about_settings,
    "patches": about_patches,
}


def main() -> int:
    """The question's name and the file for the reply."""
    name, reply_path = sys.argv[1:]
    try:
        reply = QUESTIONS[name]()
    except Exception as error:  # noqa: BLE001 (whatever a package raises is the answer)
        reply = Unanswered(f"{type(error).__name__}: {error}")
    Path(reply_path).write_bytes(msgspec.json.encode(reply))
    return 0


if __name__ == "__main__":
    sys.exit(main())
