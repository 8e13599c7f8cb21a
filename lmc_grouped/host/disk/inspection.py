"""Stores as they lie on disk, without opening them as a tier: nothing is repaired here."""

import os
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from lmc_grouped.core.keys import Namespace
from lmc_grouped.host.disk.checksum import crc32
from lmc_grouped.host.disk.directory import (
    SET_ASIDE,
    StoreInUseError,
    read_namespace,
    shared_lock,
)
from lmc_grouped.host.disk.fileio import read_fully
from lmc_grouped.host.disk.format import (
    HEADER_BYTES,
    MAX_PAGE_BYTES,
    FileHeader,
    Record,
    decode_header,
)
from lmc_grouped.host.disk.groupfile import pages_path, records_path
from lmc_grouped.host.disk.recovery import GroupContents, HeaderState, read_contents

_RANK = re.compile(r"rank_(\d+)")
_GROUP = re.compile(r"group_(\d+)\.(?:pages|records)")
_DIGEST = re.compile(r"[0-9a-f]{32}")

OnBytes = Callable[[int], None]
"""Told how many bytes were read since it was told last."""


@dataclass(frozen=True, slots=True)
class StoreInfo:
    """One store: the pages of one namespace and rank."""

    directory: Path
    namespace: Namespace | None
    """``None``: ``namespace.json`` is missing, damaged, or of another version."""
    groups: tuple[GroupContents, ...]
    allocated_bytes: int
    """What the file system gave to all files of the store."""
    set_aside_bytes: int
    in_use_by: str | None
    """Why the store cannot be had now."""

    @property
    def digest(self) -> str:
        """The name of the namespace's directory."""
        return self.directory.parent.name

    @property
    def rank(self) -> int:
        """Whose pages these are."""
        return int(self.directory.name.removeprefix("rank_"))

    @property
    def is_named_right(self) -> bool:
        """Whether ``namespace.json`` is what the directory's name says."""
        return self.namespace is not None and self.namespace.digest() == self.digest

    @property
    def pages(self) -> int:
        """Of all groups."""
        return sum(len(group.pages) for group in self.groups)

    @property
    def page_bytes(self) -> int:
        """Bytes of all pages."""
        return sum(len(group.pages) * group.page_bytes for group in self.groups)


def find_stores(root: Path) -> list[Path]:
    """Directories of stores below ``root``, in order; only names that a tier gives."""
    return sorted(
        path
        for path in root.glob("*/rank_*")
        if path.is_dir() and _DIGEST.fullmatch(path.parent.name) and _RANK.fullmatch(path.name)
    )


def inspect_store(directory: Path) -> StoreInfo:
    """Read the records of a store; its pages are not read."""
    namespace = read_namespace(directory)
    groups = tuple(read_group(directory, header) for header in _headers(directory, namespace))
    in_use_by = None
    try:
        with shared_lock(directory):
            pass
    except StoreInUseError as error:
        in_use_by = str(error)
    sizes = {path.name: path.stat().st_blocks * 512 for path in directory.iterdir()}
    aside = sum(size for name, size in sizes.items() if name.endswith(SET_ASIDE))
    return StoreInfo(directory, namespace, groups, sum(sizes.values()), aside, in_use_by)


def read_group(directory: Path, header: FileHeader) -> GroupContents:
    """What the two files of a group hold; a missing file is an empty one."""
    try:
        pages, records = (path(directory, header.group_id) for path in (pages_path, records_path))
        data = records.read_bytes() if records.exists() else b""
        size = pages.stat().st_size if pages.exists() else 0
        if pages.is_dir():
            raise IsADirectoryError(f"{pages} is a directory")
    except OSError as error:
        return GroupContents(
            header.group_id, header.page_bytes, HeaderState.DAMAGED, unreadable=str(error)
        )
    return read_contents(data, size, header)


def _headers(directory: Path, namespace: Namespace | None) -> list[FileHeader]:
    """What the head of each group's file should be, by namespace or else by the file itself."""
    digest = directory.parent.name
    if namespace is not None:
        sizes = namespace.page_bytes_by_group
        return [FileHeader(digest, group_id, size) for group_id, size in sizes.items() if size]
    names = (_GROUP.fullmatch(path.name) for path in directory.iterdir())
    headers = []
    for group_id in sorted({int(name[1]) for name in names if name}):
        found = None
        try:
            with records_path(directory, group_id).open("rb") as file:
                found = decode_header(file.read(HEADER_BYTES))
        except OSError:
            pass  # read_group says why
        page_bytes = found.page_bytes if found else MAX_PAGE_BYTES
        headers.append(FileHeader(digest, group_id, page_bytes))
    return headers


@dataclass(frozen=True, slots=True)
class GroupReport:
    """What reading every page of one group found."""

    contents: GroupContents
    wrong_pages: int
    """Pages whose bytes are not those that were written, or cannot be read."""

    @property
    def group_id(self) -> int:
        """vLLM's index of the group."""
        return self.contents.group_id

    @property
    def pages(self) -> int:
        """Pages with a record, right or wrong."""
        return len(self.contents.pages)

    @property
    def is_right(self) -> bool:
        """Whether every byte is accounted for. A tier always writes a header."""
        fresh = self.contents.header is HeaderState.FRESH
        return not (self.wrong_pages or self.contents.faults or fresh)


def verify_store(directory: Path, on_bytes: OnBytes) -> list[GroupReport]:
    """Read every page of a store that nobody uses.

    Raises:
        StoreInUseError: a process has it open: its pages may change while they are read.
    """
    with shared_lock(directory):
        headers = _headers(directory, read_namespace(directory))
        contents = [read_group(directory, header) for header in headers]
        return [
            GroupReport(group, _count_wrong(pages_path(directory, group.group_id), group, on_bytes))
            for group in contents
        ]


def _count_wrong(path: Path, group: GroupContents, on_bytes: OnBytes) -> int:
    if not group.pages:
        return 0
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return len(group.pages)
    buffer = memoryview(bytearray(group.page_bytes))
    try:
        wrong = 0
        for slot, record in group.pages:
            wrong += not _is_right(fd, slot, record, buffer)
            on_bytes(group.page_bytes)
        return wrong
    finally:
        os.close(fd)


def _is_right(fd: int, slot: int, record: Record, buffer: memoryview) -> bool:
    try:
        whole = read_fully(fd, [buffer], slot * len(buffer)) == len(buffer)
    except OSError:
        return False
    return whole and crc32(buffer) == record.page_crc


def age_seconds(stamp_ns: int) -> float:
    """How long ago that was; not below zero when a clock went back."""
    return max(0.0, (time.time_ns() - stamp_ns) / 1e9)
