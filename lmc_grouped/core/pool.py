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

    __slots__ = ("evicted_pages", "pages", "room")

    def __init__(self, room: Room) -> None:
        self.room = room
        self.pages: dict[bytes, Page] = {}
        self.evicted_pages = 0

    def residency(self) -> "Residency":
        """What it holds now."""
        return Residency(
            self.room.capacity_slots,
            self.room.free_slots,
            self.room.idle_slots,
            self.room.useless.count,
            len(self.pages),
            self.evicted_pages,
        )


@dataclass(frozen=True, slots=True)
class Residency:
    """What one group's pool holds. With shared rows the slots are those of all groups, and with
    extents those the group has now."""

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
