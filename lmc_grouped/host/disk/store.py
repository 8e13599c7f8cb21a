"""An open store: its files, its catalogue, and the lock that guards the latter."""

import logging
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from lmc_grouped.core.keys import Namespace
from lmc_grouped.host.disk.catalog import Catalog, Entry, SlotRef
from lmc_grouped.host.disk.checksum import CRC32_LIBRARY
from lmc_grouped.host.disk.directory import StoreLock, open_directory
from lmc_grouped.host.disk.fileio import takes_direct
from lmc_grouped.host.disk.format import MAX_PAGE_BYTES, DiskError, FileHeader
from lmc_grouped.host.disk.groupfile import GroupFile
from lmc_grouped.host.disk.quota import Quota
from lmc_grouped.host.disk.recovery import GroupContents, HeaderState
from lmc_grouped.host.disk.stats import Counts

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Store:
    """What reads and writes share. ``lock`` is held around ``catalog`` and ``counts``."""

    directory: Path
    directory_lock: StoreLock
    catalog: Catalog
    files: Mapping[int, GroupFile]
    """group_id -> its files; a group whose files cannot be opened is not there."""
    recovered: tuple[GroupContents, ...]
    last_stamp_ns: int
    counts: Counts = field(default_factory=Counts)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def retire(self, entries: Iterable[Entry]) -> None:
        """Free the slots of removed pages; one that is being read is freed by its reader."""
        with self.lock:
            idle = [entry for entry in entries if not entry.readers and not entry.retired]
            for entry in idle:
                entry.retired = True
        slots_by_group: dict[int, list[int]] = {}
        for entry in idle:
            slots_by_group.setdefault(entry.key[0], []).append(entry.slot)
        for group_id, slots in slots_by_group.items():
            try:
                self.files[group_id].clear_records(slots)
            except OSError as error:
                # The slots stay taken: a record that could come back must keep its page.
                logger.warning(
                    "disk tier: %d records of group %d cannot be cleared (%s)",
                    len(slots), group_id, error,
                )  # fmt: skip
                continue
            with self.lock:
                for slot in slots:
                    self.catalog.free((group_id, slot))

    def punch(self, refs: Iterable[SlotRef]) -> bool:
        """Give the room of slots back that the catalogue chose for it.

        Returns:
            Whether all of it was given back.
        """
        all_done = True
        for ref in refs:
            done = self.files[ref[0]].punch(ref[1])
            with self.lock:
                self.catalog.punched(ref, done=done)
            all_done = all_done and done
        return all_done

    def close(self) -> None:
        """Close the files and let others open the store."""
        for group_id, file in self.files.items():
            try:
                file.truncate(self.catalog.trim(group_id))
            except OSError as error:
                logger.warning("disk tier: group %d cannot be cut to size (%s)", group_id, error)
            file.close()
        self.directory_lock.release()


def open_store(root: Path, namespace: Namespace, rank: int, quota: Quota, *, direct: bool) -> Store:
    """Take the directory, recover every group, and bring the store under its quota.

    Raises:
        DiskError: the directory cannot be used, is in use, or holds too little.
    """
    sizes = {gid: size for gid, size in namespace.page_bytes_by_group.items() if size}
    _check_sizes(sizes, quota)
    directory, lock = open_directory(root, namespace, rank)
    direct = direct and takes_direct(directory)
    files: dict[int, GroupFile] = {}
    contents: list[GroupContents] = []
    for group_id, page_bytes in sizes.items():
        header = FileHeader(namespace.digest(), group_id, page_bytes)
        try:
            file = GroupFile(directory, header, direct=direct)
            contents.append(file.recover())
            files[group_id] = file
        except OSError as error:
            logger.error(
                "disk tier: group %d cannot be used, its pages are misses (%s)", group_id, error
            )
            contents.append(
                GroupContents(group_id, page_bytes, HeaderState.DAMAGED, unreadable=str(error))
            )
    catalog = Catalog(sizes, quota)
    last_stamp_ns = catalog.fill(contents)
    # The catalogue has the pages now: a hundred thousand records are not kept twice.
    faults = tuple(replace(group, pages=(), cleared_slots=()) for group in contents)
    store = Store(directory, lock, catalog, files, faults, last_stamp_ns)
    _enforce_quota(store)
    _report(store)
    return store


def _check_sizes(sizes: Mapping[int, int], quota: Quota) -> None:
    if not sizes:
        raise DiskError("no group has bytes on this rank: there is nothing for a disk tier to keep")
    largest_id = max(sizes, key=lambda group_id: sizes[group_id])
    if sizes[largest_id] > MAX_PAGE_BYTES:
        raise DiskError(
            f"group {largest_id} has pages of {sizes[largest_id]} bytes; a record holds at most "
            f"{MAX_PAGE_BYTES}"
        )
    one_of_each = sum(sizes.values())
    if one_of_each > quota.watermark_bytes:
        raise DiskError(
            f"the disk quota of {quota.cap_bytes} bytes, used up to {quota.watermark:.0%}, does "
            f"not hold one page of every group ({one_of_each} bytes): raise max_local_disk_size "
            f"to at least {-(-one_of_each * 100 // round(quota.watermark * 100))} bytes"
        )


def _enforce_quota(store: Store) -> None:
    victims = store.catalog.victims(0)
    store.counts.evicted_pages += len(victims)
    store.retire(victims)
    store.punch(store.catalog.shrink_to(store.catalog.quota.cap_bytes) or ())


def _report(store: Store) -> None:
    catalog = store.catalog
    logger.info(
        "disk tier: %s holds %d pages, %d of %d bytes; %d pages left for the quota; CRC32 of %s",
        store.directory, len(catalog.entries), catalog.used_bytes, catalog.quota.cap_bytes,
        store.counts.evicted_pages, CRC32_LIBRARY,
    )  # fmt: skip
    for group in store.recovered:
        if group.faults and group.unreadable is None:
            logger.warning(
                "disk tier: group %d: header %s, %d damaged records, %d short pages, %d repeated "
                "keys, %d pages without a record, %d bytes of a record in part",
                group.group_id, group.header, group.damaged_records, group.short_pages,
                group.repeated_keys, group.unrecorded_pages, group.trailing_record_bytes,
            )  # fmt: skip
