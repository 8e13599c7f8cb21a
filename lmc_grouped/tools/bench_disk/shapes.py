"""Shapes a file tier could have on disk, each in its smallest form.

The same pages and records in slot files, segment files, one file per page, and
slot files with their records in LMDB. One thread, page cache on, CRC on: what
differs is only where bytes and records lie. `docs/disk.md` has the outcome.
"""

import os
import struct
import zlib
from pathlib import Path
from typing import Any, Protocol

RECORD = struct.Struct("<32sQIQ")
"""Key, length, CRC32, place."""
SEGMENT_BYTES = 64 * 2**20
LMDB_BATCH_PAGES = 16
"""Pages per transaction: one page each is four times slower."""


class Shape(Protocol):
    """One way to keep pages: `put` and `get` by key, `recover` from files only."""

    def put(self, key: bytes, page: memoryview) -> None:
        """Write one page and its record."""

    def get(self, key: bytes, into: memoryview) -> bool:
        """Read one page; whether its CRC fits."""

    def recover(self) -> int:
        """Rebuild the index; the number of records."""

    def close(self) -> None:
        """Close the files."""


def _open(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT)


class Slots:
    """A file of equal slots, and a file with one record per slot."""

    name = "slot files"

    def __init__(self, directory: Path, page_bytes: int) -> None:
        self.page_bytes = page_bytes
        self.pages, self.records = _open(directory / "pages"), _open(directory / "records")
        self.index: dict[bytes, tuple[int, int]] = {}

    def put(self, key: bytes, page: memoryview) -> None:
        slot, crc = len(self.index), zlib.crc32(page)
        os.pwrite(self.pages, page, slot * self.page_bytes)
        os.pwrite(self.records, RECORD.pack(key, len(page), crc, slot), slot * RECORD.size)
        self.index[key] = slot, crc

    def get(self, key: bytes, into: memoryview) -> bool:
        slot, crc = self.index[key]
        os.preadv(self.pages, [into], slot * self.page_bytes)
        return zlib.crc32(into) == crc

    def recover(self) -> int:
        data = os.pread(self.records, os.fstat(self.records).st_size, 0)
        self.index = {key: (slot, crc) for key, _, crc, slot in RECORD.iter_unpack(data)}
        return len(self.index)

    def close(self) -> None:
        os.close(self.pages)
        os.close(self.records)


class Segments:
    """Append-only files of at most 64 MiB; a page's record lies before it."""

    name = "segment files"

    def __init__(self, directory: Path, page_bytes: int) -> None:
        self.directory, self.page_bytes = directory, page_bytes
        self.files: list[int] = []
        self.end = SEGMENT_BYTES
        self.index: dict[bytes, tuple[int, int, int]] = {}

    def put(self, key: bytes, page: memoryview) -> None:
        if self.end + RECORD.size + len(page) > SEGMENT_BYTES:
            self.files.append(_open(self.directory / f"{len(self.files):06}"))
            self.end = 0
        crc, file = zlib.crc32(page), self.files[-1]
        os.pwrite(file, page, self.end + RECORD.size)
        os.pwrite(file, RECORD.pack(key, len(page), crc, self.end), self.end)
        self.index[key] = file, self.end + RECORD.size, crc
        self.end += RECORD.size + len(page)

    def get(self, key: bytes, into: memoryview) -> bool:
        file, offset, crc = self.index[key]
        os.preadv(file, [into], offset)
        return zlib.crc32(into) == crc

    def recover(self) -> int:
        self.index = {}
        self.files = [_open(path) for path in sorted(self.directory.iterdir())]
        for file in self.files:
            size, offset = os.fstat(file).st_size, 0
            while offset < size:
                key, length, crc, _ = RECORD.unpack(os.pread(file, RECORD.size, offset))
                self.index[key] = file, offset + RECORD.size, crc
                offset += RECORD.size + length
        return len(self.index)

    def close(self) -> None:
        for file in self.files:
            os.close(file)


class PageFiles:
    """One file per page, its record in front; 256 folders."""

    name = "a file per page"

    def __init__(self, directory: Path, page_bytes: int) -> None:
        self.directory, self.page_bytes = directory, page_bytes
        self.index: dict[bytes, int] = {}
        for first in range(256):
            (directory / f"{first:02x}").mkdir(exist_ok=True)

    def _path(self, key: bytes) -> str:
        name = key.hex()
        return f"{self.directory}/{name[:2]}/{name[2:]}"

    def put(self, key: bytes, page: memoryview) -> None:
        crc = zlib.crc32(page)
        file = os.open(self._path(key), os.O_WRONLY | os.O_CREAT)
        os.writev(file, [RECORD.pack(key, len(page), crc, 0), page])
        os.close(file)
        self.index[key] = crc

    def get(self, key: bytes, into: memoryview) -> bool:
        file = os.open(self._path(key), os.O_RDONLY)
        os.preadv(file, [into], RECORD.size)
        os.close(file)
        return zlib.crc32(into) == self.index[key]

    def recover(self) -> int:
        self.index = {}
        for folder in os.scandir(self.directory):
            for entry in os.scandir(folder):
                file = os.open(entry.path, os.O_RDONLY)
                key, _, crc, _ = RECORD.unpack(os.pread(file, RECORD.size, 0))
                os.close(file)
                self.index[key] = crc
        return len(self.index)

    def close(self) -> None:
        """Nothing is kept open."""


class Lmdb:
    """Pages in a slot file, records in LMDB without its own syncs."""

    name = "slot file + LMDB"

    def __init__(self, directory: Path, page_bytes: int) -> None:
        import lmdb

        self.page_bytes = page_bytes
        self.pages = _open(directory / "pages")
        # Any: LMDB has no type stubs and is not a dependency.
        self.env: Any = lmdb.open(
            str(directory / "records"), map_size=2**30, sync=False, metasync=False, writemap=True
        )
        self.index: dict[bytes, tuple[int, int]] = {}
        self.waiting: list[tuple[bytes, bytes]] = []

    def put(self, key: bytes, page: memoryview) -> None:
        slot, crc = len(self.index), zlib.crc32(page)
        os.pwrite(self.pages, page, slot * self.page_bytes)
        self.waiting.append((key, RECORD.pack(key, len(page), crc, slot)))
        if len(self.waiting) >= LMDB_BATCH_PAGES:
            self._commit()
        self.index[key] = slot, crc

    def _commit(self) -> None:
        with self.env.begin(write=True) as transaction:
            for key, record in self.waiting:
                transaction.put(key, record)
        self.waiting = []

    def get(self, key: bytes, into: memoryview) -> bool:
        slot, crc = self.index[key]
        os.preadv(self.pages, [into], slot * self.page_bytes)
        return zlib.crc32(into) == crc

    def recover(self) -> int:
        with self.env.begin() as transaction:
            records = (RECORD.unpack(value) for _, value in transaction.cursor())
            self.index = {key: (slot, crc) for key, _, crc, slot in records}
        return len(self.index)

    def close(self) -> None:
        self._commit()
        self.env.close()
        os.close(self.pages)


SHAPES = (Slots, Segments, PageFiles, Lmdb)
