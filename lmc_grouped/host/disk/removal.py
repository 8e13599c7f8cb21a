"""Removing pages and whole stores from outside: only what a tier wrote, only unused stores."""

import re
from collections.abc import Collection
from pathlib import Path

from lmc_grouped.host.disk.directory import LOCK_FILE, StoreLock
from lmc_grouped.host.disk.format import FileHeader, Record
from lmc_grouped.host.disk.groupfile import GroupFile
from lmc_grouped.host.disk.inspection import inspect_store
from lmc_grouped.host.disk.recovery import GroupContents

_OURS = re.compile(
    r"(?:group_\d+\.(?:pages|records)|namespace\.json)(?:\.set-aside)?"
    r"|namespace\.json\.new|(?:direct|room)\.probe"
)


def remove_store(directory: Path) -> list[Path]:
    """Delete a store's files and its directory, and the namespace's when it was the last.

    Returns:
        Files that a tier did not write: they are left, and so is the directory then.

    Raises:
        StoreInUseError: a process has the store open.
        OSError: a file cannot be deleted.
    """
    lock = StoreLock(directory)
    try:
        left = []
        for path in sorted(directory.iterdir()):
            if _OURS.fullmatch(path.name):
                path.unlink()
            elif path.name != LOCK_FILE:
                left.append(path)
        if not left:
            (directory / LOCK_FILE).unlink()
            directory.rmdir()
            if not any(directory.parent.iterdir()):
                directory.parent.rmdir()
        return left
    finally:
        lock.release()


def remove_pages(directory: Path, records: Collection[Record]) -> int:
    """Free the slots of pages and give their room back; returns how many there still were.

    Raises:
        StoreInUseError: a process has the store open.
        OSError: a file cannot be written.
    """
    lock = StoreLock(directory)
    try:
        wanted = set(records)
        return sum(
            _remove_from_group(directory, group, wanted)
            for group in inspect_store(directory).groups
        )
    finally:
        lock.release()


def _remove_from_group(directory: Path, group: GroupContents, wanted: Collection[Record]) -> int:
    slots = [slot for slot, record in group.pages if record in wanted]
    if slots:
        header = FileHeader(directory.parent.name, group.group_id, group.page_bytes)
        file = GroupFile(directory, header, direct=False)
        try:
            file.clear_records(slots)
            for slot in slots:
                file.punch(slot)
        finally:
            file.close()
    return len(slots)
