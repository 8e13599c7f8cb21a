"""A program in its own process group, ended with everything it started."""

import contextlib
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import NoReturn, Self

from lmc_grouped.tools.errors import ToolError

POLL_SECONDS = 0.05
KILL_WAIT_SECONDS = 10.0
SHARED_MEMORY = Path("/dev/shm")


class ProcessGroup:
    """One program, its children and theirs.

    An engine's processes outlive the program that started them when that one is
    killed, so they are ended by group; nothing else ever is.
    """

    def __init__(self, command: Sequence[str], env: Mapping[str, str], log_path: Path) -> None:
        """Start `command` with exactly the environment `env`; both its outputs
        are appended to `log_path`, whose directory is made."""
        self.log_path = log_path
        log_path.parent.mkdir(parents=True, exist_ok=True)
        self._shared_before = _shared_names()
        self._log_start_bytes = log_path.stat().st_size if log_path.exists() else 0
        with log_path.open("ab") as log:
            self._leader = subprocess.Popen(
                list(command),
                env=dict(env),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.group_id = self._leader.pid
        self._seen_pids = {self.group_id}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    @property
    def exit_status(self) -> int | None:
        """How the first process ended, negative for a signal; None while it runs."""
        return self._leader.poll()

    def pids(self) -> list[int]:
        """The living processes of the group."""
        self._leader.poll()
        return [pid for pid in _all_pids() if _living_group(pid) == self.group_id]

    def cpu_seconds(self) -> float:
        """Processor time the living processes have used, user and system."""
        ticks = 0
        for pid in self.pids():
            fields = _stat_fields(pid)
            ticks += int(fields[11]) + int(fields[12]) if fields else 0
        return ticks / os.sysconf("SC_CLK_TCK")

    def thread_cpu_seconds(self, name: str) -> float:
        """Processor time of the living threads whose name begins with ``name``."""
        nanoseconds = 0
        for pid in self.pids():
            for task in Path(f"/proc/{pid}/task").glob("*"):
                with contextlib.suppress(OSError):  # it has ended meanwhile
                    if (task / "comm").read_text().startswith(name):
                        nanoseconds += int((task / "schedstat").read_text().split()[0])
        return nanoseconds / 1e9

    def log_tail(self, lines: int = 30) -> str:
        """The end of what the program has written."""
        with self.log_path.open("rb") as log:
            log.seek(self._log_start_bytes)
            text = log.read().decode(errors="replace")
        return "\n".join(text.splitlines()[-lines:])

    def wait_until_ready(self, is_ready: Callable[[], bool], name: str, seconds: float) -> None:
        """Return when `is_ready` says so.

        Raises ToolError with the end of the log when the program ends before or
        takes longer than `seconds`. Whatever is raised, the group is gone then.
        """
        deadline = time.monotonic() + seconds
        try:
            while not is_ready():
                if self.exit_status is not None:
                    self._give_up(f"{name} ended with status {self.exit_status}")
                if time.monotonic() > deadline:
                    self._give_up(f"{name} was not ready after {seconds:g} s")
                time.sleep(POLL_SECONDS)
        except BaseException:
            self.stop()
            raise

    def _give_up(self, what: str) -> NoReturn:
        raise ToolError(f"{what}; {self.log_path} ends with:\n{self.log_tail()}")

    def stop(self, grace_seconds: float = 15.0) -> None:
        """Ask the first process to end, then kill what is left of the group.
        A second call does nothing.

        Raises ToolError when a process cannot be killed.
        """
        self._seen_pids |= set(self.pids())
        if self.exit_status is None:
            self._leader.terminate()
            self._wait_until_empty(grace_seconds)
        self.kill()

    def kill(self) -> None:
        """Kill the whole group now, as a crash would.

        Raises ToolError when a process cannot be killed.
        """
        alive = self.pids()
        self._seen_pids |= set(alive)
        if alive:
            os.killpg(self.group_id, signal.SIGKILL)
        if not self._wait_until_empty(KILL_WAIT_SECONDS):
            raise ToolError(
                f"processes {self.pids()} of group {self.group_id} are alive "
                f"{KILL_WAIT_SECONDS:g} s after SIGKILL: end them by hand"
            )

    def shared_memory_leftovers(self) -> list[str]:
        """Names in /dev/shm that were not there at the start and that no living
        process uses; meant for after `stop`."""
        fresh = _shared_names() - self._shared_before
        return sorted(fresh - _names_in_use() if fresh else fresh)

    def remove_leftovers(self) -> list[str]:
        """Remove those leftovers that carry the id of one of our processes in
        their name, and nobody else's; returns their names."""
        ours = [
            name
            for name in self.shared_memory_leftovers()
            if self._seen_pids & {int(digits) for digits in re.findall(r"\d+", name)}
        ]
        for name in ours:
            (SHARED_MEMORY / name).unlink(missing_ok=True)
        return ours

    def _wait_until_empty(self, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while self.pids():
            if time.monotonic() > deadline:
                return False
            time.sleep(POLL_SECONDS)
        return True


def _all_pids() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def _stat_fields(pid: int) -> list[str] | None:
    """Fields of /proc/PID/stat from the state on; None when the process is gone.
    The command before them may hold spaces and parentheses."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (OSError, UnicodeDecodeError):
        return None


def _living_group(pid: int) -> int | None:
    """The process group; None for a process that has ended. A zombie has: where
    process 1 reaps nobody, it stays for ever."""
    fields = _stat_fields(pid)
    return int(fields[2]) if fields and fields[0] not in "ZX" else None


def _shared_names() -> set[str]:
    return {path.name for path in SHARED_MEMORY.iterdir()} if SHARED_MEMORY.is_dir() else set()


def _names_in_use() -> set[str]:
    """Names in /dev/shm that a process has mapped or open."""
    prefix = f"{SHARED_MEMORY}/"
    places = (place for pid in _all_pids() for place in _open_files(Path(f"/proc/{pid}")))
    return {place.partition(prefix)[2] for place in places if prefix in place}


def _open_files(process: Path) -> list[str]:
    """Lines that name what the process has mapped or open; what it closes or
    hides from us meanwhile is left out."""
    lines: list[str] = []
    with contextlib.suppress(OSError):
        lines += (process / "maps").read_text(errors="replace").splitlines()
    with contextlib.suppress(OSError):
        for link in (process / "fd").iterdir():
            with contextlib.suppress(OSError):
                lines.append(str(link.readlink()))
    return lines
