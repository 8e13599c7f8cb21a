"""What the index keeps of one group, and the words it is spoken to in."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from lmc_grouped.core.room import Page, Room

PageRef = tuple[int, bytes]
"""(group_id, block hash): the key of one page."""

Chain = tuple[int, Sequence[bytes]]
"""(group_id, block hashes of pages that follow one another, ascending)."""


class NewPage(NamedTuple):
    """A page to reserve a slot for."""

    group_id: int
    block_hash: bytes
    previous: bytes | None = None
    """The page before it, without which it is of no use; ``None`` where it needs none."""


class Pool:
    """The pages of one group."""

    __slots__ = ("evicted_pages", "group_id", "pages", "room")

    def __init__(self, group_id: int, room: Room) -> None:
        self.group_id = group_id
        self.room = room
        self.pages: dict[bytes, Page] = {}
        self.evicted_pages = 0

    def residency(self, owner_id: int) -> "Residency":
        """What it holds now; ``owner_id``: the first of the groups in its room."""
        return Residency(
            owner_id,
            self.room.capacity_slots,
            self.room.free_slots,
            self.room.idle_slots,
            self.room.useless.count,
            len(self.pages),
            self.evicted_pages,
        )


@dataclass(frozen=True, slots=True)
class Residency:
    """What one group's pool holds. Groups that take the same slots, those that share extents
    or rows, have the same numbers of slots; with extents, those they have now."""

    owner_id: int
    """The first of the groups that take the same slots: count the slots under it."""
    capacity_slots: int
    free_slots: int
    idle_slots: int
    """Slots whose page nothing holds."""
    useless_slots: int
    """Those of them whose page nothing can use: the next to leave."""
    resident_pages: int
    """Pages of this group, being written or readable."""
    evicted_pages: int

    @property
    def held_slots(self) -> int:
        """Slots that something holds: leases and operations under way."""
        return self.capacity_slots - self.free_slots - self.idle_slots


def lacking_slots(wanted: Mapping[Room, int]) -> int:
    """Slots that the rooms lack, each for itself; 0 or less: there is room."""
    return max((count - room.available_slots for room, count in wanted.items()), default=0)
