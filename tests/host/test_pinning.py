"""Pinning: pieces between rows, all or nothing, one process at a time."""

import fcntl
import logging
import math
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmc_grouped.host.layout import MAX_PIECE_BYTES, PIECE_BYTES, Piece
from lmc_grouped.host.pinning import PinnedMemory, PinningError, default_lock_path, pinning_lock
from lmc_grouped.host.region import ExtentShape, HostRegion, PoolShape, lay_out
from tests.host.fake_driver import INVALID_VALUE, ONE_CALL_LIMIT_BYTES, OUT_OF_MEMORY, FakeDriver
from tests.host.pin_worker import most_inside

GiB = 2**30
BASE = 0x7F00_0000_0000
PAGE_SIZES = st.one_of(st.integers(1, 40_000), st.integers(1, 400).map(lambda n: n * 512))
PIECE_SIZES = st.sampled_from([1, 4_096, 70_000, 2**20, PIECE_BYTES])

pools = st.dictionaries(
    st.integers(0, 8), st.builds(PoolShape, st.integers(0, 3_000), PAGE_SIZES), min_size=1
)


@pytest.fixture
def lock_path(tmp_path: Path) -> Path:
    return tmp_path / "pinning.lock"


def is_locked(path: Path) -> bool:
    with path.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def assert_pieces(pieces: tuple[Piece, ...], size_bytes: int, most_bytes: int) -> None:
    """They follow each other over the whole region, and none is too large."""
    ends = [0, *(piece.offset_bytes + piece.size_bytes for piece in pieces)]
    assert [piece.offset_bytes for piece in pieces] == ends[:-1]
    assert ends[-1] == size_bytes
    assert all(0 < piece.size_bytes <= most_bytes for piece in pieces)


@given(shapes=pools, piece_bytes=PIECE_SIZES)
def test_a21_pieces_of_pools_cover_the_region_and_no_page_lies_across_two(shapes, piece_bytes):
    layout = lay_out(shapes)
    pieces = layout.pieces(piece_bytes)
    steps = [math.lcm(s.page_bytes, 4_096) for s in shapes.values() if s.slots]
    if not steps:
        assert pieces == ()
        return
    assert_pieces(pieces, layout.size_bytes, max(piece_bytes, *steps))
    starts, end = {}, 0
    for group_id, shape in shapes.items():
        starts[group_id] = end
        end += math.ceil(shape.slots * shape.page_bytes / 4_096) * 4_096
    for border in (piece.offset_bytes for piece in pieces):
        assert border % 4_096 == 0
        for group_id, shape in shapes.items():
            inside = border - starts[group_id]
            if 0 <= inside < shape.slots * shape.page_bytes:
                assert inside % shape.page_bytes == 0
    owners = {starts[g]: s for g, s in shapes.items() if s.slots}
    for one, other in pairwise(pieces):  # and no more of them than it takes
        if other.offset_bytes not in owners:
            owner = owners[max(start for start in owners if start <= one.offset_bytes)]
            assert one.size_bytes + math.lcm(owner.page_bytes, 4_096) > piece_bytes


@given(
    page_bytes=st.dictionaries(st.integers(0, 8), PAGE_SIZES, min_size=1),
    larger=st.integers(0, 100_000),
    extents=st.integers(1, 2_000),
    piece_bytes=PIECE_SIZES,
)
def test_a21_pieces_of_extents_end_where_extents_do(page_bytes, larger, extents, piece_bytes):
    extent_bytes = max(page_bytes.values()) + larger
    slots = {group_id: extent_bytes // size for group_id, size in page_bytes.items()}
    shapes = {g: PoolShape(extents * slots[g], size) for g, size in page_bytes.items()}
    layout = lay_out(shapes, extents=ExtentShape(extent_bytes, extents, slots))
    pieces = layout.pieces(piece_bytes)
    step = math.lcm(extent_bytes, 4_096)
    assert_pieces(pieces, layout.size_bytes, max(piece_bytes, step))
    assert all(piece.offset_bytes % step == 0 for piece in pieces)
    assert all(one.size_bytes + step > piece_bytes for one in pieces[:-1])


@pytest.mark.parametrize("extents", [None, ExtentShape(30_720, 40, {0: 3, 1: 4})])
def test_a21_the_pages_of_a_mapped_region_lie_within_the_ranges_the_driver_was_given(
    extents, lock_path
):
    slots = (120, 160) if extents else (120, 33)
    region = HostRegion(
        {0: PoolShape(slots[0], 10_240), 1: PoolShape(slots[1], 7_680)}, extents=extents
    )
    driver = FakeDriver()
    region.pin(driver, 0, piece_bytes=200_000, lock_path=lock_path)
    assert len(driver.locked) > 6
    for group_id, count in enumerate(slots):
        for slot in range(count):
            page = region.page(group_id, slot)
            start, end = page.ctypes.data, page.ctypes.data + page.nbytes
            assert sum(a <= start and end <= a + size for a, size in driver.locked) == 1


@pytest.mark.parametrize("piece_bytes", [PIECE_BYTES, MAX_PIECE_BYTES])
@pytest.mark.parametrize("gib", [511, 513])
@pytest.mark.parametrize("elastic", [False, True])
def test_a21_regions_of_511_and_513_gib_are_cut_and_accepted(gib, elastic, piece_bytes, lock_path):
    extent = 5 * 35_840
    count = gib * GiB // extent
    if elastic:
        shapes = {0: PoolShape(5 * count, 35_840), 3: PoolShape(2 * count, 65_536)}
        layout = lay_out(shapes, extents=ExtentShape(extent, count, {0: 5, 3: 2}))
    else:
        rest = (gib * GiB - 30_000_000 * 4_096) // 35_840
        layout = lay_out({0: PoolShape(30_000_000, 4_096), 3: PoolShape(rest, 35_840)})
    assert layout.size_bytes > gib * GiB - extent
    driver = FakeDriver()
    pieces = layout.pieces(piece_bytes)
    PinnedMemory("memory", BASE, pieces, driver, rank=0, lock_path=lock_path)
    assert sum(size for _, size in driver.locked) == layout.size_bytes
    assert max(size for _, size in driver.locked) <= piece_bytes
    assert len(driver.locked) == len(pieces) <= layout.size_bytes / piece_bytes * 1.01 + 2


def test_a21_the_same_region_in_one_call_is_refused_by_this_driver():
    assert FakeDriver().register(BASE, 511 * GiB) == 0
    assert FakeDriver().register(BASE, 513 * GiB) == INVALID_VALUE
    assert FakeDriver().register(BASE, ONE_CALL_LIMIT_BYTES) == INVALID_VALUE


@pytest.mark.parametrize("code", [INVALID_VALUE, OUT_OF_MEMORY])
@pytest.mark.parametrize("refused", [0, 1, 7, 15])
def test_a21_a_refused_piece_undoes_all_before_it_and_names_everything(refused, code, lock_path):
    region = HostRegion({0: PoolShape(16, 8_192)})
    driver = FakeDriver(refused, code)
    with pytest.raises(PinningError) as caught:
        region.pin(driver, 3, piece_bytes=8_192, lock_path=lock_path)
    for words in (
        r"^rank 3: 131072 bytes of anonymous host memory cannot be pinned",
        rf"piece {refused + 1} of 16 \(8192 bytes at offset {refused * 8_192}\)",
        rf"driver code {code};",
        r"limit of locked memory is (\d+ bytes|unlimited) here: raise it",
        r"lower max_local_cpu_size$",
    ):
        assert re.search(words, str(caught.value))
    assert driver.calls == ["register"] * (refused + 1) + ["clear"] + ["unregister"] * refused
    assert driver.released == [region.address + 8_192 * n for n in reversed(range(refused))]
    assert (driver.locked, driver.pending_error, driver.blamed) == ([], 0, [])
    assert not is_locked(lock_path)
    region.pin(FakeDriver(), 3, lock_path=lock_path)


def test_an_interrupt_undoes_as_well(lock_path):
    class Interrupted(FakeDriver):
        def register(self, address: int, size_bytes: int) -> int:
            if len(self.locked) == 2:
                raise KeyboardInterrupt
            return super().register(address, size_bytes)

    driver = Interrupted()
    with pytest.raises(KeyboardInterrupt):
        HostRegion({0: PoolShape(4, 4_096)}).pin(
            driver, 0, piece_bytes=4_096, lock_path=lock_path
        )  # fmt: skip
    assert driver.locked == []
    assert not is_locked(lock_path)


def test_closing_unpins_the_last_piece_first_and_once(lock_path):
    region = HostRegion({0: PoolShape(5, 4_096)})
    region.close()
    driver = FakeDriver()
    region.pin(driver, 0, piece_bytes=4_096, lock_path=lock_path)
    assert region.pinned.pieces == tuple(Piece(n * 4_096, 4_096) for n in range(5))
    region.close()
    region.close()
    assert driver.released == [region.address + n * 4_096 for n in reversed(range(5))]
    assert driver.calls == ["register"] * 5 + ["unregister"] * 5


def test_a_piece_that_cannot_be_unpinned_is_told_and_the_others_are(lock_path, caplog):
    pieces = tuple(Piece(n * 4_096, 4_096) for n in range(3))
    driver = FakeDriver()
    pinned = PinnedMemory("memory", BASE, pieces, driver, rank=2, lock_path=lock_path)
    driver.locked.pop(1)
    pinned.close()
    assert (driver.locked, driver.pending_error, driver.blamed) == ([], 0, [])
    assert "rank 2: 1 of 3 pieces of memory stay pinned" in caplog.text
    assert "driver code 713" in caplog.text


@pytest.mark.parametrize("piece_bytes", [-1, 0, MAX_PIECE_BYTES + 1, ONE_CALL_LIMIT_BYTES])
def test_pieces_beyond_64_gib_are_refused(piece_bytes):
    with pytest.raises(ValueError, match=f"pieces of {piece_bytes} bytes .* 1 to 68719476736"):
        lay_out({0: PoolShape(1, 64)}).pieces(piece_bytes)


def test_a_row_beyond_64_gib_is_refused_and_one_of_64_gib_is_a_piece():
    pieces = lay_out({0: PoolShape(3, MAX_PIECE_BYTES)}).pieces()
    assert_pieces(pieces, 3 * MAX_PIECE_BYTES, MAX_PIECE_BYTES)
    with pytest.raises(ValueError, match=f"rows of {MAX_PIECE_BYTES + 1} bytes .*max_local_cpu"):
        lay_out({0: PoolShape(3, MAX_PIECE_BYTES + 1)}).pieces()


def test_rows_that_never_meet_a_memory_page_are_cut_between_rows():
    row_bytes = GiB + 1
    layout = lay_out({}, extents=ExtentShape(row_bytes, 600, {}))
    pieces = layout.pieces()
    assert_pieces(pieces, layout.size_bytes, MAX_PIECE_BYTES)
    assert all(piece.offset_bytes % row_bytes == 0 for piece in pieces)


def pin_in_four_processes(locks: list[Path], log: Path, seconds: float) -> int:
    """Let them begin together; how many were inside the driver at once, at most."""
    with ExitStack() as stack:
        workers = [
            stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-m", "tests.host.pin_worker", lock, log, str(seconds)],
                    stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                )
            )
            for lock in locks
        ]  # fmt: skip
        for worker in workers:
            assert worker.stdout.readline() == "ready\n"
        for worker in workers:
            worker.stdin.write("go\n")
            worker.stdin.flush()
        assert [worker.wait() for worker in workers] == [0] * len(locks)
    assert log.read_text().count("enter") == 2 * len(locks)
    return most_inside(log)


def test_a21_four_processes_that_pin_at_once_are_never_in_the_driver_together(tmp_path, lock_path):
    assert pin_in_four_processes([lock_path] * 4, tmp_path / "log", seconds=0.1) == 1


def test_a21_with_a_lock_for_each_they_are(tmp_path):
    locks = [tmp_path / f"lock-{number}" for number in range(4)]
    assert pin_in_four_processes(locks, tmp_path / "log", seconds=60) > 1


def test_a21_a_process_killed_inside_the_driver_leaves_the_lock_free(tmp_path, lock_path):
    log = tmp_path / "log"
    log.touch()
    command = [sys.executable, "-m", "tests.host.pin_worker", lock_path, log, "600"]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as worker:
        worker.stdin.close()
        while not log.read_text():
            assert worker.poll() is None
        assert is_locked(lock_path)
        worker.send_signal(signal.SIGKILL)
    assert lock_path.read_text() == f"{worker.pid}\n"
    assert not is_locked(lock_path)
    HostRegion({0: PoolShape(4, 4_096)}).pin(FakeDriver(), 0, lock_path=lock_path)
    assert lock_path.read_text() == ""


def test_a_process_that_waits_says_for_whom(lock_path, caplog):
    caplog.set_level(logging.INFO, "lmc_grouped")
    waiting = threading.Event()
    caplog.handler.addFilter(lambda record: waiting.set() or True)
    region, driver = HostRegion({0: PoolShape(4, 4_096)}), FakeDriver()
    second = threading.Thread(target=region.pin, args=(driver, 1), kwargs={"lock_path": lock_path})
    with pinning_lock(lock_path, 0):
        second.start()
        assert waiting.wait(60)
        assert driver.calls == []
    second.join()
    assert f"rank 1: waiting until {os.getpid()} has pinned its memory ({lock_path})" in caplog.text
    assert "rank 1: 16384 bytes of anonymous host memory are pinned in 1 pieces" in caplog.text


def test_a_child_forked_meanwhile_does_not_keep_the_lock(lock_path):
    end, keep = os.pipe()
    with pinning_lock(lock_path, 0):
        child = os.fork()
        if child == 0:
            os.close(keep)
            os.read(end, 1)  # until the parent closes the other side, or is gone
            os._exit(0)
        assert is_locked(lock_path)
    assert not is_locked(lock_path)
    os.close(keep)
    os.waitpid(child, 0)
    os.close(end)


def test_a_lock_that_cannot_be_made_is_named_with_what_to_do(tmp_path):
    driver = FakeDriver()
    path = tmp_path / "missing" / "lock"
    with pytest.raises(PinningError, match=rf"^rank 5: {path} cannot be locked .*set TMPDIR"):
        HostRegion({0: PoolShape(1, 64)}).pin(driver, 5, lock_path=path)
    assert driver.calls == []


def test_a_link_in_place_of_the_lock_is_not_followed(tmp_path, lock_path):
    target = tmp_path / "precious"
    target.write_text("keep")
    lock_path.symlink_to(target)
    with pytest.raises(PinningError, match="cannot be locked"), pinning_lock(lock_path, 0):
        pass
    assert target.read_text() == "keep"


def test_the_lock_lies_with_the_temporary_files_and_belongs_to_the_user(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert default_lock_path() == tmp_path / f"lmc_grouped-pinning-{os.geteuid()}.lock"
    HostRegion({0: PoolShape(1, 64)}).pin(FakeDriver(), 0)
    assert default_lock_path().stat().st_mode & 0o777 == 0o600
