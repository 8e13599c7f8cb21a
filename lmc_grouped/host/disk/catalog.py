"""Which page lies in which slot, how much that is, and what leaves first.

No I/O and no lock here: the tier holds its lock around every call.
"""

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import msgspec

from lmc_grouped.core.pool import PageRef
from lmc_grouped.host.disk.quota import Quota
from lmc_grouped.host.disk.recovery import GroupContents

GROW_BYTES = 32 * 2**20
"""By how much a page file grows at once."""
GROW_SHARE = 16
"""At most one in so many bytes of the quota: groups grow side by side."""

Change = tuple[PageRef, bool]
"""A page, and whether it is visible from then on."""

SlotRef = tuple[int, int]
"""(group_id, slot)."""


class Entry(msgspec.Struct, gc=False, eq=False):
    """One visible page. There may be a hundred thousand: no work for the collector."""

    key: PageRef
    slot: int
    page_crc: int
    stamp_ns: int
    readers: int = 0
    gone: bool = False
    """No longer visible; its readers may still read."""
    retired: bool = False
    """Somebody frees the slot: its last reader, or who removed the page."""


class GroupSlots:
    """The slots of one group's page file."""

    __slots__ = ("end", "holes", "page_bytes", "punching", "spare", "used")

    def __init__(self, page_bytes: int) -> None:
        self.page_bytes = page_bytes
        self.end = 0
        """Slots up to the file's end."""
        self.spare: list[int] = []
        """Free slots that still have room on disk."""
        self.holes: list[int] = []
        """Free slots whose room was given back."""
        self.punching = 0
        """Slots whose room is being given back: nobody may take them meanwhile."""
        self.used = 0

    @property
    def allocated(self) -> int:
        """Slots that have room on disk."""
        return self.end - len(self.holes) - self.punching


@dataclass(frozen=True, slots=True)
class Place:
    """Where to write a page, and what to do to the files first."""

    slot: int
    punch: tuple[SlotRef, ...] = ()
    grow_slots: int = 0
    """How many slots from this one on lie behind the file's end."""


class Catalog:
    """The pages of all groups, oldest first. A page that is read becomes the youngest."""

    def __init__(self, page_bytes_by_group: Mapping[int, int], quota: Quota) -> None:
        self.quota = quota
        self.groups = {gid: GroupSlots(size) for gid, size in page_bytes_by_group.items()}
        self.entries: OrderedDict[PageRef, Entry] = OrderedDict()
        self.used_bytes = 0
        """Of visible pages and of those being written."""
        self.can_punch = True
        self.changes: list[Change] | None = None
        """What became visible and what left, in order; ``None``: not kept."""

    @property
    def allocated_bytes(self) -> int:
        """Room that page files have on disk: used slots and spare ones."""
        return sum(g.allocated * g.page_bytes for g in self.groups.values())

    def fill(self, contents: Iterable[GroupContents]) -> int:
        """Take over what was recovered; returns the highest stamp."""
        found = [at for group in contents for at in group.pages]
        found.sort(key=lambda at: at[1].stamp_ns)
        for slot, record in found:
            key = record.key
            self.entries[key] = Entry(key, slot, record.page_crc, record.stamp_ns)
        for group in contents:
            slots = self.groups[group.group_id]
            live = {slot for slot, _ in group.pages}
            slots.end = max(live, default=-1) + 1
            slots.used = len(live)
            self.used_bytes += len(live) * slots.page_bytes
            slots.spare = [slot for slot in range(slots.end) if slot not in live]
        return found[-1][1].stamp_ns if found else 0

    def victims(self, needed_bytes: int) -> list[Entry]:
        """Remove the oldest pages until ``needed_bytes`` more stay below the watermark."""
        leaving: list[Entry] = []
        while self.entries and self.used_bytes + needed_bytes > self.quota.watermark_bytes:
            target = self.used_bytes - self.quota.evict_bytes
            while self.entries and self.used_bytes > target:
                leaving.append(self.remove(next(iter(self.entries))))
        return leaving

    def reserve(self, group_id: int) -> list[Entry]:
        """Count a page that is about to be written; returns what has to leave for it."""
        leaving = self.victims(self.groups[group_id].page_bytes)
        self.used_bytes += self.groups[group_id].page_bytes
        return leaving

    def unreserve(self, group_id: int) -> None:
        """The page counted by ``reserve`` will not be written."""
        self.used_bytes -= self.groups[group_id].page_bytes

    def take_slot(self, group_id: int) -> Place | None:
        """A free slot of the group; ``None`` when the files would grow above the cap."""
        group = self.groups[group_id]
        if group.spare:
            group.used += 1
            return Place(group.spare.pop())
        punch = self.shrink_to(self.quota.cap_bytes - group.page_bytes)
        if punch is None:
            return None
        group.used += 1
        if group.holes:
            return Place(group.holes.pop(), punch)
        first, slots = group.end, 1 if punch else self._slots_to_grow(group)
        group.end += slots
        group.spare.extend(reversed(range(first + 1, group.end)))
        return Place(first, punch, slots)

    def _slots_to_grow(self, group: GroupSlots) -> int:
        """One, or more when there is room for them in the quota: see ``GROW_BYTES``."""
        room_bytes = self.quota.cap_bytes - self.allocated_bytes
        grow_bytes = min(GROW_BYTES, self.quota.cap_bytes // GROW_SHARE, room_bytes)
        return max(1, grow_bytes // group.page_bytes)

    def shrink_to(self, size_bytes: int) -> tuple[SlotRef, ...] | None:
        """Choose spare slots to give back until no more than that is allocated.

        Returns:
            What the caller has to punch and report with ``punched``; ``None``, and
            nothing changed, when spare slots do not suffice.
        """
        excess = self.allocated_bytes - size_bytes
        if excess <= 0:
            return ()
        spare_bytes = sum(len(g.spare) * g.page_bytes for g in self.groups.values())
        if excess > spare_bytes or not self.can_punch:
            return None
        punch: list[SlotRef] = []
        while excess > 0:
            group_id, group = max(
                self.groups.items(), key=lambda item: len(item[1].spare) * item[1].page_bytes
            )
            punch.append((group_id, group.spare.pop()))
            group.punching += 1
            excess -= group.page_bytes
        return tuple(punch)

    def punched(self, ref: SlotRef, *, done: bool) -> None:
        """The end of a slot's punching; a slot that kept its room is spare again."""
        group = self.groups[ref[0]]
        group.punching -= 1
        (group.holes if done else group.spare).append(ref[1])
        # Said by the file system once, true for ever.
        self.can_punch = self.can_punch and done

    def publish(self, entry: Entry) -> None:
        """Make a written page visible, as the youngest."""
        self.entries[entry.key] = entry
        if self.changes is not None:
            self.changes.append((entry.key, True))

    def touch(self, entry: Entry) -> None:
        """Make a page the youngest. Not written down: a restart goes by stamps."""
        self.entries.move_to_end(entry.key)

    def remove(self, key: PageRef) -> Entry:
        """Make a page invisible; its slot stays taken until ``free``."""
        entry = self.entries.pop(key)
        entry.gone = True
        if self.changes is not None:
            self.changes.append((key, False))
        self.used_bytes -= self.groups[key[0]].page_bytes
        return entry

    def free(self, ref: SlotRef) -> None:
        """The slot's record is cleared and nobody reads it: others may take it."""
        group = self.groups[ref[0]]
        group.used -= 1
        group.spare.append(ref[1])

    def trim(self, group_id: int) -> int:
        """Forget the free slots at the file's end; returns the slots before them."""
        group = self.groups[group_id]
        free = {*group.spare, *group.holes}
        while group.end - 1 in free:
            group.end -= 1
        group.spare = [slot for slot in group.spare if slot < group.end]
        group.holes = [slot for slot in group.holes if slot < group.end]
        return group.end

    def abandon(self, ref: SlotRef) -> None:
        """Writing the slot failed; the caller punches it and reports with ``punched``."""
        group = self.groups[ref[0]]
        group.used -= 1
        group.punching += 1
