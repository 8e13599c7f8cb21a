"""Where a store may lie, and who may open it."""

import logging
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from lmc_grouped.host.disk import DiskError, StoreInUseError
from lmc_grouped.host.disk.directory import NAMESPACE_FILE, StoreLock, shared_lock, store_path
from tests.factories import disk_key, namespace

NOBODY = 65_534


@contextmanager
def without_root() -> Iterator[None]:
    """Root may write anywhere; be somebody else where that is who runs the tests."""
    if os.geteuid():
        yield
        return
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def public_directory() -> Iterator[Path]:
    """A directory that everybody may enter and only its owner may write."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o555)
        yield Path(name)
        Path(name).chmod(0o755)


def test_a_missing_directory_is_created(open_disk, tmp_path):
    disk = open_disk(root=tmp_path / "one" / "two")
    assert disk.put(disk_key(0, 1)) == ["accepted"]
    assert disk.tier.directory == tmp_path / "one" / "two" / namespace().digest() / "rank_0"


def test_a_directory_that_cannot_be_written_is_named(open_disk, public_directory):
    with (
        without_root(),
        pytest.raises(DiskError, match=rf"{public_directory}.* cannot be written .*user \d+"),
    ):
        open_disk(root=public_directory)


def test_a_store_that_cannot_be_written_is_named(open_disk, public_directory):
    public_directory.chmod(0o755)
    directory = store_path(public_directory, namespace(), 0)
    directory.mkdir(parents=True)
    directory.chmod(0o555)
    with without_root(), pytest.raises(DiskError, match=f"{directory} cannot be written"):
        open_disk(root=public_directory)
    directory.chmod(0o755)


@pytest.mark.parametrize("below", [".", "deeper/still"])
def test_a_file_where_a_directory_should_be_is_named(open_disk, tmp_path, below):
    (tmp_path / "taken").write_text("mine")
    with pytest.raises(DiskError, match=f"{tmp_path / 'taken'} is a file where a directory"):
        open_disk(root=tmp_path / "taken" / below)
    assert (tmp_path / "taken").read_text() == "mine"


HOLD = """
import sys
from pathlib import Path
from lmc_grouped.host.disk import DiskTier, Quota
from tests.factories import namespace
tier = DiskTier.open(Path(sys.argv[1]), namespace(), 0, Quota(100_000))
print("open", flush=True)
sys.stdin.read()
"""


@contextmanager
def holder(root: Path) -> Iterator[subprocess.Popen]:
    """Another process that has the store open."""
    command = [sys.executable, "-c", HOLD, str(root)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "open\n"
        yield process
        process.kill()


def test_a_second_process_is_refused_with_the_holders_number(open_disk, tmp_path):
    with holder(tmp_path) as process:
        with pytest.raises(StoreInUseError, match=rf"in use by process {process.pid}: one process"):
            open_disk()
        process.kill()
        process.wait()
        assert open_disk().put(disk_key(0, 1)) == ["accepted"], "a dead owner still has it"


def test_a_store_that_is_verified_is_refused_without_blaming_its_last_owner(open_disk):
    disk = open_disk()
    disk.tier.close()
    directory = disk.tier.directory
    (directory / "lock").write_text("999999999\n")  # no process has such a number
    says = r"another process, such as `lmc-grouped disk verify` \(last opened by process 999999999"
    with shared_lock(directory), pytest.raises(StoreInUseError, match=says):
        open_disk()


def test_a_store_that_is_looked_at_for_a_moment_opens_all_the_same(open_disk, monkeypatch):
    disk = open_disk()
    disk.tier.close()
    with ExitStack() as looking:
        looking.enter_context(shared_lock(disk.tier.directory))
        monkeypatch.setattr("lmc_grouped.host.disk.directory.time.sleep", lambda _: looking.close())
        open_disk()


def test_another_namespace_and_another_rank_are_stores_of_their_own(open_disk, tmp_path):
    one, other = open_disk(), open_disk(ns=namespace(model="other"))
    one.put(disk_key(0, 1))
    assert other.hits([disk_key(0, 1)]) == []
    assert store_path(tmp_path, namespace(), 1).parent == one.tier.directory.parent


def test_a_second_opening_in_one_process_is_refused(open_disk):
    disk = open_disk()
    with pytest.raises(StoreInUseError, match=f"in use by process {os.getpid()}"):
        open_disk()
    disk.tier.close()
    open_disk()


def test_a_failed_opening_lets_others_open(open_disk, tmp_path, monkeypatch):
    def fail(*_) -> None:
        raise OSError(30, "Read-only file system")

    with monkeypatch.context() as patched:
        patched.setattr("lmc_grouped.host.disk.directory._write_namespace", fail)
        with pytest.raises(DiskError, match="Read-only file system"):
            open_disk()
    assert open_disk().put(disk_key(0, 1)) == ["accepted"]


def test_a_store_deleted_while_it_was_opened_is_not_used(tmp_path, monkeypatch):
    flock = "fcntl.flock"
    monkeypatch.setattr(flock, lambda *_: (tmp_path / "lock").unlink())
    with pytest.raises(StoreInUseError, match="was deleted while it was opened"):
        StoreLock(tmp_path)


def test_the_namespace_lies_beside_the_pages(open_disk):
    disk = open_disk()
    assert (disk.tier.directory / NAMESPACE_FILE).read_bytes() == namespace().to_json()


def test_a_wrong_namespace_file_is_set_aside_and_the_pages_are_kept(open_disk):
    disk = open_disk()
    disk.put(disk_key(0, 1))
    disk.tier.close()
    path = disk.tier.directory / NAMESPACE_FILE
    path.write_bytes(namespace(model="other").to_json())
    assert open_disk().hits([disk_key(0, 1)]) == [disk_key(0, 1)]
    assert path.read_bytes() == namespace().to_json()
    aside = path.with_name(path.name + ".set-aside")
    assert aside.read_bytes() == namespace(model="other").to_json()


def test_a20_a_new_namespace_says_in_what_it_differs_from_the_nearest(open_disk, caplog):
    open_disk()
    with caplog.at_level(logging.INFO):
        open_disk(ns=namespace(root_hash="beef", vllm_version="0.33.0"))
    assert "differs in vllm_version, root_hash" in caplog.text
    caplog.clear()
    with caplog.at_level(logging.INFO):
        open_disk(ns=namespace(root_hash="beef", vllm_version="0.34.0"))
    assert "differs in vllm_version" in caplog.text
    assert "root_hash" not in caplog.text
