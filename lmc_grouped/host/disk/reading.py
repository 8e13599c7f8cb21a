"""Reads of many pages: neighbours in one call, several calls at once."""

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from enum import StrEnum

from lmc_grouped.core.pool import PageRef
from lmc_grouped.host.disk.catalog import Entry
from lmc_grouped.host.disk.checksum import crc32
from lmc_grouped.host.disk.format import DiskError
from lmc_grouped.host.disk.groupfile import GroupFile
from lmc_grouped.host.disk.runs import split_runs
from lmc_grouped.host.disk.store import Store


class ReadOutcome(StrEnum):
    """What became of one page of a read."""

    HIT = "hit"
    """The buffer holds the page, and its CRC fits."""
    MISS = "miss"
    """The store has no such page; the buffer is as it was."""
    DAMAGED = "damaged"
    """The page was there, could not be read right, and is gone now; the buffer holds
    nothing of use."""


@dataclass(frozen=True, slots=True)
class PageRead:
    """One page to read, and where its outcome goes."""

    position: int
    entry: Entry
    view: memoryview


def read_run(file: GroupFile, run: Sequence[PageRead]) -> Iterator[tuple[PageRead, bool]]:
    """Read neighbouring slots; each with whether its bytes are those that were written.

    Where the run cannot be read in one call, its pages are tried one by one, so that
    a bad sector costs one page.
    """
    try:
        done_bytes = file.read_pages(run[0].entry.slot, [read.view for read in run])
    except OSError:
        if len(run) == 1:
            yield run[0], False
            return
        for read in run:
            yield from read_run(file, [read])
        return
    for number, read in enumerate(run):
        whole = (number + 1) * file.page_bytes <= done_bytes
        yield read, whole and crc32(read.view) == read.entry.page_crc


class ReadBatch:
    """The outcomes of one read, gathered from the threads that work on it."""

    def __init__(self, pages: int, runs: int) -> None:
        self.future: Future[list[ReadOutcome]] = Future()
        self._outcomes = [ReadOutcome.MISS] * pages
        self._open_runs = runs
        self._lock = threading.Lock()
        if not runs:
            self.future.set_result(self._outcomes)

    def finish_run(self, outcomes: Iterable[tuple[int, ReadOutcome]]) -> None:
        """Note ``(position, outcome)`` of one run; the last run completes the future."""
        with self._lock:
            for position, outcome in outcomes:
                self._outcomes[position] = outcome
            self._open_runs -= 1
            complete = self._open_runs == 0
        if complete:
            self.future.set_result(self._outcomes)


class Reader:
    """Reads pages of a store on its own threads.

    Args:
        retire: frees the slots of removed pages, without waiting for the disk.
    """

    def __init__(
        self, store: Store, threads: int, retire: Callable[[Sequence[Entry]], None]
    ) -> None:
        self._store = store
        self._retire = retire
        self._threads = ThreadPoolExecutor(threads, "lmc-grouped-disk-read")
        self._is_closed = False

    def start(
        self, keys: Sequence[PageRef], views: Sequence[memoryview]
    ) -> Future[list[ReadOutcome]]:
        """Begin to read; pages found are kept in place until they are read.

        Raises:
            DiskError: the reader is closed.
        """
        with self._store.lock:
            if self._is_closed:
                raise DiskError("the disk tier is closed: nothing can be read")
            reads = self._pin(keys, views)
            runs = split_runs(
                reads,
                lambda read: (read.entry.key[0], read.entry.slot),
                lambda group_id: self._store.files[group_id].page_bytes,
            )
            batch = ReadBatch(len(views), len(runs))
            for run in runs:
                self._threads.submit(self._read, run, batch)
        return batch.future

    def close(self) -> None:
        """Finish what has begun, refuse the rest."""
        with self._store.lock:
            self._is_closed = True
        self._threads.shutdown(wait=True)

    def _pin(self, keys: Sequence[PageRef], views: Sequence[memoryview]) -> list[PageRead]:
        catalog = self._store.catalog
        reads: list[PageRead] = []
        for position, (key, view) in enumerate(zip(keys, views, strict=True)):
            entry = catalog.entries.get(key)
            if entry is None:
                self._store.counts.misses += 1
                continue
            entry.readers += 1
            catalog.touch(entry)
            reads.append(PageRead(position, entry, view))
        return reads

    def _read(self, run: Sequence[PageRead], batch: ReadBatch) -> None:
        done = list(read_run(self._store.files[run[0].entry.key[0]], run))
        with self._store.lock:
            retired = [page.entry for page, is_right in done if self._unpin(page.entry, is_right)]
        if retired:
            self._retire(retired)
        batch.finish_run(
            (page.position, ReadOutcome.HIT if is_right else ReadOutcome.DAMAGED)
            for page, is_right in done
        )

    def _unpin(self, entry: Entry, is_right: bool) -> bool:
        """Count one page; whether its slot waits for this reader to be freed."""
        entry.readers -= 1
        if is_right:
            self._store.counts.hits += 1
        else:
            self._store.counts.damaged_pages += 1
            if not entry.gone:
                self._store.catalog.remove(entry.key)
        return entry.gone and not entry.readers
