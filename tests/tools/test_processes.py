"""Process groups: they end with everything they started, and say what went wrong."""

import os
import sys
import textwrap
import time
from pathlib import Path

import pytest

from lmc_grouped.tools import processes
from lmc_grouped.tools.errors import ToolError
from lmc_grouped.tools.processes import ProcessGroup

PARENT_WITH_CHILD = """
    import signal, subprocess, sys, time
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    child = "import time; print('child', flush=True); time.sleep(60)"
    subprocess.Popen([sys.executable, "-c", child])
    time.sleep(60)
"""


def start(tmp_path: Path, code: str) -> ProcessGroup:
    command = [sys.executable, "-c", textwrap.dedent(code)]
    return ProcessGroup(command, dict(os.environ), tmp_path / "logs" / "log")


def wait_for_log(group: ProcessGroup, text: str) -> None:
    group.wait_until_ready(lambda: text in group.log_tail(), "program", 20)


@pytest.fixture
def shared_memory(tmp_path, monkeypatch):
    """A directory in place of /dev/shm."""
    path = tmp_path / "shm"
    path.mkdir()
    monkeypatch.setattr(processes, "SHARED_MEMORY", path)
    return path


def test_stopping_ends_children_and_a_program_that_ignores_sigterm(tmp_path):
    with start(tmp_path, PARENT_WITH_CHILD) as group:
        wait_for_log(group, "child")
        assert len(group.pids()) == 2
        group.stop(grace_seconds=0.1)
        assert group.pids() == []
        assert group.exit_status == -9
        group.stop()


def test_a_child_that_outlives_its_parent_is_ended(tmp_path):
    with start(tmp_path, PARENT_WITH_CHILD) as group:
        wait_for_log(group, "child")
        os.kill(group.group_id, 9)
        while group.group_id in group.pids():
            time.sleep(0.01)
        assert len(group.pids()) == 1
    assert group.pids() == []


def test_a_program_that_dies_early_is_reported_with_the_end_of_its_log(tmp_path):
    group = start(tmp_path, "import sys; print('first'); sys.exit('no such model')")
    with pytest.raises(ToolError, match=r"server ended with status 1; (?s:.*)no such model"):
        group.wait_until_ready(lambda: False, "server", 20)


def test_a_program_that_takes_too_long_is_ended_and_reported(tmp_path):
    group = start(tmp_path, "import time; time.sleep(60)")
    with pytest.raises(ToolError, match=r"server was not ready after 0\.2 s"):
        group.wait_until_ready(lambda: False, "server", 0.2)
    assert group.pids() == []


def test_the_log_tail_begins_with_this_start(tmp_path):
    for text in ("old", "new"):
        with start(tmp_path, f"print({text!r})") as group:
            wait_for_log(group, text)
    assert group.log_tail() == "new"
    assert (tmp_path / "logs" / "log").read_text() == "old\nnew\n"


def test_leftovers_are_new_names_that_nobody_uses(tmp_path, shared_memory):
    (shared_memory / "older").touch()
    with start(tmp_path, "pass") as group:
        (shared_memory / "left").touch()
        with (shared_memory / "open").open("w"):
            assert group.shared_memory_leftovers() == ["left"]


def test_only_leftovers_that_name_one_of_our_processes_are_removed(tmp_path, shared_memory):
    group = start(tmp_path, "pass")
    group.stop()
    ours, foreign = f"kv_{group.group_id}_0", f"kv_{group.group_id}7_0"
    for name in (ours, foreign):
        (shared_memory / name).touch()
    assert group.remove_leftovers() == [ours]
    assert group.shared_memory_leftovers() == [foreign]


def test_processor_time_of_the_group_is_counted(tmp_path):
    with start(tmp_path, "print('go', flush=True)\nwhile True: pass") as group:
        wait_for_log(group, "go")
        before = group.cpu_seconds()
        deadline = time.monotonic() + 20
        while group.cpu_seconds() <= before and time.monotonic() < deadline:
            time.sleep(0.02)
        assert group.cpu_seconds() > before


def test_processor_time_of_threads_is_counted_by_their_name(tmp_path):
    code = """
import threading
from pathlib import Path
def spin():
    Path(f"/proc/self/task/{threading.get_native_id()}/comm").write_text("one-that-spins")
    print("go", flush=True)
    while True: pass
threading.Thread(target=spin).start()
"""
    with start(tmp_path, code) as group:
        wait_for_log(group, "go")
        deadline = time.monotonic() + 20
        while group.thread_cpu_seconds("one-that") < 0.01 and time.monotonic() < deadline:
            time.sleep(0.02)
        assert group.thread_cpu_seconds("one-that") >= 0.01
        assert group.thread_cpu_seconds("another") == 0
