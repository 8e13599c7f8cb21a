"""Which way of copying a group takes, and why: a decision without torch or a device.

``docs/transfer.md`` describes the ways.
"""

from dataclasses import dataclass

AUTO = "auto"
CPU, BATCH, RUNS, KERNEL, STAGED, TORCH = "cpu", "batch", "runs", "kernel", "staged", "torch"
LMCACHE = "lmcache"
RUNGS = (CPU, BATCH, RUNS, KERNEL, LMCACHE, STAGED, TORCH)
SETTING = "lmc_grouped.transfer"

LONG_RUN_BYTES = 60 * 1024
"""From here on a run is copied as it is. Below, starting a copy takes longer than the copy:
an estimate from the cost of a submission, not measured on a GPU by this project."""
BATCH_DRIVER = 12080
"""The first driver with ``cuMemcpyBatchAsync``."""


class LadderError(ValueError):
    """A way of copying was asked for that does not exist, or not here."""


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """What is known of the engine's device before any copy."""

    type: str
    """torch's name: ``cpu``, ``cuda``, ..."""
    capability: tuple[int, int] | None = None
    """Compute capability of a CUDA device."""
    driver_version: int | None = None
    """As ``cuDriverGetVersion`` has it: 12080 is 12.8. ``None``: there is no usable driver."""
    driver_missing: str = "no CUDA driver (libcuda.so.1) answered"
    """Why not, where there is none."""
    kernel_missing: str | None = "the gather kernel was not asked for"
    """Why there is no gather kernel for this device; ``None`` where there is one."""
    lmcache_missing: str | None = "LMCache's operations were not asked for"
    """Why LMCache's compiled operations cannot be had; ``None`` where they can."""
    has_host_addresses: bool = True
    """Whether the device finds registered host memory at the host's own addresses. Not so under
    WSL2, where a batch with them fails on the device
    (https://github.com/sgl-project/sglang/issues/40232)."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The way chosen, and the reason a user reads at start and in ``lmc-grouped doctor``."""

    rung: str
    reason: str


def check_name(name: object) -> None:
    """Refuse a setting that names no way of copying.

    Raises:
        LadderError: with the value and what is allowed.
    """
    if name != AUTO and name not in RUNGS:
        raise LadderError(
            f"{SETTING} is {name!r}; allowed are {AUTO} and, where the device can take them, "
            f"{', '.join(RUNGS)}"
        )


def choose(run_bytes: int, facts: DeviceFacts, forced: str | None = None) -> Choice:
    """The way the pages of one group are copied.

    ``kernel`` and ``lmcache`` are never chosen, only asked for: neither has run on a GPU, and one
    compiles code while the other loads somebody else's.

    Args:
        run_bytes: bytes of one copy, ``PagePlan.mean_run_bytes``: a page divided by its runs.
        facts: the device that holds the engine's cache.
        forced: the user's word, ``lmc_grouped.transfer``; ``None`` and ``auto`` leave it open.

    Raises:
        LadderError: ``forced`` is unknown, or impossible on this device.
    """
    if forced is not None and forced != AUTO:
        check_name(forced)
        if (why_not := refusal(forced, facts)) is not None:
            possible = ", ".join(rung for rung in RUNGS if refusal(rung, facts) is None)
            raise LadderError(
                f"{SETTING} is {forced!r}, which cannot be had here: {why_not}; allowed here are "
                f"{AUTO}, {possible}"
            )
        return Choice(forced, f"asked for by {SETTING}")
    if facts.type == "cpu":
        return Choice(CPU, "the engine's cache is in host memory")
    if (no_driver := refusal(RUNS, facts)) is not None:
        return Choice(TORCH, f"torch's own synchronous copies: {no_driver}")
    return _choose_on_cuda(run_bytes, facts)


def _choose_on_cuda(run_bytes: int, facts: DeviceFacts) -> Choice:
    if run_bytes < LONG_RUN_BYTES:
        return Choice(
            STAGED,
            f"runs of {run_bytes} bytes are below {LONG_RUN_BYTES}, where starting a copy takes "
            "longer than the copy (estimated, not measured on a GPU)",
        )
    long = f"runs of {run_bytes} bytes are copied as they are"
    if (no_batch := refusal(BATCH, facts)) is None:
        return Choice(BATCH, long)
    return Choice(RUNS, f"{long}; {no_batch}")


def refusal(rung: str, facts: DeviceFacts) -> str | None:
    """Why a way of copying cannot be had on a device; ``None`` where it can."""
    if rung == TORCH:
        return None
    needed = CPU if rung == CPU else "cuda"
    if facts.type != needed:
        return f"the engine's cache is on a {facts.type} device"
    return None if rung == CPU else _refusal_on_cuda(rung, facts)


def _refusal_on_cuda(rung: str, facts: DeviceFacts) -> str | None:
    if facts.driver_version is None:
        return facts.driver_missing
    if rung in (BATCH, KERNEL, LMCACHE) and not facts.has_host_addresses:
        return (
            "this device has registered host memory at other addresses than the host (as in WSL2)"
        )
    if rung == BATCH and facts.driver_version < BATCH_DRIVER:
        return (
            f"the driver has CUDA {version_text(facts.driver_version)}, and cuMemcpyBatchAsync "
            f"came with {version_text(BATCH_DRIVER)}"
        )
    return {KERNEL: facts.kernel_missing, LMCACHE: facts.lmcache_missing}.get(rung)


def version_text(driver_version: int) -> str:
    """``12080`` -> ``12.8``."""
    return f"{driver_version // 1000}.{driver_version % 1000 // 10}"
