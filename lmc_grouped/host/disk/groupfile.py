"""The two files of one group: ``group_N.pages`` and ``group_N.records``."""

import errno
import os
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path

from lmc_grouped.host.disk.directory import set_aside
from lmc_grouped.host.disk.fileio import (
    DIRECT_BYTES,
    address_of,
    punch_hole,
    read_fully,
    take_room,
    write_fully,
)
from lmc_grouped.host.disk.format import (
    FREE_RECORD,
    FileHeader,
    Record,
    encode_header,
    encode_record,
    record_offset,
)
from lmc_grouped.host.disk.recovery import GroupContents, HeaderState, read_contents


def pages_path(directory: Path, group_id: int) -> Path:
    """Slot after slot, each as long as a page of the group."""
    return directory / f"group_{group_id}.pages"


def records_path(directory: Path, group_id: int) -> Path:
    """A header, then the record of each slot."""
    return directory / f"group_{group_id}.records"


class GroupFile:
    """Reads and writes pages by slot. Which slots are whose is the catalogue's business.

    Args:
        header: whose pages these are; a file of anyone else is set aside.
        direct: go past the page cache where page size and buffers allow it.

    Raises:
        OSError: the files cannot be opened.
    """

    def __init__(self, directory: Path, header: FileHeader, *, direct: bool) -> None:
        self.page_bytes = header.page_bytes
        self._header = header
        self._paths = (
            pages_path(directory, header.group_id),
            records_path(directory, header.group_id),
        )
        self._pages, self._records = self._open_both()
        self._direct: int | None = None
        self._wants_direct = direct and self.page_bytes % DIRECT_BYTES == 0

    def _open_both(self) -> tuple[int, int]:
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        pages = os.open(self._paths[0], flags, 0o644)
        try:
            return pages, os.open(self._paths[1], flags, 0o644)
        except OSError:
            os.close(pages)
            raise

    def _open_direct(self) -> int | None:
        try:
            return os.open(self._paths[0], os.O_RDWR | os.O_CLOEXEC | os.O_DIRECT)
        except OSError:
            return None

    @property
    def is_direct(self) -> bool:
        """Whether aligned buffers go past the page cache."""
        return self._direct is not None

    def recover(self) -> GroupContents:
        """Read the records and make everything that is no page free; once, at first.

        Raises:
            OSError: the files cannot be read or written; they are closed then.
        """
        try:
            records = self._read_records()
            contents = read_contents(records, os.fstat(self._pages).st_size, self._header)
            if contents.header is HeaderState.FOREIGN:
                self._set_aside()
            if contents.header is HeaderState.OURS:
                self.clear_records(contents.cleared_slots)
                self.truncate(contents.pages[-1][0] + 1 if contents.pages else 0)
            else:
                os.ftruncate(self._pages, 0)
                os.ftruncate(self._records, 0)
                write_fully(self._records, [encode_header(self._header)], 0)
        except OSError:
            self.close()
            raise
        if self._wants_direct:
            self._direct = self._open_direct()
        return contents

    def _set_aside(self) -> None:
        for path in self._paths:
            set_aside(path)
        theirs = self._pages, self._records
        self._pages, self._records = self._open_both()
        for fd in theirs:
            os.close(fd)

    def _read_records(self) -> bytes:
        size = os.fstat(self._records).st_size
        buffer = bytearray(size)
        if read_fully(self._records, [memoryview(buffer)], 0) != size:
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(self._paths[1]))
        return bytes(buffer)

    def _pages_fd(self, views: Iterable[memoryview]) -> int:
        """Direct where every buffer is aligned, else through the page cache."""
        if self._direct is None:
            return self._pages
        aligned = all(address_of(view) % DIRECT_BYTES == 0 for view in views)
        return self._direct if aligned else self._pages

    def write_pages(self, first_slot: int, pages: Sequence[memoryview]) -> None:
        """Write pages of ``page_bytes`` into neighbouring slots, in one go where possible.

        They are invisible until their records are written.
        """
        write_fully(self._pages_fd(pages), pages, first_slot * self.page_bytes)

    def write_records(self, first_slot: int, records: Iterable[Record]) -> None:
        """Make the pages in neighbouring slots visible to the next opening."""
        data = b"".join(encode_record(record) for record in records)
        write_fully(self._records, [data], record_offset(first_slot))

    def clear_records(self, slots: Iterable[int]) -> None:
        """Make slots free to the next opening; neighbours go in one write."""
        ordered = sorted(slots)
        starts = ordered[:1] + [b for a, b in pairwise(ordered) if b != a + 1]
        ends = [a for a, b in pairwise(ordered) if b != a + 1] + ordered[-1:]
        for first, last in zip(starts, ends, strict=True):
            free = FREE_RECORD * (last - first + 1)
            write_fully(self._records, [free], record_offset(first))

    def read_pages(self, first_slot: int, views: Sequence[memoryview]) -> int:
        """Read neighbouring slots into one view each, in one go where the system allows.

        Returns:
            Bytes read; fewer than asked for where the file ends.
        """
        return read_fully(self._pages_fd(views), views, first_slot * self.page_bytes)

    def grow(self, first_slot: int, slots: int) -> None:
        """Take room for slots behind the end ahead of writing them.

        Writes inside a file run side by side, those that lengthen it one by one.
        Where it fails, writing a page says why.
        """
        if take_room(self._records, 0, record_offset(first_slot + slots)):
            take_room(self._pages, first_slot * self.page_bytes, slots * self.page_bytes)

    def punch(self, slot: int) -> bool:
        """Give the room of a free slot back to the file system; False where it cannot."""
        return punch_hole(self._pages, slot * self.page_bytes, self.page_bytes)

    def truncate(self, slots: int) -> None:
        """Cut both files behind that many slots."""
        os.ftruncate(self._pages, slots * self.page_bytes)
        os.ftruncate(self._records, record_offset(slots))

    def close(self) -> None:
        """Close the files."""
        for fd in (self._pages, self._records, self._direct):
            if fd is not None:
                os.close(fd)
