"""Extents: pieces of the budget that belong to one group at a time.

An extent holds whole pages of its group. Slot ``s`` of a group with ``k`` pages
an extent lies in extent ``s // k``, so a worker can tell where a slot is without
knowing who owns what. An extent without pages belongs to nobody.

Groups that are alike share extents: of every request they keep equally many
pages of equally many bytes, so one cannot crowd out the other.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from lmc_grouped.core.room import Clock, Page, Room


@dataclass(frozen=True, slots=True)
class ExtentPlan:
    """How the budget of one worker is cut into extents."""

    extent_bytes: int
    extents: int
    slots_per_extent: dict[int, int]
    """group_id -> whole pages in one extent."""
    floor_extents: dict[int, int]
    """group_id -> extents that others never take from it and those that share with it."""
    shares: Mapping[int, int] = field(default_factory=dict)
    """group_id -> the group before it whose extents it shares; absent: it has its own."""

    def owner_of(self, group_id: int) -> int:
        """The group under whose id the extents of ``group_id`` are counted."""
        return self.shares.get(group_id, group_id)

    def sharers(self, owner_id: int) -> list[int]:
        """Groups whose extents are counted under ``owner_id``, that one first."""
        return [owner_id, *(group for group, owner in self.shares.items() if owner == owner_id)]

    @property
    def reserve_extents(self) -> int:
        """Extents to keep empty ahead of need: one in two hundred.

        None where every extent is one page: whatever leaves empties one.
        """
        return self.extents // 200 if max(self.slots_per_extent.values()) > 1 else 0


def add_up(counts: Mapping[int, int], shares: Mapping[int, int]) -> dict[int, int]:
    """Counts by group, those of groups that share extents under the first of them."""
    total = Counter[int]()
    for group_id, count in counts.items():
        total[shares.get(group_id, group_id)] += count
    return total


class Extent:
    """One extent of a group: which page lies in which of its slots."""

    __slots__ = ("is_closing", "number", "pages", "used")

    def __init__(self, number: int, slots: int) -> None:
        self.number = number
        self.pages: list[Page | None] = [None] * slots
        self.used = 0
        self.is_closing = False
        """Its pages are on their way to other extents."""


class Arena:
    """All extents, and the rooms that own them.

    Args:
        plan: extents, pages in each, floors.
        clock: of the index.
    """

    def __init__(self, plan: ExtentPlan, clock: Clock) -> None:
        self.plan = plan
        self.empty = list(range(plan.extents - 1, -1, -1))
        """Extents that nobody owns."""
        self.stalls = 0
        """Reservations that were refused for want of an extent."""
        self.shortage_extents = 0
        """How many more a refused reservation would have needed."""
        self.rooms = {
            group_id: ElasticRoom(self, plan.slots_per_extent[group_id], floor, clock)
            for group_id, floor in plan.floor_extents.items()
        }
        """By the first of the groups that share it."""

    def spare_for(self, room: "ElasticRoom") -> int:
        """Empty extents that ``room`` may take: the floors of others are theirs."""
        return self.spare_extents + room.claim

    @property
    def spare_extents(self) -> int:
        """Empty extents beyond what groups below their floor are owed."""
        return len(self.empty) - sum(room.claim for room in self.rooms.values())

    @property
    def closing_extents(self) -> int:
        """Extents being emptied."""
        return sum(room.closing_extents for room in self.rooms.values())

    def oldest_to_give(self) -> Page | None:
        """The page that leaves next of the groups above their floors."""
        return self.oldest([room for room in self.rooms.values() if room.above_floor > 0])

    def oldest(self, rooms: "list[ElasticRoom]") -> Page | None:
        """Over all of them: what nothing can use, then the least recently useful."""
        heads = [page for room in rooms if (page := room.next_to_leave()) is not None]
        return min(heads, key=lambda page: (page.uses > 0, page.used_at), default=None)


class ElasticRoom(Room):
    """The slots of one group, or of groups that are alike, in the extents owned now."""

    __slots__ = (
        "_arena",
        "_closing",
        "_open",
        "_used",
        "_vacant",
        "extents",
        "floor_extents",
        "slots_per_extent",
    )

    def __init__(
        self, arena: Arena, slots_per_extent: int, floor_extents: int, clock: Clock
    ) -> None:
        super().__init__(0, clock)
        self._arena = arena
        self.slots_per_extent = slots_per_extent
        self.floor_extents = floor_extents
        self.extents: dict[int, Extent] = {}
        self._open: dict[int, Extent] = {}
        """Extents with a free slot, the last one opened last; closing ones are left out."""
        self._closing: dict[int, Extent] = {}
        """Extents being emptied."""
        self._vacant = 0
        """Free slots in open extents."""
        self._used = 0

    @property
    def capacity_slots(self) -> int:
        return self._used + self._vacant

    @property
    def free_slots(self) -> int:
        return self._vacant

    @property
    def above_floor(self) -> int:
        """Extents that others may take from it; negative below its floor."""
        return len(self.extents) - self.floor_extents

    @property
    def closing_extents(self) -> int:
        """Extents being emptied."""
        return len(self._closing)

    @property
    def claim(self) -> int:
        """Empty extents kept for it, because it is below its floor."""
        return max(0, -self.above_floor)

    @property
    def available_slots(self) -> int:
        spare = max(0, self._arena.spare_for(self))
        givable = sum(
            max(0, min(room.idle_slots, room.above_floor))
            for room in self._arena.rooms.values()
            if room is not self and room.slots_per_extent == 1
        )
        return self._vacant + self.giving_slots + (spare + givable) * self.slots_per_extent

    def place(self, page: Page) -> bool:
        if not self._open:
            return False
        self._put(page, next(reversed(self._open.values())))
        return True

    def take_extent(self) -> bool:
        """Own one more extent; whether there was an empty one for it."""
        if self._arena.spare_for(self) <= 0:
            return False
        extent = Extent(self._arena.empty.pop(), self.slots_per_extent)
        self.extents[extent.number] = self._open[extent.number] = extent
        self._vacant += self.slots_per_extent
        return True

    def reserve_copy(self, page: Page, extent: Extent) -> int:
        """A free slot of that extent for a copy of ``page``, which stays where it is."""
        before = page.slot
        self._put(page, extent)
        page.slot, after = before, page.slot
        return after

    def vacate(self, page: Page) -> None:
        self.vacate_slot(page.slot)

    def vacate_slot(self, slot: int) -> None:
        """The slot holds nothing any more; an extent without pages has no owner."""
        number, position = divmod(slot, self.slots_per_extent)
        extent = self.extents[number]
        assert extent.pages[position] is not None
        extent.pages[position] = None
        extent.used -= 1
        self._used -= 1
        if not extent.is_closing:
            self._vacant += 1
            self._open[number] = extent
        if extent.used == 0:
            self.close(extent)
            del self._closing[number], self.extents[number]
            self._arena.empty.append(number)

    def close(self, extent: Extent) -> None:
        """Take no more slots of this extent."""
        if not extent.is_closing:
            self._vacant -= self.slots_per_extent - extent.used
            self._open.pop(extent.number, None)
            self._closing[extent.number] = extent
            extent.is_closing = True

    def reopen(self, extent: Extent) -> None:
        """Undo ``close`` for an extent that still has pages."""
        extent.is_closing = False
        del self._closing[extent.number]
        free = self.slots_per_extent - extent.used
        self._vacant += free
        if free:
            self._open[extent.number] = extent

    @property
    def giving_slots(self) -> int:
        """Idle pages whose slot this room can use again: not those in extents being emptied."""
        return self.idle_slots - sum(
            page is not None and not page.gone and not page.holds
            for extent in self._closing.values()
            for page in extent.pages
        )

    def open_extents(self) -> list[Extent]:
        """Extents with a free slot, the emptiest first."""
        return sorted(self._open.values(), key=lambda extent: extent.used)

    def extent_of(self, page: Page) -> Extent:
        """Where the page lies."""
        return self.extents[page.slot // self.slots_per_extent]

    def _put(self, page: Page, extent: Extent) -> None:
        position = extent.pages.index(None)
        extent.pages[position] = page
        extent.used += 1
        self._used += 1
        self._vacant -= 1
        if extent.used == self.slots_per_extent:
            del self._open[extent.number]
        page.slot = extent.number * self.slots_per_extent + position
