"""What dead processes left in shared memory, as doctor sees it."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from lmc_grouped.tools.doctor import leftovers
from lmc_grouped.tools.doctor.findings import Finding, State
from lmc_grouped.tools.doctor.leftovers import Processes, check_leftovers


def only(findings: list[Finding]) -> Finding:
    (finding,) = findings
    return finding


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Shared memory of this test's own; makes entries of some age in it."""
    folder = tmp_path / "shm"
    folder.mkdir()
    monkeypatch.setattr(leftovers, "SHARED_MEMORY", folder)
    monkeypatch.setattr(leftovers.tempfile, "gettempdir", lambda: str(tmp_path))

    def make(name: str, age_seconds: float = 3600, parent: Path = folder) -> Path:
        path = parent / name
        path.write_bytes(b"1" * 4096)
        then = time.time() - age_seconds
        os.utime(path, (then, then))
        return path

    return make


@pytest.fixture
def dead_pid() -> int:
    """The number of a process that has ended."""
    done = subprocess.Popen([sys.executable, "-c", ""])
    done.wait()
    return done.pid


def test_what_nobody_uses_is_told_with_its_command_and_stays(
    shared: Callable[..., Path], dead_pid: int
):
    stale = [
        shared("psm_1a2b3c4d"),
        shared("sem.mp-x1y2z3"),
        shared(f"lmcache_kv_{dead_pid}_7"),
        shared("lmcache_l1_pool_ab12"),
        shared("vllm_dist_0123abcd-cpushm_0"),
    ]
    found = only(check_leftovers())
    assert found.state is State.WARN
    assert "5 in" in found.text
    assert all(str(path) in found.remedy for path in stale)
    assert all(path.exists() for path in stale)


def test_what_is_used_young_or_unknown_is_not_told(shared: Callable[..., Path]):
    shared("psm_00000001", age_seconds=5)
    shared("somebody_elses")
    shared(f"lmcache_kv_{os.getpid()}_7")
    with shared("psm_00000002").open("rb"):
        assert only(check_leftovers()).state is State.OK
    assert "psm_00000002" in only(check_leftovers()).text


def test_what_another_process_has_mapped_is_in_use(shared: Callable[..., Path]):
    path = shared("psm_0000000a")
    code = (
        "import mmap, sys; f = open(sys.argv[1], 'r+b'); m = mmap.mmap(f.fileno(), 0); f.close(); "
        "print('ready', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", code, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        assert only(check_leftovers()).state is State.OK
        holder.communicate()
    assert only(check_leftovers()).state is State.WARN


def test_where_processes_are_hidden_nothing_is_said_to_be_removable(
    shared: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
):
    shared("psm_0000000b")
    seen = Processes(frozenset(), frozenset(), hidden=3, runs_engine=False)
    monkeypatch.setattr(leftovers, "look_around", lambda: seen)
    found = only(check_leftovers())
    assert found.state is State.NOTE
    assert "3 processes cannot be looked into" in found.text
    assert "rm " not in found.remedy


def test_only_processes_that_may_own_an_entry_count_as_hidden(
    shared: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    for pid, command in (("1", "init"), ("2", ""), ("77", "/usr/bin/python3\0server.py")):
        (tmp_path / "proc" / pid).mkdir(parents=True)
        (tmp_path / "proc" / pid / "cmdline").write_text(command)

    def refuse(process: Path) -> set[str]:
        raise PermissionError(process)

    monkeypatch.setattr(leftovers, "PROCESSES", tmp_path / "proc")
    monkeypatch.setattr(leftovers, "_shared_paths", refuse)
    seen = leftovers.look_around()
    assert (seen.hidden, seen.pids, seen.runs_engine) == (1, {1, 2, 77}, False)


@pytest.mark.parametrize("runs_engine", [False, True])
def test_rendezvous_files_are_told_where_no_vllm_runs(
    shared: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, runs_engine: bool
):
    path = shared("vllm_dist_0123456789abcdef", parent=tmp_path)
    seen = Processes(frozenset(), frozenset(), hidden=0, runs_engine=runs_engine)
    monkeypatch.setattr(leftovers, "look_around", lambda: seen)
    found = only(check_leftovers())
    assert found.state is (State.OK if runs_engine else State.NOTE)
    assert (str(path) in found.remedy) is not runs_engine


def test_a_process_that_names_vllm_is_seen():
    code = "import sys; print('ready', flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", code, "VLLM::EngineCore"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as engine:
        assert engine.stdout is not None
        engine.stdout.readline()
        seen = leftovers.look_around()
        engine.communicate()
    assert seen.runs_engine
    assert engine.pid in seen.pids
