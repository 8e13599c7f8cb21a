"""Room for pages about to be written: within the quota, and in the files."""

import time
from collections.abc import Iterable

from lmc_grouped.core.pool import PageRef
from lmc_grouped.host.disk.catalog import Entry, Place
from lmc_grouped.host.disk.store import Store


class Placer:
    """Gives slots to pages that were reserved, and takes them back."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._last_stamp_ns = store.last_stamp_ns

    def reserve(self, keys: Iterable[PageRef]) -> None:
        """Count pages as used; the oldest pages leave the store where it has too many then."""
        store = self._store
        victims: list[Entry] = []
        with store.lock:
            for group_id, _ in keys:
                victims += store.catalog.reserve(group_id)
            store.counts.evicted_pages += len(victims)
        store.retire(victims)

    def place(self, key: PageRef) -> Entry | None:
        """A slot with room on disk; ``None``, and no longer reserved, where the quota has none.

        Stamps rise in the order of the calls. The entry's CRC is the caller's to fill in.
        """
        store, group_id = self._store, key[0]
        with store.lock:
            place = store.catalog.take_slot(group_id)
            self._last_stamp_ns = max(self._last_stamp_ns + 1, time.time_ns())
            stamp_ns = self._last_stamp_ns
        if place is not None and self._make_room(group_id, place):
            return Entry(key, place.slot, 0, stamp_ns)
        with store.lock:
            store.catalog.unreserve(group_id)
            if place is not None:
                store.catalog.abandon((group_id, place.slot))
                store.catalog.punched((group_id, place.slot), done=True)  # it never had room
        return None

    def give_up(self, entry: Entry) -> None:
        """A placed page did not get to disk: its slot has no record, its room is given back."""
        store, ref = self._store, (entry.key[0], entry.slot)
        with store.lock:
            store.catalog.unreserve(ref[0])
            store.catalog.abandon(ref)
        store.punch([ref])

    def _make_room(self, group_id: int, place: Place) -> bool:
        if not self._store.punch(place.punch):
            return False
        if place.grow_slots > 1:
            self._store.files[group_id].grow(place.slot, place.grow_slots)
        return True
