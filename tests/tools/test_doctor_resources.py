"""Memory and disk, as doctor sees them."""

import os
import resource
from pathlib import Path

import pytest

from lmc_grouped.tools.doctor import disk, memory
from lmc_grouped.tools.doctor.findings import Finding, State
from lmc_grouped.tools.doctor.questions import SettingsFacts, Unanswered

GIB = 2**30


def settings(budget_gib: float = 1, root: Path | None = None, cap_gib: float = 1) -> SettingsFacts:
    return SettingsFacts(
        int(budget_gib * GIB), str(root) if root else None, int(cap_gib * GIB) if root else 0
    )


def only(findings: list[Finding]) -> Finding:
    (finding,) = findings
    return finding


def test_a_configuration_is_told_and_a_refused_one_fails_with_its_own_words(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setenv("LMCACHE_CONFIG_FILE", "lmc.yaml")
    assert "lmc.yaml: 1.00 GiB of host memory per worker, /data on disk" in (
        only(memory.check_settings(settings(root=Path("/data")))).text
    )
    refused = only(memory.check_settings(Unanswered("remote_url is set", is_refusal=True)))
    assert (refused.state, refused.text) == (State.FAIL, "lmc.yaml: remote_url is set")
    broken = only(memory.check_settings(Unanswered("ImportError: no torch")))
    assert broken.state is State.FAIL
    assert only(memory.check_settings(None)).state is State.NOTE


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """16 GiB of which 8 are available; a folder for the limits of a container."""
    (tmp_path / "meminfo").write_text(
        f"MemTotal: {16 * 2**20} kB\nMemFree: 1 kB\nMemAvailable: {8 * 2**20} kB\n"
    )
    monkeypatch.setattr(memory, "MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(memory, "CGROUP", tmp_path)
    return tmp_path


def limit(folder: Path, limit_text: str, used_gib: int, cached_gib: int, *, v1: bool = False):
    """The files of a container's limit."""
    names = ("memory.max", "memory.current", "inactive_file")
    if v1:
        folder = folder / "memory"
        folder.mkdir()
        names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
    (folder / names[0]).write_text(limit_text + "\n")
    (folder / names[1]).write_text(f"{used_gib * GIB}\n")
    (folder / "memory.stat").write_text(f"anon 5\n{names[2]} {cached_gib * GIB}\n")


@pytest.mark.parametrize(
    ("budget_gib", "workers", "state"),
    [(8, 1, State.OK), (4, 2, State.OK), (8.01, 1, State.FAIL), (4.01, 2, State.FAIL)],
)
def test_what_all_workers_take_must_be_available(
    machine: Path, budget_gib: float, workers: int, state: State
):
    found = only(memory.check_memory(settings(budget_gib), workers))
    assert found.state is state
    assert "8.00 GiB of 16.0 GiB available" in found.text
    if state is State.FAIL:
        assert f"set max_local_cpu_size to {8 / workers} or less" in found.remedy


@pytest.mark.parametrize("v1", [False, True])
def test_a_containers_limit_counts_but_not_its_cached_files(machine: Path, v1: bool):
    limit(machine, str(10 * GIB), used_gib=7, cached_gib=3, v1=v1)
    assert only(memory.check_memory(settings(6), 1)).state is State.OK
    found = only(memory.check_memory(settings(6.01), 1))
    assert found.state is State.FAIL
    assert "6.00 GiB of it within this container's limit" in found.text


def test_a_container_without_a_limit_has_what_the_machine_has(machine: Path):
    limit(machine, "max", used_gib=100, cached_gib=0)
    assert only(memory.check_memory(settings(8), 1)).state is State.OK


def test_without_a_configuration_memory_is_told_and_not_judged(machine: Path):
    assert only(memory.check_memory(None, 4)).state is State.NOTE


@pytest.mark.parametrize(
    ("soft", "has_devices", "state"),
    [
        (resource.RLIM_INFINITY, True, State.OK),
        (2 * GIB, True, State.OK),
        (GIB // 2, True, State.WARN),
        (GIB // 2, False, State.OK),
    ],
)
def test_the_limit_for_locked_memory_matters_where_there_are_gpus(
    monkeypatch: pytest.MonkeyPatch, soft: int, has_devices: bool, state: State
):
    monkeypatch.setattr(resource, "getrlimit", lambda which: (soft, soft))
    found = only(memory.check_locked_memory(settings(1), has_devices=has_devices))
    assert found.state is state


def test_a_small_shared_memory_is_warned_about_and_none_is_a_failure(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    def sized(blocks: int) -> os.statvfs_result:
        return os.statvfs_result((4096, 4096, blocks, blocks, blocks, 0, 0, 0, 0, 255))

    monkeypatch.setattr(os, "statvfs", lambda path: sized(64 * 256))
    assert only(memory.check_shared_memory(1)).state is State.WARN
    monkeypatch.setattr(os, "statvfs", lambda path: sized(1024 * 256))
    assert only(memory.check_shared_memory(1)).state is State.OK
    assert only(memory.check_shared_memory(8)).state is State.WARN
    monkeypatch.undo()
    monkeypatch.setattr(memory, "SHARED_MEMORY", tmp_path / "missing")
    assert only(memory.check_shared_memory(1)).state is State.FAIL


@pytest.mark.parametrize(
    ("seed", "has_disk", "state"),
    [
        ("0", True, State.OK),
        (None, True, State.WARN),
        ("random", True, State.WARN),
        (None, False, State.NOTE),
    ],
)
def test_the_hash_seed_matters_where_pages_outlive_the_process(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, seed: str | None, has_disk: bool, state: State
):
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    if seed is not None:
        monkeypatch.setenv("PYTHONHASHSEED", seed)
    found = only(memory.check_hash_seed(settings(root=tmp_path if has_disk else None)))
    assert found.state is state


def test_a_directory_is_tried_and_left_as_it_was(tmp_path: Path):
    (tmp_path / "page").write_bytes(b"1" * 5000)
    found = {f.subject: f for f in disk.check_disk(settings(root=tmp_path, cap_gib=0.001), 1)}
    assert f"on {disk.file_system(tmp_path)}" in found["disk"].text
    assert found["direct I/O"].text.startswith(("works", "not taken"))
    assert "8.00 KiB stored" in found["disk room"].text
    assert [path.name for path in tmp_path.iterdir()] == ["page"]


def test_a_directory_that_is_not_there_is_not_made(tmp_path: Path):
    root = tmp_path / "a" / "b"
    found = {f.subject: f for f in disk.check_disk(settings(root=root), 1)}
    assert "to be made at start" in found["disk"].text
    assert found["direct I/O"].state is State.NOTE
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_cannot_be_written_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "file").write_text("")
    found = only(disk.check_disk(settings(root=tmp_path / "file" / "store"), 1))
    assert (found.state, "is no directory" in found.text) == (State.FAIL, True)
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    found = only(disk.check_disk(settings(root=tmp_path), 1))
    assert (found.state, "cannot be written" in found.text) == (State.FAIL, True)


def test_more_than_the_disk_can_hold_is_warned_about(tmp_path: Path):
    free_gib = os.statvfs(tmp_path).f_bavail * os.statvfs(tmp_path).f_frsize / GIB
    enough = {f.subject: f for f in disk.check_disk(settings(root=tmp_path, cap_gib=0.001), 2)}
    assert enough["disk room"].state is State.OK
    half = settings(root=tmp_path, cap_gib=free_gib * 0.6)
    assert disk.check_disk(half, 1)[2].state is State.OK
    assert disk.check_disk(half, 2)[2].state is State.WARN


MOUNTS = """\
20 1 8:1 / / rw - ext4 /dev/sda1 rw
21 20 0:5 / /tmp\\040x rw - tmpfs tmpfs rw
22 20 0:6 / /data rw shared:1 - nfs4 host:/data rw
23 22 0:7 / /data/cache rw - xfs /dev/sdb rw
24 23 0:7 / /data/cache rw - fuse.sshfs host rw
"""


@pytest.mark.parametrize(
    ("place", "kind", "state"),
    [
        ("/home/u", "ext4", State.OK),
        ("/tmp x/store", "tmpfs", State.WARN),
        ("/data/other", "nfs4", State.WARN),
        ("/data/cache/deep", "fuse.sshfs", State.WARN),
        ("/database", "ext4", State.OK),
    ],
)
def test_the_file_system_is_that_of_the_innermost_and_last_mount(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, place: str, kind: str, state: State
):
    (tmp_path / "mounts").write_text(MOUNTS)
    monkeypatch.setattr(disk, "MOUNTS", tmp_path / "mounts")
    assert disk.file_system(Path(place)) == kind
    assert disk._check_file_system(Path(place), Path(place)).state is state
