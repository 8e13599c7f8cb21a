"""Damaged stores: a miss for the group it happened to, found, counted and reclaimed."""

import errno
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from lmc_grouped.host.disk import ReadOutcome
from lmc_grouped.host.disk.format import (
    HEADER_BYTES,
    RECORD_BYTES,
    FileHeader,
    decode_header,
    encode_header,
    record_offset,
)
from lmc_grouped.host.disk.groupfile import GroupFile, pages_path, records_path
from lmc_grouped.host.disk.inspection import verify_store
from tests.factories import A18_PAGE_BYTES, disk_key, namespace
from tests.host.conftest import KB

PAGES = 6
KEYS = {group_id: [disk_key(group_id, n) for n in range(PAGES)] for group_id in A18_PAGE_BYTES}
ALL = [key for keys in KEYS.values() for key in keys]


@dataclass(frozen=True, slots=True)
class Damage:
    """Something done to one group's files, and how many of its pages that costs."""

    apply: Callable[[Path, Path], None]
    """Given the page file and the record file."""
    lost_slots: tuple[int, ...]
    counted: str = ""
    """The counter of recovery that notes it; empty when a read finds it."""


def cut(path: Path, by: int) -> None:
    os.truncate(path, path.stat().st_size - by)


def append(path: Path, data: bytes) -> None:
    with path.open("ab") as file:
        file.write(data)


def flip(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)


def zero(path: Path, offset: int, size: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset : offset + size] = bytes(size)
    path.write_bytes(data)


def insert(path: Path, offset: int) -> None:
    data = path.read_bytes()
    path.write_bytes(data[:offset] + b"!" + data[offset:])


def make_foreign(path: Path) -> None:
    """As if the record file came from the store of another model."""
    header = decode_header(path.read_bytes())
    assert header is not None
    other = namespace(model="other").digest()
    data = bytearray(path.read_bytes())
    data[:HEADER_BYTES] = encode_header(FileHeader(other, header.group_id, header.page_bytes))
    path.write_bytes(data)


def swap_records(path: Path) -> None:
    """Two whole records change places: each is right in itself, and lies."""
    data = path.read_bytes()
    one, two, end = record_offset(1), record_offset(2), record_offset(3)
    path.write_bytes(data[:one] + data[two:end] + data[one:two] + data[end:])


EVERY = tuple(range(PAGES))
LAST = (PAGES - 1,)
DAMAGES = {
    "pages truncated by one byte": Damage(lambda p, r: cut(p, 1), LAST, "short_pages"),
    "records truncated by one byte": Damage(lambda p, r: cut(r, 1), LAST, "unrecorded_pages"),
    "pages longer by one byte": Damage(lambda p, r: append(p, b"!"), (), "unrecorded_pages"),
    "records longer by one byte": Damage(lambda p, r: append(r, b"!"), (), "trailing_record_bytes"),
    "a byte inserted into a page": Damage(lambda p, r: insert(p, 10), EVERY),
    "one flipped bit in a page": Damage(lambda p, r: flip(p, p.stat().st_size - 7), LAST),
    "one flipped bit in a record": Damage(
        lambda p, r: flip(r, record_offset(2) + 30), (2,), "damaged_records"
    ),
    "one flipped bit in the header": Damage(lambda p, r: flip(r, 9), EVERY, "header"),
    "pages of zero length": Damage(lambda p, r: os.truncate(p, 0), EVERY, "short_pages"),
    "records of zero length": Damage(lambda p, r: os.truncate(r, 0), EVERY, "header"),
    "a missing record": Damage(lambda p, r: zero(r, record_offset(3), RECORD_BYTES), (3,), "-"),
    "a half-written page": Damage(lambda p, r: zero(p, p.stat().st_size - 512, 512), LAST),
    "two records swapped": Damage(lambda p, r: swap_records(r), (1, 2)),
    "a missing page file": Damage(lambda p, r: p.unlink(), EVERY, "short_pages"),
    "a missing record file": Damage(lambda p, r: r.unlink(), EVERY, "header"),
    "records of another namespace": Damage(lambda p, r: make_foreign(r), EVERY, "header"),
}


@pytest.fixture
def directory(open_disk) -> Path:
    """A closed store with six pages of each group, page n in slot n."""
    disk = open_disk(threads=1)
    disk.put(*ALL)
    disk.tier.close()
    return disk.tier.directory


def survivors(group_id: int, lost_slots: tuple[int, ...]) -> list[tuple[int, bytes]]:
    """All keys but those of the slots, of the other group all."""
    return [key for key in ALL if key[0] != group_id or KEYS[group_id].index(key) not in lost_slots]


@pytest.mark.parametrize("group_id", A18_PAGE_BYTES)
@pytest.mark.parametrize("name", DAMAGES)
def test_damage_costs_the_pages_it_touched_and_no_other_group(open_disk, directory, name, group_id):
    damage = DAMAGES[name]
    damage.apply(pages_path(directory, group_id), records_path(directory, group_id))
    disk = open_disk()
    kept = survivors(group_id, damage.lost_slots)
    assert disk.hits(ALL) == kept
    disk.tier.flush()
    stats = disk.tier.stats()
    assert stats.used_bytes == sum(A18_PAGE_BYTES[gid] for gid, _ in kept)
    recovered = {group.group_id: group for group in stats.recovered}
    assert recovered[1 - group_id].faults == 0
    if damage.counted == "":
        assert stats.damaged_pages == len(damage.lost_slots)
    elif damage.counted == "header":
        assert recovered[group_id].header in ("damaged", "foreign")
    elif damage.counted != "-":
        assert getattr(recovered[group_id], damage.counted) == max(1, len(damage.lost_slots))


@pytest.mark.parametrize("name", DAMAGES)
def test_what_was_lost_is_reclaimed_and_can_be_stored_again(open_disk, directory, name):
    damage = DAMAGES[name]
    damage.apply(pages_path(directory, 0), records_path(directory, 0))
    disk = open_disk()
    disk.read(ALL)
    disk.tier.flush()  # slots of damaged pages are freed in the background
    disk.put(*ALL)
    assert disk.hits(ALL) == ALL
    disk.tier.close()
    assert pages_path(directory, 0).stat().st_size == PAGES * A18_PAGE_BYTES[0]
    again = open_disk()
    assert again.hits(ALL) == ALL
    assert [group.faults for group in again.tier.stats().recovered] == [0, 0]


@pytest.mark.parametrize("group_id", A18_PAGE_BYTES)
@pytest.mark.parametrize("name", sorted(set(DAMAGES) - {"a missing record"}))
def test_verify_finds_the_damage_in_its_group(directory, name, group_id):
    DAMAGES[name].apply(pages_path(directory, group_id), records_path(directory, group_id))
    report = {group.group_id: group for group in verify_store(directory, lambda _: None)}
    assert not report[group_id].is_right
    assert report[1 - group_id].is_right


def test_verify_passes_a_store_that_is_right(directory):
    assert [group.pages for group in verify_store(directory, lambda _: None)] == [PAGES, PAGES]
    assert all(group.is_right for group in verify_store(directory, lambda _: None))


def test_a_missing_record_is_a_page_fewer(directory):
    """Indistinguishable from a page that was evicted, so nothing is wrong with the store."""
    zero(records_path(directory, 0), record_offset(3), RECORD_BYTES)
    first, second = verify_store(directory, lambda _: None)
    assert (first.pages, second.pages) == (PAGES - 1, PAGES)


def test_files_of_another_namespace_are_set_aside_and_not_deleted(open_disk, directory):
    make_foreign(records_path(directory, 0))
    theirs = records_path(directory, 0).read_bytes()
    open_disk()
    assert (directory / "group_0.records.set-aside").read_bytes() == theirs
    assert (directory / "group_0.pages.set-aside").stat().st_size == PAGES * 4_096


def test_a_record_written_twice_counts_once_and_the_later_one_wins(open_disk, directory):
    path = records_path(directory, 0)
    data = bytearray(path.read_bytes())
    first, last = record_offset(0), record_offset(PAGES - 1)
    data[first : first + RECORD_BYTES] = data[last : last + RECORD_BYTES]
    path.write_bytes(data)
    # Equal stamps: either slot may win; a page that is not the record's is found by its CRC.
    disk = open_disk()
    assert disk.tier.stats().recovered[0].repeated_keys == 1
    assert set(disk.hits(KEYS[0])) >= set(KEYS[0][1:-1])


@pytest.mark.parametrize("path_of", [pages_path, records_path])
def test_a_group_whose_file_cannot_be_opened_is_a_miss_and_takes_no_pages(
    open_disk, directory, path_of
):
    path_of(directory, 0).unlink()
    path_of(directory, 0).mkdir()
    disk = open_disk()
    assert disk.hits(ALL) == KEYS[1]
    assert disk.put(disk_key(0, 50), disk_key(1, 50)) == ["unavailable", "accepted"]
    assert disk.tier.stats().recovered[0].unreadable is not None


def test_a_group_whose_file_may_not_be_read_is_a_miss(open_disk, directory, monkeypatch):
    """An open that is refused, faked: root may read everything."""
    real_open = os.open

    def refuse(path, *arguments, **named) -> int:
        if Path(path).name == "group_0.pages":
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return real_open(path, *arguments, **named)

    monkeypatch.setattr(os, "open", refuse)
    disk = open_disk()
    assert disk.hits(ALL) == KEYS[1]
    assert "Permission denied" in str(disk.tier.stats().recovered[0].unreadable)


def test_a_bad_sector_costs_one_page_of_a_merged_read(open_disk, directory, monkeypatch):
    read_pages = GroupFile.read_pages

    def fail_at_slot_3(file, first_slot, views) -> int:
        if file.page_bytes == 1_024 and first_slot <= 3 < first_slot + len(views):
            raise OSError(errno.EIO, "Input/output error")
        return read_pages(file, first_slot, views)

    monkeypatch.setattr(GroupFile, "read_pages", fail_at_slot_3)
    disk = open_disk()
    lost = KEYS[1][3]
    assert disk.hits(ALL) == [key for key in ALL if key != lost]
    assert disk.read([lost]) == [ReadOutcome.MISS]
    assert disk.tier.stats().damaged_pages == 1


def test_a_page_file_cut_under_a_running_tier_is_damage_not_wrong_bytes(open_disk, directory):
    disk = open_disk()
    os.truncate(pages_path(directory, 1), 2 * KB + 100)
    assert disk.hits(KEYS[1]) == KEYS[1][:2]
    assert disk.tier.stats().damaged_pages == PAGES - 2


@pytest.mark.parametrize("path_of", [pages_path, records_path])
def test_verify_finds_a_file_that_cannot_be_read(directory, path_of):
    path_of(directory, 0).unlink()
    path_of(directory, 0).mkdir()
    first, second = verify_store(directory, lambda _: None)
    assert first.contents.unreadable is not None
    assert (first.is_right, second.is_right) == (False, True)


def test_verify_finds_a_group_without_any_file(directory):
    for path_of in (pages_path, records_path):
        path_of(directory, 0).unlink()
    assert [group.is_right for group in verify_store(directory, lambda _: None)] == [False, True]
