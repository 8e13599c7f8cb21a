"""Host memory, its limits and `/dev/shm` against the configured budget."""

import os
import resource
from pathlib import Path

from lmc_grouped.tools.doctor.findings import Finding, fail, note, ok, warn
from lmc_grouped.tools.doctor.questions import Reply, SettingsFacts, Unanswered
from lmc_grouped.tools.plan.sizes import format_size

MEMINFO = Path("/proc/meminfo")
CGROUP = Path("/sys/fs/cgroup")
SHARED_MEMORY = Path("/dev/shm")
SCHEDULER_QUEUE_BYTES = 10 * 16 * 2**20
RANK_QUEUE_BYTES = 10 * 24 * 2**20
"""vLLM's queues between the processes of a server: chunks, and bytes of one. They take what
is written into them; where that is not to be had, a process is killed by a bus error."""


def check_settings(reply: Reply | None) -> list[Finding]:
    """LMCache's configuration; None: LMCache is not there to read it."""
    subject = "configuration"
    source = os.environ.get("LMCACHE_CONFIG_FILE") or "LMCACHE_* variables and defaults"
    if reply is None:
        return [note(subject, "not read: LMCache is not installed")]
    if isinstance(reply, SettingsFacts):
        budget = f"{format_size(reply.budget_bytes)} of host memory per worker"
        disk = f", {reply.disk_root} on disk" if reply.disk_root else ""
        return [ok(subject, f"{source}: {budget}{disk}")]
    assert isinstance(reply, Unanswered)
    if reply.is_refusal:
        return [fail(subject, f"{source}: {reply.reason}", "correct the setting it names")]
    return [fail(subject, f"LMCache cannot be asked: {reply.reason}", "reinstall LMCache")]


def check_memory(settings: Reply | None, workers: int) -> list[Finding]:
    """Whether what all workers take at start is there."""
    subject = "host memory"
    available, total = _meminfo_bytes("MemAvailable"), _meminfo_bytes("MemTotal")
    limit = _cgroup_free_bytes()
    text = f"{format_size(available)} of {format_size(total)} available"
    if limit is not None and limit < available:
        available = limit
        text += f", {format_size(limit)} of it within this container's limit"
    if not isinstance(settings, SettingsFacts):
        return [note(subject, text)]
    wanted = settings.budget_bytes * workers
    who = f"{workers} workers take" if workers > 1 else "the worker takes"
    text += f"; {who} {format_size(wanted)} at start"
    if wanted > available:
        fitting = available // workers * 10 // 2**30 / 10
        return [
            fail(
                subject,
                text,
                f"set max_local_cpu_size to {fitting} or less (GB per worker), or end what uses "
                "the memory",
            )
        ]
    return [ok(subject, text)]


def check_locked_memory(settings: Reply | None, *, has_devices: bool) -> list[Finding]:
    """The limit for memory that must not be paged out, which copies to a GPU want."""
    subject = "memlock"
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if soft == resource.RLIM_INFINITY:
        return [ok(subject, "unlimited")]
    text = f"{format_size(soft)} per process"
    if not (has_devices and isinstance(settings, SettingsFacts)) or soft >= settings.budget_bytes:
        return [ok(subject, text)]
    return [
        warn(
            subject,
            f"{text}, below the {format_size(settings.budget_bytes)} that a worker registers with "
            "CUDA; whether the driver counts that was not tested on a GPU",
            "ulimit -l unlimited, or docker run --ulimit memlock=-1",
        )
    ]


def check_shared_memory(workers: int) -> list[Finding]:
    """Room for the queues between vLLM's processes; our pages are not there."""
    subject = "/dev/shm"
    try:
        found = os.statvfs(SHARED_MEMORY)
    except OSError as error:
        return [
            fail(
                subject,
                f"cannot be used: {error.strerror}",
                "mount a tmpfs there: vLLM's processes talk through it",
            )
        ]
    free, size = found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize
    text = f"{format_size(free)} of {format_size(size)} free"
    wanted = SCHEDULER_QUEUE_BYTES + workers * RANK_QUEUE_BYTES
    if free < wanted:
        return [
            warn(
                subject,
                f"{text}; the queues of vLLM's processes can grow to {format_size(wanted)}",
                "docker run --shm-size=2g or --ipc=host, or remove leftovers",
            )
        ]
    return [ok(subject, text)]


def check_hash_seed(settings: Reply | None) -> list[Finding]:
    """Whether block hashes are the same after a restart."""
    subject, seed = "PYTHONHASHSEED", os.environ.get("PYTHONHASHSEED")
    if seed not in (None, "random"):
        return [ok(subject, str(seed))]
    state = "not set" if seed is None else seed
    if not (isinstance(settings, SettingsFacts) and settings.disk_root):
        return [note(subject, f"{state}; needed with local_disk only")]
    hashes = "hashes that vLLM does not seed itself" if seed is None else "the hash `builtin`"
    return [
        warn(
            subject,
            f"{state}, and local_disk is on: with {hashes} the start is refused",
            "export PYTHONHASHSEED=0 for every process of the server",
        )
    ]


def _meminfo_bytes(name: str) -> int:
    for line in MEMINFO.read_text().splitlines():
        key, _, value = line.partition(":")
        if key == name:
            return int(value.split()[0]) * 1024
    raise OSError(f"{MEMINFO} has no {name}")


def _cgroup_free_bytes() -> int | None:
    """What this container may still take; None where nothing limits it.

    Its use counts cached files too, of which the kernel gives back the inactive ones.
    """
    v1 = CGROUP / "memory"
    for limit, usage, stat, cached in (
        (CGROUP / "memory.max", CGROUP / "memory.current", CGROUP / "memory.stat", "inactive_file"),
        (
            v1 / "memory.limit_in_bytes",
            v1 / "memory.usage_in_bytes",
            v1 / "memory.stat",
            "total_inactive_file",
        ),
    ):
        try:
            limit_text, used = limit.read_text().strip(), int(usage.read_text())
            lines = (line.split() for line in stat.read_text().splitlines())
        except OSError:
            continue
        if limit_text.isdecimal():  # else "max"
            inactive = next((int(words[1]) for words in lines if words[0] == cached), 0)
            return max(int(limit_text) - max(used - inactive, 0), 0)
    return None
