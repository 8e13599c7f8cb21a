"""Writes: page first, record second, then visible. They run behind the caller's back."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from lmc_grouped.core.pool import PageRef
from lmc_grouped.host.disk.catalog import Entry, Place
from lmc_grouped.host.disk.checksum import crc32
from lmc_grouped.host.disk.fileio import FULL_ERRNOS, has_room
from lmc_grouped.host.disk.format import Record
from lmc_grouped.host.disk.queue import WorkQueue
from lmc_grouped.host.disk.stats import PutAnswer, WriteEnd
from lmc_grouped.host.disk.store import Store

logger = logging.getLogger(__name__)

OnEnd = Callable[[PageRef, WriteEnd], None]
"""Told the end of an accepted page, once, on a thread of the tier."""

TICK_SECONDS = 0.25
"""How often a full file system is asked for room."""
SPARE_BYTES = 64 * 2**10
"""Room besides two pages that ends a pause: records need some too."""


@dataclass(slots=True, eq=False)
class _Write:
    key: PageRef
    page: memoryview = field(repr=False)
    on_end: OnEnd | None
    is_dropped: bool = False


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
        self._last_stamp_ns = store.last_stamp_ns
        self.queue = WorkQueue(queue_bytes, threads, self._look_for_room, TICK_SECONDS)

    @property
    def is_paused(self) -> bool:
        """Whether the file system was full when last asked."""
        return self._is_paused

    def put(self, key: PageRef, page: memoryview, on_end: OnEnd | None) -> PutAnswer:
        """Accept a page, or say why not; never waits for the disk."""
        store = self._store
        with store.lock:
            answer = self._answer(key)
            if answer is PutAnswer.ACCEPTED:
                write = _Write(key, page, on_end)
                if self.queue.offer(len(page), partial(self._run, write)):
                    self._pending[key] = write
                else:
                    answer = PutAnswer.QUEUE_FULL
            if answer is not PutAnswer.ACCEPTED:
                store.counts.refused[answer] += 1
        return answer

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

    def _run(self, write: _Write) -> None:
        end = WriteEnd.IO_ERROR
        try:
            end = self._write(write)
        finally:
            with self._store.lock:
                if self._pending.get(write.key) is write:
                    del self._pending[write.key]
                self._store.counts.ended[end] += 1
            if write.on_end is not None:
                write.on_end(write.key, end)

    def _write(self, write: _Write) -> WriteEnd:
        store, group_id = self._store, write.key[0]
        place = self._take_place(write)
        if isinstance(place, WriteEnd):
            return place
        try:
            entry = self._write_page(write, place)
        except OSError as error:
            return self._give_up(write, place, error)
        with store.lock:
            if not write.is_dropped:
                # In one step: a put between the two would write the page again.
                store.catalog.publish(entry)
                del self._pending[write.key]
                return WriteEnd.STORED
            store.catalog.unreserve(group_id)
        store.retire([entry])
        return WriteEnd.DROPPED

    def _take_place(self, write: _Write) -> Place | WriteEnd:
        """A slot within the quota, after the oldest pages made room; or why there is none."""
        store, group_id = self._store, write.key[0]
        with store.lock:
            if write.is_dropped:
                return WriteEnd.DROPPED
            if self._is_paused:
                return WriteEnd.NO_SPACE
            victims = store.catalog.reserve(group_id)
            store.counts.evicted_pages += len(victims)
        store.retire(victims)
        with store.lock:
            place = store.catalog.take_slot(group_id)
        if place is not None and store.punch(place.punch):
            if place.grow_slots > 1:
                store.files[group_id].grow(place.slot, place.grow_slots)
            return place
        with store.lock:
            store.catalog.unreserve(group_id)
            if place is not None:
                store.catalog.abandon((group_id, place.slot))
                store.catalog.punched((group_id, place.slot), done=True)  # it never had room
        return WriteEnd.OVER_QUOTA

    def _write_page(self, write: _Write, place: Place) -> Entry:
        file = self._store.files[write.key[0]]
        page_crc = crc32(write.page)
        file.write_page(place.slot, write.page)
        with self._store.lock:
            self._last_stamp_ns = max(self._last_stamp_ns + 1, time.time_ns())
            stamp_ns = self._last_stamp_ns
        file.write_record(place.slot, Record(write.key, len(write.page), page_crc, stamp_ns))
        return Entry(write.key, place.slot, page_crc, stamp_ns)

    def _give_up(self, write: _Write, place: Place, error: OSError) -> WriteEnd:
        """The page did not get to disk: its slot has no record, its room is given back."""
        store, ref = self._store, (write.key[0], place.slot)
        is_full = error.errno in FULL_ERRNOS
        with store.lock:
            store.catalog.unreserve(write.key[0])
            store.catalog.abandon(ref)
            told = self._is_paused if is_full else error.errno in self._failures_told
            if is_full:
                self._is_paused = True
                self.queue.tick(on=True)
            else:
                self._failures_told.add(error.errno)
        store.punch([ref])
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
        return WriteEnd.NO_SPACE if is_full else WriteEnd.IO_ERROR

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
