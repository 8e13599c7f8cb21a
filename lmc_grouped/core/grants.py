"""Slots for one reservation out of extents: who may take what, so that all get theirs.

A group needs free slots, pages of its own that may leave, or whole extents. An
extent comes from the empty ones, or from a group whose extents are one page
each, when that page leaves. What was counted for one group of the reservation
must not be taken by another, so a group takes more extents than it needs, for
the sake of older pages elsewhere, only as long as there is slack.
"""

from collections.abc import Callable, Mapping

from lmc_grouped.core.extents import Arena, ElasticRoom
from lmc_grouped.core.room import Page, Room


class Grant:
    """What each room of a reservation may take.

    Args:
        arena: the extents.
        wanted_slots: slots that the reservation needs of each room.
    """

    def __init__(self, arena: Arena, wanted_slots: Mapping[Room, int]) -> None:
        self._arena = arena
        self._left = dict(wanted_slots)
        """Slots that each room still has to get."""
        self._extents: dict[ElasticRoom, int] = {}
        """Extents that each room is to take."""
        self._own: dict[ElasticRoom, int] = {}
        """Idle pages that each room keeps for itself."""
        supply, claims = len(arena.empty), 0
        for room in arena.rooms.values():
            lacking = max(0, wanted_slots.get(room, 0) - room.free_slots)
            own = min(lacking, room.giving_slots)
            needed = -(-(lacking - own) // room.slots_per_extent)
            claims += max(0, room.claim - needed)
            if room.slots_per_extent == 1:
                # One page, one extent: its own count like those of others.
                needed = lacking
                supply += own + max(0, min(room.idle_slots - own, room.above_floor))
            self._extents[room], self._own[room] = needed, own
        self.slack = supply - claims - sum(self._extents.values())
        """Extents beyond those needed; negative: that many are lacking."""

    def find_slot(self, page: Page, evict: Callable[[Page], None]) -> None:
        """Give ``page`` a slot; others leave until there is one."""
        room = page.pool.room
        assert isinstance(room, ElasticRoom)
        while not room.place(page):
            if room.useless.count == 0 and self._may_take(room) and room.take_extent():
                self._take(room)
                continue
            leaving = self._next_to_leave(room)
            assert leaving is not None, "room was counted before"
            self._evict(leaving, room, evict)
        self._left[room] -= 1

    def _may_take(self, room: ElasticRoom) -> bool:
        return self._extents[room] > 0 or self.slack > 0

    def _take(self, room: ElasticRoom) -> None:
        if self._extents[room] > 0:
            self._extents[room] -= 1
        else:
            self.slack -= 1

    def _next_to_leave(self, room: ElasticRoom) -> Page | None:
        """Its own useless page; else, over all that may give, the least recently useful."""
        own = room.useless.first()
        if own is not None:
            return own
        givers = [room]
        givers += [other for other in self._arena.rooms.values() if self._gives(other, room)]
        leaving = self._arena.oldest(givers)
        if leaving is not None and leaving is not self._arena.oldest_to_give():
            # An older page would have helped, had its extent been empty: have one emptied.
            self._arena.shortage_extents = max(1, self._arena.shortage_extents)
        return leaving

    def _gives(self, other: ElasticRoom, room: ElasticRoom) -> bool:
        """Whether the next page of ``other`` to leave may leave for ``room``."""
        page = other.next_to_leave()
        if other is room or page is None or other.above_floor <= 0:
            return False
        empties = other.extent_of(page).used == 1
        if page.uses and not empties:
            return False
        if other.slots_per_extent == 1:
            is_over = other.idle_slots > self._own[other] or not self._left.get(other)
            return is_over and self._may_take(room)
        # Its extent takes free slots along that may have been counted for it.
        free = other.free_slots + 1 - (other.slots_per_extent if empties else 0)
        own = other.giving_slots - 1 + self._extents[other] * other.slots_per_extent
        return free + own >= self._left.get(other, 0)

    def _evict(self, leaving: Page, room: ElasticRoom, evict: Callable[[Page], None]) -> None:
        giver = leaving.pool.room
        assert isinstance(giver, ElasticRoom)
        empty_before = len(self._arena.empty)
        evict(leaving)
        if giver is room:
            self._own[room] = max(0, self._own[room] - 1)
        if giver.slots_per_extent > 1:
            # An extent that nobody had counted on.
            self.slack += len(self._arena.empty) - empty_before
