"""A worker killed anywhere leaves nothing behind, and takes nothing from the others."""

import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from lmc_grouped.tools.processes import SHARED_MEMORY, ProcessGroup
from tests.host.region_worker import STAGES

WORKERS = 2
Start = Callable[..., list[ProcessGroup]]


@pytest.fixture
def lock_path(tmp_path: Path) -> Path:
    (tmp_path / "locks").mkdir()
    return tmp_path / "locks" / "pinning.lock"


@pytest.fixture
def start(tmp_path: Path, lock_path: Path) -> Iterator[Start]:
    """Starts workers in these modes; what a test leaves running is ended."""
    with ExitStack() as stack:
        logs = iter(range(1_000))

        def start_them(*modes: str) -> list[ProcessGroup]:
            program = [sys.executable, "-m", "tests.host.region_worker"]
            return [
                stack.enter_context(
                    ProcessGroup(
                        [*program, mode, str(lock_path)], dict(os.environ),
                        tmp_path / f"log-{next(logs)}",
                    )
                )
                for mode in modes
            ]  # fmt: skip

        yield start_them


def wait_for(worker: ProcessGroup, line: str) -> None:
    worker.wait_until_ready(lambda: line in worker.log_tail().splitlines(), "worker", 60)


def kill_all(workers: list[ProcessGroup]) -> None:
    for worker in workers:
        worker.kill()
    assert [name for worker in workers for name in worker.shared_memory_leftovers()] == []


def assert_restart(start: Start, lock_path: Path) -> None:
    """A start with room for one set of regions, as if nobody had been there before."""
    workers = start(*["restart"] * WORKERS)
    for worker in workers:
        worker.wait_until_ready(lambda w=worker: "done" in w.log_tail(), "restart", 60)
        assert worker.log_tail().splitlines() == ["one region and no second", "done"]
    assert {path.name for path in lock_path.parent.iterdir()} <= {lock_path.name}


def mapping_of(pid: int, address: int) -> list[str]:
    """The line of /proc/PID/maps that holds the address, in words."""
    for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
        first, last = (int(bound, 16) for bound in line.split()[0].split("-"))
        if first <= address < last:
            return line.split()
    raise AssertionError(f"{address:x} is not mapped")


def names_held(pid: int) -> list[str]:
    """Memory with a name that the process has mapped or open."""
    process = Path(f"/proc/{pid}")
    lines = (process / "maps").read_text().splitlines()
    links = []
    for link in (process / "fd").iterdir():
        with suppress(FileNotFoundError):  # the one that lists the others
            links.append(str(link.readlink()))
    return [s for s in lines + links if str(SHARED_MEMORY) in s or "memfd:" in s or "SYSV" in s]


def test_a22_workers_killed_at_any_point_leave_nothing_and_the_next_start_works(start, lock_path):
    chance = random.Random(22)
    before_the_lock = STAGES[: STAGES.index("pinning")]  # the other one may hold it for ever
    for stages in [(stage, chance.choice(before_the_lock)) for stage in STAGES]:
        workers = start(*stages)
        for worker, stage in zip(workers, stages, strict=True):
            wait_for(worker, stage)
            assert names_held(worker.group_id) == []
        kill_all(workers)
        assert_restart(start, lock_path)


def test_a22_workers_killed_at_random_moments_leave_nothing_and_the_next_start_works(
    start, lock_path
):
    chance = random.Random(22)
    for _ in range(5):
        workers = start(*["for_ever"] * WORKERS)
        for worker in workers:
            wait_for(worker, "running")
        time.sleep(chance.uniform(0, 0.1))
        kill_all(workers)
    assert_restart(start, lock_path)


def test_a22_the_region_is_private_memory_without_a_name(start):
    (worker,) = start("populated")
    wait_for(worker, "populated")
    address = int(worker.log_tail().split("at ")[1].split()[0])
    _, permissions, _, device, inode, *path = mapping_of(worker.group_id, address)
    assert (permissions, device, inode, path) == ("rw-p", "00:00", "0", [])


def test_a22_memory_with_a_name_would_be_noticed():
    fd = os.memfd_create("control")
    try:
        assert any("memfd:control" in name for name in names_held(os.getpid()))
    finally:
        os.close(fd)


def test_a22_a_living_owner_keeps_its_bytes_while_others_start_and_die(start, lock_path):
    command = [sys.executable, "-m", "tests.host.region_worker", "owner", str(lock_path)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as owner:

        def ask(question: str) -> str:
            owner.stdin.write(f"{question}\n")
            owner.stdin.flush()
            return owner.stdout.readline().strip()

        assert owner.stdout.readline() == "filled\n"
        workers = start("pinned", "pinned")
        for worker in workers:
            wait_for(worker, "pinned")
        kill_all(workers)
        assert_restart(start, lock_path)
        assert ask("check") == "unchanged"
        assert ask("damage") == "changed"
        owner.stdin.close()
