"""A full file system: writing stops with one line, reading goes on, writing resumes."""

import errno
import logging
import os
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from lmc_grouped.host.disk import PutAnswer, WriteEnd, writing
from lmc_grouped.host.disk.groupfile import GroupFile
from tests.factories import disk_key, page_of
from tests.host.conftest import KB, Disk

TMPFS_BYTES = 256 * KB
CAP_BYTES = 10 * 2**20
PAGE_BYTES = 4_096


@pytest.fixture(params=["tmpfs", "faked"])
def small_disk(request, tmp_path: Path, monkeypatch) -> Iterator[Path]:
    """A file system of 256 KB; faked as well, for those who may not mount one."""
    monkeypatch.setattr(writing, "TICK_SECONDS", 0.01)
    root = tmp_path / "small"
    root.mkdir()
    if request.param == "faked":
        limit_files(root, monkeypatch)
        yield root
        return
    if os.geteuid():
        pytest.skip("only root may mount a tmpfs; the faked one runs for everybody")
    options = ["-o", f"size={TMPFS_BYTES}"]
    subprocess.run(["mount", "-t", "tmpfs", *options, "none", str(root)], check=True)
    try:
        yield root
    finally:
        subprocess.run(["umount", "--lazy", str(root)], check=True)


def limit_files(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files below `root` may hold `TMPFS_BYTES` together; what is more is ENOSPC."""

    def used_bytes() -> int:
        return sum(path.stat().st_size for path in root.rglob("*") if path.is_file())

    def write_pages(file: GroupFile, slot: int, pages: Sequence[memoryview]) -> None:
        if used_bytes() + sum(map(len, pages)) > TMPFS_BYTES:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real_write(file, slot, pages)

    real_write = GroupFile.write_pages
    monkeypatch.setattr(GroupFile, "write_pages", write_pages)
    monkeypatch.setattr(GroupFile, "grow", lambda *_: None)
    monkeypatch.setattr(
        writing, "has_room", lambda _, size_bytes: used_bytes() + size_bytes <= TMPFS_BYTES
    )


def fill(disk: Disk, first: int, count: int) -> list[WriteEnd]:
    """Put pages of group 0 as long as they are taken; the ends of those accepted."""
    ends: list[WriteEnd] = []
    for number in range(first, first + count):
        key = disk_key(0, number)
        disk.tier.put(key, page_of(key, PAGE_BYTES), lambda _, end: ends.append(end))
    disk.tier.flush()
    return ends


def wait_for_room(disk: Disk) -> bool:
    """Whether writing resumed within ten seconds."""
    for _ in range(1_000):
        if not disk.tier.stats().is_paused:
            return True
        time.sleep(0.01)
    return False


def test_a_full_disk_stops_writes_and_keeps_reading_and_resumes(open_disk, small_disk, caplog):
    filler = small_disk / "filler"
    filler.write_bytes(bytes(128 * KB))
    disk = open_disk(CAP_BYTES, root=small_disk)
    ends = fill(disk, 0, 100)
    stored = ends.count(WriteEnd.STORED)
    assert 0 < stored < 40
    assert set(ends) == {WriteEnd.STORED, WriteEnd.NO_SPACE}
    keys = [disk_key(0, number) for number in range(200)]
    assert len(disk.hits(keys)) == stored
    assert disk.put(disk_key(1, 1)) == ["no_space"]
    stats = disk.tier.stats()
    assert (stats.is_paused, stats.pending_bytes) == (True, 0)
    assert stats.used_bytes == stored * PAGE_BYTES
    filler.unlink()
    assert wait_for_room(disk)
    assert fill(disk, 100, 5) == [WriteEnd.STORED] * 5
    assert len(disk.hits(keys)) == stored + 5
    lines = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert [" is full (" in line for line in lines] == [True, False]
    assert "has room again" in lines[1]


def test_while_the_disk_is_full_nothing_queues(open_disk, small_disk):
    (small_disk / "filler").write_bytes(bytes(200 * KB))
    disk = open_disk(CAP_BYTES, root=small_disk)
    fill(disk, 0, 100)
    answers = {disk.tier.put(disk_key(1, n), bytes(KB)) for n in range(1_000)}
    assert answers == {PutAnswer.NO_SPACE}
    assert disk.tier.stats().refused_by_answer[PutAnswer.NO_SPACE] >= 1_000


def test_a_store_survives_a_full_disk_and_a_restart(open_disk, small_disk):
    (small_disk / "filler").write_bytes(bytes(128 * KB))
    disk = open_disk(CAP_BYTES, root=small_disk)
    fill(disk, 0, 100)
    keys = [disk_key(0, number) for number in range(100)]
    found = disk.hits(keys)
    disk.tier.close()
    again = open_disk(CAP_BYTES, root=small_disk)
    assert again.hits(keys) == found
    assert [group.faults for group in again.tier.stats().recovered] == [0, 0]


def test_other_write_errors_are_counted_and_said_once(open_disk, monkeypatch, caplog):
    def fail(*_) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(GroupFile, "write_pages", fail)
    disk = open_disk()
    assert fill(disk, 0, 5) == [WriteEnd.IO_ERROR] * 5
    stats = disk.tier.stats()
    assert (stats.used_bytes, stats.is_paused) == (0, False)
    assert caplog.text.count("Input/output error") == 1
    monkeypatch.undo()
    assert fill(disk, 0, 5) == [WriteEnd.STORED] * 5


def test_a_file_system_that_keeps_freed_room_bounds_the_files_all_the_same(open_disk, monkeypatch):
    monkeypatch.setattr(GroupFile, "punch", lambda *_: False)
    disk = open_disk(threads=1)
    for number in range(60):
        disk.put(disk_key(0, number))
    for number in range(100):
        disk.put(disk_key(1, number))
    stats = disk.tier.stats()
    assert stats.allocated_bytes <= 100 * KB
    assert stats.writes_by_end[WriteEnd.OVER_QUOTA] > 0


def test_a_store_opens_and_reads_on_a_file_system_without_one_free_byte(open_disk, small_disk):
    disk = open_disk(CAP_BYTES, root=small_disk)
    keys = [disk_key(0, number) for number in range(5)]
    disk.put(*keys)
    disk.tier.close()
    if small_disk.is_mount():
        with suppress(OSError):
            (small_disk / "filler").write_bytes(bytes(2 * TMPFS_BYTES))
        assert os.statvfs(small_disk).f_bavail == 0
    again = open_disk(CAP_BYTES, root=small_disk)
    assert again.hits(keys) == keys
