"""The file tier of one rank: pages by key, kept across restarts and crashes."""

import mmap
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from lmc_grouped.core.keys import Namespace, encode_key
from lmc_grouped.core.pool import PageRef
from lmc_grouped.host.disk.catalog import Change, Entry
from lmc_grouped.host.disk.format import DiskError
from lmc_grouped.host.disk.quota import Quota
from lmc_grouped.host.disk.reading import Reader, ReadOutcome
from lmc_grouped.host.disk.stats import DiskStats, GroupUse, PutAnswer, StoredPage
from lmc_grouped.host.disk.store import Store, open_store
from lmc_grouped.host.disk.writing import OnEnd, Writer

PageBuffer = bytes | bytearray | memoryview | mmap.mmap | npt.NDArray[np.uint8]
"""The bytes of one page, contiguous; reads need a writable one."""

QUEUE_BYTES = 256 * 2**20
THREADS = 4
"""For reads, and as many for writes: some compute a CRC while others wait for the disk."""


class DiskTier:
    """Pages of all groups of one rank on disk. Every method may be called from any thread.

    ``put`` never waits for the disk. A page is visible to ``has`` once page and
    record are written; what ``read`` reports as a hit is byte for byte what was put.
    """

    def __init__(self, store: Store, queue_bytes: int, threads: int) -> None:
        self._store = store
        self._writer = Writer(store, queue_bytes, threads)
        self._reader = Reader(store, threads, self._retire_later)
        self._is_closed = False

    @classmethod
    def open(
        cls,
        root: Path,
        namespace: Namespace,
        rank: int,
        quota: Quota,
        *,
        queue_bytes: int = QUEUE_BYTES,
        threads: int = THREADS,
        direct: bool = True,
    ) -> "DiskTier":
        """Open the store of one namespace and rank below ``root``, or create it.

        Args:
            queue_bytes: of accepted pages that are not written yet.
            direct: go past the page cache where the file system and a buffer allow it.

        Raises:
            DiskError: the directory cannot be used, or the quota holds too little.
            StoreInUseError: another process has the store open.
        """
        return cls(open_store(root, namespace, rank, quota, direct=direct), queue_bytes, threads)

    @property
    def directory(self) -> Path:
        """Where the store lies."""
        return self._store.directory

    def has(self, key: PageRef) -> bool:
        """Whether a read of the page would find it now."""
        with self._store.lock:
            return key in self._store.catalog.entries

    def put(self, key: PageRef, page: PageBuffer, on_end: OnEnd | None = None) -> PutAnswer:
        """Offer a page for writing in the background.

        The bytes of an ``ACCEPTED`` page must stay as they are until ``on_end`` was
        called for it, which happens once, on a thread of the tier.

        Raises:
            DiskError: no such group, or not the bytes of one page.
            KeyFormatError: the block hash is empty or too long.
        """
        return self.put_all([key], [page], on_end)[0]

    def put_all(
        self,
        keys: Sequence[PageRef],
        pages: Sequence[PageBuffer],
        on_end: OnEnd | None = None,
    ) -> list[PutAnswer]:
        """Offer several pages at once; answers are in order, written the first one first.

        Raises:
            DiskError: as ``put``; no page was offered then.
            KeyFormatError: as ``put``.
        """
        for key in keys:
            encode_key(key)
        views = [self._check(key, page) for key, page in zip(keys, pages, strict=True)]
        return self._writer.put(keys, views, on_end)

    def read(self, keys: Sequence[PageRef], buffers: Sequence[PageBuffer]) -> list[ReadOutcome]:
        """Read pages into one buffer each and wait for them; outcomes are in order.

        Raises:
            DiskError: no such group, or a buffer that does not hold one page.
        """
        return self.start_read(keys, buffers).result()

    def start_read(
        self, keys: Sequence[PageRef], buffers: Sequence[PageBuffer]
    ) -> Future[list[ReadOutcome]]:
        """Begin ``read``; the buffers are the tier's until the future is done.

        Raises:
            DiskError: as ``read``; nothing has begun then.
        """
        views = [self._check(key, buffer) for key, buffer in zip(keys, buffers, strict=True)]
        if any(view.readonly for view in views):
            raise DiskError("a buffer to read into is read-only: give a writable one")
        return self._reader.start(keys, views)

    def drop(self, keys: Iterable[PageRef]) -> int:
        """Forget pages, those being written included; returns how many there were."""
        dropped: list[Entry] = []
        with self._store.lock:
            count = 0
            for key in keys:
                count += self._writer.drop_pending(key)
                if key in self._store.catalog.entries:
                    dropped.append(self._store.catalog.remove(key))
            count += len(dropped)
            self._store.counts.dropped_pages += count
        self._retire_later(dropped)
        return count

    def stored_pages(self) -> list[StoredPage]:
        """All visible pages, the first to leave first."""
        with self._store.lock:
            return self._list_pages()

    def track_changes(self) -> list[StoredPage]:
        """Begin to keep ``take_changes``; returns what is visible now."""
        with self._store.lock:
            self._store.catalog.changes = []
            return self._list_pages()

    def take_changes(self) -> list[Change]:
        """Pages that became visible or left since the last call, in order.

        Empty until ``track_changes`` was called. Whoever tracks has to ask: the list
        grows until then.
        """
        with self._store.lock:
            changes = self._store.catalog.changes
            if not changes:
                return []
            self._store.catalog.changes = []
            return changes

    def stats(self) -> DiskStats:
        """Use and counters of this moment."""
        store = self._store
        with store.lock:
            catalog, counts = store.catalog, store.counts
            groups = {
                group_id: GroupUse(
                    slots.used,
                    slots.page_bytes,
                    slots.allocated * slots.page_bytes,
                    group_id in store.files and store.files[group_id].is_direct,
                )
                for group_id, slots in catalog.groups.items()
            }
            return DiskStats(
                used_bytes=catalog.used_bytes,
                cap_bytes=catalog.quota.cap_bytes,
                pending_bytes=self._writer.queue.pending_bytes,
                is_paused=self._writer.is_paused,
                groups=groups,
                refused_by_answer=dict(counts.refused),
                writes_by_end=dict(counts.ended),
                hits=counts.hits,
                misses=counts.misses,
                damaged_pages=counts.damaged_pages,
                evicted_pages=counts.evicted_pages,
                dropped_pages=counts.dropped_pages,
                recovered=store.recovered,
            )

    def flush(self) -> None:
        """Wait until all accepted pages came to their end."""
        self._writer.queue.flush()

    def close(self) -> None:
        """Write what was accepted, finish reads, and let others open the store."""
        with self._store.lock:
            if self._is_closed:
                return
            self._is_closed = True
        self._reader.close()
        self._writer.close()
        self._store.close()

    def __enter__(self) -> "DiskTier":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _list_pages(self) -> list[StoredPage]:
        groups = self._store.catalog.groups
        return [
            StoredPage(*entry.key, groups[entry.key[0]].page_bytes, entry.stamp_ns)
            for entry in self._store.catalog.entries.values()
        ]

    def _check(self, key: PageRef, buffer: PageBuffer) -> memoryview:
        group = self._store.catalog.groups.get(key[0])
        if group is None:
            raise DiskError(
                f"group {key[0]} is not stored; stored groups are "
                f"{sorted(self._store.catalog.groups)}"
            )
        view = memoryview(buffer.data if isinstance(buffer, np.ndarray) else buffer)
        if not view.c_contiguous:
            raise DiskError(f"group {key[0]}: the buffer has gaps; a page is contiguous")
        view = view.cast("B")
        if len(view) != group.page_bytes:
            raise DiskError(
                f"group {key[0]}: a buffer of {len(view)} bytes; a page has {group.page_bytes}"
            )
        return view

    def _retire_later(self, entries: Sequence[Entry]) -> None:
        """Clear records behind the caller's back: a slow disk must not hold it up."""
        if entries:
            self._writer.queue.add(partial(self._store.retire, entries))
