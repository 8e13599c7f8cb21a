"""Writes: pages first, records second, then visible. They run behind the caller's back."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from lmc_grouped.core.pool import PageRef
from lmc_grouped.host.disk.catalog import Entry
from lmc_grouped.host.disk.checksum import crc32
from lmc_grouped.host.disk.fileio import FULL_ERRNOS, has_room
from lmc_grouped.host.disk.format import Record
from lmc_grouped.host.disk.placing import Placer
from lmc_grouped.host.disk.queue import WorkQueue
from lmc_grouped.host.disk.runs import split_runs
from lmc_grouped.host.disk.stats import PutAnswer, WriteEnd
from lmc_grouped.host.disk.store import Store

logger = logging.getLogger(__name__)

OnEnd = Callable[[PageRef, WriteEnd], None]
"""Told the end of an accepted page, once, on a thread of the tier."""

TICK_SECONDS = 0.25
"""How often a full file system is asked for room."""
SPARE_BYTES = 64 * 2**10
"""Room besides two pages that ends a pause: records need some too."""
BATCH_BYTES = 2**20
"""Written at once: the cost of a call is lost in it. Of 4 MiB, threads wait for each other."""
BATCH_SHARE = 16
"""At most one in so many bytes of the quota: pages on their way cannot leave to make room."""


@dataclass(slots=True, eq=False)
class _Write:
    key: PageRef
    page: memoryview = field(repr=False)
    on_end: OnEnd | None
    is_dropped: bool = False
    entry: Entry | None = None
    """What becomes visible; ``None`` while the page has no place."""
    end: WriteEnd = WriteEnd.IO_ERROR


class Writer:
    """Accepts pages without waiting and writes them in the background.

    Args:
        queue_bytes: of accepted pages that are not written yet.
    """

    def __init__(self, store: Store, queue_bytes: int, threads: int) -> None:
        self._store = store
        self._pending: dict[PageRef, _Write] = {}
        self._is_paused = False
        self._is_closing = False
        self._failures_told: set[int | None] = set()
        self._placer = Placer(store)
        self.queue = WorkQueue(
            self._run,
            limit_bytes=queue_bytes,
            batch_bytes=max(1, min(BATCH_BYTES, store.catalog.quota.cap_bytes // BATCH_SHARE)),
            threads=threads,
            on_tick=self._look_for_room,
            tick_seconds=TICK_SECONDS,
        )

    @property
    def is_paused(self) -> bool:
        """Whether the file system was full when last asked."""
        return self._is_paused

    def put(
        self, keys: Sequence[PageRef], pages: Sequence[memoryview], on_end: OnEnd | None
    ) -> list[PutAnswer]:
        """Accept each page, or say why not; never waits for the disk."""
        store = self._store
        offered: list[tuple[int, _Write]] = []
        answers: list[PutAnswer] = []
        with store.lock:
            for position, (key, page) in enumerate(zip(keys, pages, strict=True)):
                answers.append(self._answer(key))
                if answers[-1] is PutAnswer.ACCEPTED:
                    self._pending[key] = _Write(key, page, on_end)
                    offered.append((position, self._pending[key]))
            taken = self.queue.offer([(len(write.page), write) for _, write in offered])
            for (position, write), is_taken in zip(offered, taken, strict=True):
                if not is_taken:
                    del self._pending[write.key]
                    answers[position] = PutAnswer.QUEUE_FULL
            for answer in answers:
                if answer is not PutAnswer.ACCEPTED:
                    store.counts.refused[answer] += 1
        return answers

    def _answer(self, key: PageRef) -> PutAnswer:
        if self._is_closing:
            return PutAnswer.CLOSED
        if key[0] not in self._store.files:
            return PutAnswer.UNAVAILABLE
        entry = self._store.catalog.entries.get(key)
        if entry is not None:
            self._store.catalog.touch(entry)
            return PutAnswer.PRESENT
        if key in self._pending:
            return PutAnswer.PRESENT
        return PutAnswer.NO_SPACE if self._is_paused else PutAnswer.ACCEPTED

    def drop_pending(self, key: PageRef) -> bool:
        """Keep a page that is being written from becoming visible. Needs the store's lock."""
        write = self._pending.pop(key, None)
        if write is not None:
            write.is_dropped = True
        return write is not None

    def close(self) -> None:
        """Refuse what comes, write what was accepted."""
        with self._store.lock:
            self._is_closing = True
        self.queue.close()

    def _run(self, writes: Sequence[_Write]) -> None:
        """Bring a batch of accepted pages to their ends."""
        try:
            placed = self._place(writes)
            written: list[_Write] = []
            for run in split_runs(placed, _slot_of, lambda gid: self._store.files[gid].page_bytes):
                written += self._write_run(run)
            self._publish(written)
        finally:
            self._tell(writes)

    def _place(self, writes: Sequence[_Write]) -> list[_Write]:
        """Find room for pages that are still wanted; the writes that have some."""
        wanted: list[_Write] = []
        with self._store.lock:
            for write in writes:
                if write.is_dropped:
                    write.end = WriteEnd.DROPPED
                elif self._is_paused:
                    write.end = WriteEnd.NO_SPACE
                else:
                    wanted.append(write)
        self._placer.reserve(write.key for write in wanted)
        for write in wanted:
            write.entry = self._placer.place(write.key)
            if write.entry is None:
                write.end = WriteEnd.OVER_QUOTA
        return [write for write in wanted if write.entry is not None]

    def _write_run(self, run: Sequence[_Write]) -> list[_Write]:
        """Write neighbouring slots, pages then records; those that are on disk now.

        Where that is not possible in one go, they are tried one by one: each page that
        can be written is.
        """
        file = self._store.files[run[0].key[0]]
        entries = [_entry_of(write) for write in run]
        for write, entry in zip(run, entries, strict=True):
            entry.page_crc = crc32(write.page)
        records = [
            Record(entry.key, file.page_bytes, entry.page_crc, entry.stamp_ns) for entry in entries
        ]
        try:
            file.write_pages(entries[0].slot, [write.page for write in run])
            file.write_records(entries[0].slot, records)
        except OSError as error:
            if len(run) > 1:
                return [write for one in run for write in self._write_run([one])]
            self._give_up(run[0], error)
            return []
        return list(run)

    def _publish(self, written: Sequence[_Write]) -> None:
        """Make pages on disk visible, the oldest first; those dropped meanwhile are freed."""
        store = self._store
        dropped: list[Entry] = []
        with store.lock:
            for write in sorted(written, key=lambda write: _entry_of(write).stamp_ns):
                entry = _entry_of(write)
                if write.is_dropped:
                    write.end = WriteEnd.DROPPED
                    store.catalog.unreserve(write.key[0])
                    dropped.append(entry)
                else:
                    # In one step: a put between the two would write the page again.
                    store.catalog.publish(entry)
                    del self._pending[write.key]
                    write.end = WriteEnd.STORED
        store.retire(dropped)

    def _tell(self, writes: Sequence[_Write]) -> None:
        with self._store.lock:
            for write in writes:
                if self._pending.get(write.key) is write:
                    del self._pending[write.key]
                self._store.counts.ended[write.end] += 1
        for write in writes:
            if write.on_end is not None:
                try:
                    write.on_end(write.key, write.end)
                except Exception:
                    logger.exception("disk tier: the end of a page could not be told")

    def _give_up(self, write: _Write, error: OSError) -> None:
        """The page did not get to disk; no room stops all writing."""
        is_full = error.errno in FULL_ERRNOS
        write.end = WriteEnd.NO_SPACE if is_full else WriteEnd.IO_ERROR
        self._placer.give_up(_entry_of(write))
        store = self._store
        with store.lock:
            told = self._is_paused if is_full else error.errno in self._failures_told
            if is_full:
                self._is_paused = True
                self.queue.tick(on=True)
            else:
                self._failures_told.add(error.errno)
        if not told and is_full:
            logger.warning(
                "disk tier: %s is full (%s): writing stops until there is room, reading goes on",
                store.directory, error.strerror,
            )  # fmt: skip
        elif not told:
            logger.error(
                "disk tier: a page of group %d cannot be written (%s); said once, counted always",
                write.key[0], error,
            )  # fmt: skip

    def _look_for_room(self) -> None:
        """End the pause when the file system gives two of the largest pages again."""
        store = self._store
        largest_bytes = max(file.page_bytes for file in store.files.values())
        if not self._is_paused or not has_room(store.directory, 2 * largest_bytes + SPARE_BYTES):
            return
        with store.lock:
            was_paused, self._is_paused = self._is_paused, False
            self.queue.tick(on=False)
        if was_paused:  # another thread may have looked at the same time
            logger.warning("disk tier: %s has room again: writing goes on", store.directory)


def _entry_of(write: _Write) -> Entry:
    assert write.entry is not None, "a write without a place"
    return write.entry


def _slot_of(write: _Write) -> tuple[int, int]:
    return write.key[0], _entry_of(write).slot
