"""What dead processes left in shared memory. Nothing is ever removed here."""

import os
import re
import tempfile
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from lmc_grouped.tools.doctor.findings import Finding, note, ok, warn
from lmc_grouped.tools.plan.sizes import format_size

SHARED_MEMORY = Path("/dev/shm")
PROCESSES = Path("/proc")
SUBJECT = "leftovers"
KINDS = (
    re.compile(r"psm_[0-9a-f]+"),  # Python's shared memory: vLLM's queues and others
    re.compile(r"sem\.mp-\w+"),  # Python's semaphores
    re.compile(r"lmcache_kv_(?P<pid>\d+)_\d+"),  # LMCache's copies of a CPU engine's cache
    re.compile(r"lmcache_l1_pool_\w+"),  # LMCache's cache server
    re.compile(r"vllm_dist_[\w-]+"),  # vLLM's collectives on CPU
)
RENDEZVOUS = "vllm_dist_*"
"""Files through which vLLM's ranks find each other; nobody keeps them open."""
OWNERS = (b"python", b"vllm", b"lmcache")
"""In the command line of whatever makes such entries; every user may read that."""
YOUNG_SECONDS = 60
"""What is younger may be about to be opened."""
SHOWN = 4


@dataclass(frozen=True, slots=True)
class Processes:
    """What can be seen of the processes here."""

    pids: frozenset[int]
    used: frozenset[str]
    """Paths in shared memory that a process has mapped or open."""
    hidden: int
    """Processes that may, and of which it cannot be seen."""
    runs_engine: bool
    """Whether the command line of any other process names vLLM."""


def check_leftovers() -> list[Finding]:
    """Entries whose owners are dead, and the command that would remove them."""
    seen = look_around()
    entries, rendezvous = stale_entries(seen), stale_rendezvous(seen)
    findings = []
    if entries and seen.hidden:
        what = f"{_told(entries)}, but {seen.hidden} processes cannot be looked into"
        findings.append(note(SUBJECT, what, "run doctor as root to be sure"))
    elif entries:
        findings.append(warn(SUBJECT, f"{_told(entries)}: their owners are dead", _remedy(entries)))
    if rendezvous:
        what = f"{_told(rendezvous)}: no vLLM is running"
        findings.append(note(SUBJECT, what, _remedy(rendezvous)))
    return findings or [ok(SUBJECT, "none")]


def _told(paths: Sequence[Path]) -> str:
    """How many, how large, and the first of them."""
    size_bytes = sum(path.stat().st_blocks * 512 for path in paths if path.exists())
    names = ", ".join(path.name for path in paths[:SHOWN])
    more = f" and {len(paths) - SHOWN} more" if len(paths) > SHOWN else ""
    return f"{len(paths)} in {paths[0].parent} ({format_size(size_bytes)}): {names}{more}"


def _remedy(paths: Sequence[Path]) -> str:
    """The command, which is for people to run: another container's processes are not seen."""
    return f"unless another container shares it: rm {' '.join(map(str, paths))}"


def look_around() -> Processes:
    """Read `/proc`."""
    pids: set[int] = set()
    used: set[str] = set()
    hidden = 0
    runs_engine = False
    for entry in PROCESSES.iterdir():
        if not entry.name.isdigit():
            continue
        pids.add(int(entry.name))
        try:
            command = (entry / "cmdline").read_bytes().lower()
            runs_engine |= b"vllm" in command and int(entry.name) != os.getpid()
            used |= _shared_paths(entry)
        except PermissionError:
            hidden += any(word in command for word in OWNERS)
        except OSError:  # it has ended meanwhile
            continue
    return Processes(frozenset(pids), frozenset(used), hidden, runs_engine)


def _shared_paths(process: Path) -> set[str]:
    """In shared memory, mapped or open. OSError where that cannot be seen."""
    lines = (process / "maps").read_text("utf-8", "replace").splitlines()
    paths = {line[line.find("/") :] for line in lines if "/" in line}
    for link in (process / "fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            paths.add(str(link.readlink()))
    return {path for path in paths if path.startswith(f"{SHARED_MEMORY}/")}


def stale_entries(seen: Processes) -> list[Path]:
    """Entries in shared memory of a known kind that nobody uses."""
    if not SHARED_MEMORY.is_dir():
        return []
    return _old(path for path in SHARED_MEMORY.iterdir() if _is_stale(path, seen))


def _is_stale(path: Path, seen: Processes) -> bool:
    match = next((found for kind in KINDS if (found := kind.fullmatch(path.name))), None)
    if match is None or str(path) in seen.used:
        return False
    owner = match.groupdict().get("pid")
    return owner is None or int(owner) not in seen.pids


def stale_rendezvous(seen: Processes) -> list[Path]:
    """Rendezvous files, where no vLLM runs that could still want them."""
    return [] if seen.runs_engine else _old(Path(tempfile.gettempdir()).glob(RENDEZVOUS))


def _old(paths: Iterable[Path]) -> list[Path]:
    now, found = time.time(), []
    for path in paths:
        with suppress(FileNotFoundError):
            if now - path.lstat().st_mtime > YOUNG_SECONDS:
                found.append(path)
    return sorted(found)
