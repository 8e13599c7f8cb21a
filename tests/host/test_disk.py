"""The file tier: what is put is read back, by group, across restarts and within a quota."""

import mmap
import threading
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from lmc_grouped.core.keys import KeyFormatError
from lmc_grouped.host.disk import DiskError, PutAnswer, ReadOutcome, WriteEnd
from lmc_grouped.host.disk.fileio import takes_direct
from lmc_grouped.host.disk.groupfile import GroupFile
from tests.factories import A18_PAGE_BYTES, disk_key, namespace, page_of
from tests.host.conftest import KB

HIT, MISS = ReadOutcome.HIT, ReadOutcome.MISS
PAIRS = [disk_key(group_id, number) for number in range(4) for group_id in A18_PAGE_BYTES]


def test_a18_pages_of_groups_with_different_sizes_come_back_exactly(open_disk):
    disk = open_disk()
    assert disk.put(*PAIRS) == ["accepted"] * 8
    assert disk.read(PAIRS) == [HIT] * 8
    disk.tier.close()  # files are longer while more pages may come
    files = {path.name: path.stat().st_size for path in disk.tier.directory.glob("*.pages")}
    assert files == {"group_0.pages": 4 * 4_096, "group_1.pages": 4 * 1_024}


def test_a18_the_same_hash_names_a_page_of_each_group(open_disk):
    disk = open_disk()
    disk.put(disk_key(0, 1))
    assert disk.read([disk_key(0, 1), disk_key(1, 1)]) == [HIT, MISS]
    assert [disk.tier.has(disk_key(group_id, 1)) for group_id in (0, 1)] == [True, False]


def test_a_restart_finds_every_page_in_the_order_it_was_written(open_disk):
    disk = open_disk(threads=1)
    disk.put(*PAIRS)
    before = disk.tier.stored_pages()
    disk.tier.close()
    again = open_disk()
    assert again.tier.stored_pages() == before
    assert [(page.group_id, page.block_hash) for page in before] == PAIRS
    assert again.read(PAIRS) == [HIT] * 8


def test_a_page_that_is_there_is_not_written_again(open_disk):
    disk = open_disk()
    assert disk.put(disk_key(0, 1)) == ["accepted"]
    assert disk.put(disk_key(0, 1)) == ["present"]
    assert disk.tier.stats().refused_by_answer == {PutAnswer.PRESENT: 1}


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Page writes wait until the returned function is called."""
    opened = threading.Event()
    write_pages = GroupFile.write_pages

    def wait_and_write(file: GroupFile, slot: int, pages: Sequence[memoryview]) -> None:
        opened.wait()
        write_pages(file, slot, pages)

    monkeypatch.setattr(GroupFile, "write_pages", wait_and_write)
    return opened.set


def test_changes_are_told_in_order_once_somebody_follows(open_disk):
    disk = open_disk(threads=1)
    one, other = disk_key(0, 1), disk_key(1, 2)
    disk.put(one)
    assert disk.tier.take_changes() == []
    assert [page.block_hash for page in disk.tier.track_changes()] == [one[1]]
    disk.put(other)
    disk.tier.drop([one])
    disk.put(one)
    assert disk.tier.take_changes() == [(other, True), (one, False), (one, True)]
    assert disk.tier.take_changes() == []


def test_a_full_queue_refuses_at_once_and_is_counted(open_disk, gate):
    disk = open_disk(queue_bytes=2 * 4_096, threads=1)
    answers = [disk.tier.put(disk_key(0, n), page_of(disk_key(0, n), 4_096)) for n in range(4)]
    assert answers == [PutAnswer.ACCEPTED] * 2 + [PutAnswer.QUEUE_FULL] * 2
    assert disk.tier.stats().pending_bytes == 8_192
    assert not disk.tier.has(disk_key(0, 0)), "a page is visible before it is written"
    gate()
    disk.tier.flush()
    stats = disk.tier.stats()
    assert stats.pending_bytes == 0
    assert stats.refused_by_answer == {PutAnswer.QUEUE_FULL: 2}
    assert disk.read([disk_key(0, n) for n in range(4)]) == [HIT, HIT, MISS, MISS]


def test_a_page_larger_than_the_queue_is_accepted_when_nothing_waits(open_disk):
    disk = open_disk(queue_bytes=1)
    assert disk.put(disk_key(0, 1)) == ["accepted"]


def test_every_accepted_page_gets_one_end(open_disk):
    ends = []
    disk = open_disk()
    for key in PAIRS:
        page = page_of(key, A18_PAGE_BYTES[key[0]])
        disk.tier.put(key, page, lambda key, end: ends.append((key, end)))
    disk.tier.close()
    assert sorted(ends) == sorted((key, WriteEnd.STORED) for key in PAIRS)


def test_a_callback_that_fails_is_logged_and_writing_goes_on(open_disk, caplog):
    def fail(*_) -> None:
        raise RuntimeError("the caller's own fault")

    disk = open_disk(threads=1)
    disk.tier.put(PAIRS[0], page_of(PAIRS[0], 4_096), fail)
    assert disk.put(PAIRS[1]) == ["accepted"]
    assert disk.hits(PAIRS[:2]) == PAIRS[:2]
    assert "the caller's own fault" in caplog.text


def test_a_dropped_page_is_gone_after_a_restart_too(open_disk):
    disk = open_disk()
    disk.put(*PAIRS)
    assert disk.tier.drop([PAIRS[0], disk_key(0, 77)]) == 1
    assert disk.tier.stats().used_bytes == 4 * 5 * KB - 4_096
    disk.tier.close()
    assert open_disk().hits(PAIRS) == PAIRS[1:]


def test_a_page_dropped_while_it_is_written_never_becomes_visible(open_disk, gate):
    disk = open_disk(threads=1)
    ends = []
    for number in (1, 2):  # the first is being written, the second waits
        key = disk_key(0, number)
        disk.tier.put(key, page_of(key, 4_096), lambda _, end: ends.append(end))
    assert disk.tier.drop([disk_key(0, 1), disk_key(0, 2)]) == 2
    gate()
    disk.tier.flush()
    assert ends == [WriteEnd.DROPPED] * 2
    assert disk.tier.stats().used_bytes == 0
    assert disk.put(disk_key(0, 1)) == ["accepted"]
    assert disk.hits([disk_key(0, 1), disk_key(0, 2)]) == [disk_key(0, 1)]


def test_a_page_that_leaves_while_it_is_read_keeps_its_slot_until_then(open_disk, monkeypatch):
    disk = open_disk(threads=1)
    disk.put(disk_key(0, 1))
    entered, go_on = threading.Event(), threading.Event()
    read_pages = GroupFile.read_pages

    def wait_and_read(*arguments) -> int:
        entered.set()
        go_on.wait()
        return read_pages(*arguments)

    monkeypatch.setattr(GroupFile, "read_pages", wait_and_read)
    buffer = bytearray(4_096)
    future = disk.tier.start_read([disk_key(0, 1)], [buffer])
    entered.wait()
    disk.tier.drop([disk_key(0, 1)])
    disk.put(disk_key(0, 2))  # would take the slot if it were free
    go_on.set()
    assert future.result() == [HIT]
    assert buffer == page_of(disk_key(0, 1), 4_096)
    disk.tier.flush()
    assert disk.tier.stats().groups[0].pages == 1
    monkeypatch.setattr(GroupFile, "read_pages", read_pages)
    assert disk.hits([disk_key(0, 1), disk_key(0, 2)]) == [disk_key(0, 2)]


def test_a_slot_is_freed_once_though_reader_and_dropper_both_would(open_disk, monkeypatch):
    disk = open_disk(threads=1)
    disk.put(disk_key(0, 1))
    reading, go_on, writing, write_on = (threading.Event() for _ in range(4))

    def wait_and_read(*_) -> int:
        reading.set()
        go_on.wait()
        return 4_096

    def wait_and_write(*_) -> None:
        writing.set()
        write_on.wait()

    monkeypatch.setattr(GroupFile, "read_pages", wait_and_read)
    monkeypatch.setattr(GroupFile, "write_pages", wait_and_write)
    future = disk.tier.start_read([disk_key(0, 1)], [bytearray(4_096)])
    reading.wait()
    disk.tier.put(disk_key(1, 1), bytes(1_024))
    writing.wait()  # what drop and reader leave to the writer waits behind this page
    disk.tier.drop([disk_key(0, 1)])
    go_on.set()
    future.result()
    write_on.set()
    disk.tier.flush()
    assert disk.tier.stats().groups[0].pages == 0
    monkeypatch.undo()
    assert disk.put(disk_key(0, 2), disk_key(0, 3)) == ["accepted"] * 2
    assert disk.hits([disk_key(0, 2), disk_key(0, 3)]) == [disk_key(0, 2), disk_key(0, 3)]


def test_neighbours_are_read_in_one_call(open_disk, monkeypatch):
    disk = open_disk(threads=1)
    keys = [disk_key(1, number) for number in range(40)]
    disk.put(*keys)
    disk.tier.drop([keys[20]])
    calls = []
    read_pages = GroupFile.read_pages

    def note_and_read(file, first_slot, views) -> int:
        calls.append((first_slot, len(views)))
        return read_pages(file, first_slot, views)

    monkeypatch.setattr(GroupFile, "read_pages", note_and_read)
    assert disk.hits(list(reversed(keys))) == [*reversed(keys[21:]), *reversed(keys[:20])]
    assert sorted(calls) == [(0, 20), (21, 19)]


def test_one_page_may_be_read_into_two_buffers(open_disk):
    disk = open_disk()
    disk.put(disk_key(1, 1))
    assert disk.read([disk_key(1, 1)] * 2) == [HIT] * 2


def test_aligned_buffers_go_past_the_page_cache_and_others_do_not(open_disk, tmp_path):
    disk = open_disk(200 * KB, ns=namespace({0: 8_192, 1: 1_000}))
    groups = disk.tier.stats().groups
    assert groups[0].is_direct == takes_direct(tmp_path)
    assert not groups[1].is_direct
    room = np.frombuffer(mmap.mmap(-1, 16_384), dtype=np.uint8)
    for number, buffer in enumerate((room[:8_192], room[8_192:], room[1:8_193])):
        key = disk_key(0, number)
        buffer[:] = np.frombuffer(page_of(key, 8_192), dtype=np.uint8)
        assert disk.tier.put(key, buffer) is PutAnswer.ACCEPTED
        disk.tier.flush()
        for into in (room[:8_192], room[1:8_193]):
            into[:] = 0
            assert disk.tier.read([key], [into]) == [HIT]
            assert into.tobytes() == page_of(key, 8_192)


def test_a_closed_tier_takes_nothing_and_says_so(open_disk):
    disk = open_disk()
    disk.tier.close()
    disk.tier.close()
    assert disk.tier.put(disk_key(0, 1), bytes(4_096)) is PutAnswer.CLOSED
    with pytest.raises(DiskError, match="closed"):
        disk.tier.read([disk_key(0, 1)], [bytearray(4_096)])


@pytest.mark.parametrize(
    ("key", "size", "error", "says"),
    [
        (disk_key(5, 1), 4_096, DiskError, r"group 5 is not stored; stored groups are \[0, 1\]"),
        (disk_key(1, 1), 4_096, DiskError, "group 1: a buffer of 4096 bytes; a page has 1024"),
        ((0, bytes(41)), 4_096, KeyFormatError, "the block hash has 41 bytes"),
    ],
)
def test_a_page_that_fits_no_group_is_refused(open_disk, key, size, error, says):
    with pytest.raises(error, match=says):
        open_disk().tier.put(key, bytes(size))


def test_a_buffer_that_cannot_be_read_into_is_refused(open_disk):
    disk = open_disk()
    with pytest.raises(DiskError, match="read-only"):
        disk.tier.read([disk_key(0, 1)], [bytes(4_096)])
    with pytest.raises(DiskError, match="gaps"):
        disk.tier.read([disk_key(1, 1)], [np.zeros(2_048, np.uint8)[::2]])


def test_groups_without_bytes_on_this_rank_are_left_out(open_disk):
    disk = open_disk(ns=namespace({0: 0, 1: 1_024}))
    assert list(disk.tier.stats().groups) == [1]
    with pytest.raises(DiskError, match="no group has bytes"):
        open_disk(ns=namespace({0: 0}))
