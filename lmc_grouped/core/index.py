"""The index: which page of which group lies in which slot.

One index lives in the scheduler process and speaks for every worker: slot
``s`` of group ``g`` is the same page on all of them. A page is visible to
lookups only after ``commit``, that is after every rank has confirmed its copy.
"""

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

PageRef = tuple[int, bytes]
"""(group_id, block hash): the key of one page."""


class _Page:
    """One page: where it lies and who holds it."""

    __slots__ = ("block_hash", "gone", "pins", "ready", "slot")

    def __init__(self, block_hash: bytes, slot: int) -> None:
        self.block_hash = block_hash
        self.slot = slot
        self.pins = 0
        self.ready = False
        self.gone = False


class _Pool:
    """The slots of one group. A page is in ``idle`` when nothing holds it."""

    __slots__ = ("capacity_slots", "evicted_pages", "free", "idle", "pages")

    def __init__(self, capacity_slots: int) -> None:
        self.capacity_slots = capacity_slots
        self.free = list(range(capacity_slots - 1, -1, -1))
        self.pages: dict[bytes, _Page] = {}
        self.idle: OrderedDict[bytes, _Page] = OrderedDict()
        self.evicted_pages = 0

    def take_slot(self) -> int:
        """A free slot; the longest idle page leaves when there is none."""
        if self.free:
            return self.free.pop()
        block_hash, page = self.idle.popitem(last=False)
        del self.pages[block_hash]
        self.evicted_pages += 1
        return page.slot

    def pin(self, page: _Page) -> None:
        page.pins += 1
        self.idle.pop(page.block_hash, None)

    def unpin(self, page: _Page) -> None:
        page.pins -= 1
        if page.pins:
            return
        if page.gone:
            self.free.append(page.slot)
        else:
            self.idle[page.block_hash] = page

    def forget(self, page: _Page) -> None:
        """Make ``page`` invisible; its slot is free once nothing holds it."""
        if page.gone:
            return
        page.gone = True
        del self.pages[page.block_hash]
        if page.pins == 0:
            del self.idle[page.block_hash]
            self.free.append(page.slot)


@dataclass(frozen=True, slots=True)
class Residency:
    """What one group's pool holds, in slots and pages."""

    capacity_slots: int
    free_slots: int
    idle_slots: int
    evicted_pages: int

    @property
    def resident_slots(self) -> int:
        """Slots that hold a page, being written or readable."""
        return self.capacity_slots - self.free_slots


class PageIndex:
    """Slots per group, with all-or-nothing reservations and owner-tagged leases.

    Args:
        slots_by_group: group_id -> number of slots in that group's own pool.
    """

    def __init__(self, slots_by_group: Mapping[int, int]) -> None:
        self._pools = {group_id: _Pool(slots) for group_id, slots in slots_by_group.items()}
        self._writing: dict[int, list[tuple[_Pool, _Page]]] = {}
        self._leases: dict[str, list[tuple[_Pool, _Page]]] = {}
        self.version = 0
        """Changes whenever an answer of ``has`` may have changed."""
        self.releases = 0
        """Changes whenever ``room_slots`` may have grown."""

    def has(self, group_id: int, block_hash: bytes) -> bool:
        """Whether the page is readable now."""
        page = self._pools[group_id].pages.get(block_hash)
        return page is not None and page.ready

    def knows(self, group_id: int, block_hash: bytes) -> bool:
        """Whether the page is readable or being written: no need to store it."""
        return block_hash in self._pools[group_id].pages

    def room_slots(self, group_id: int, keep: Iterable[bytes] = ()) -> int:
        """Slots that a reservation could get now without evicting the pages ``keep``."""
        pool = self._pools[group_id]
        return len(pool.free) + len(pool.idle) - sum(block_hash in pool.idle for block_hash in keep)

    def reserve(self, operation_id: int, pages: Sequence[PageRef]) -> list[int] | None:
        """Take a slot for every page, or change nothing.

        The pages must not be known yet and must not repeat.

        Returns:
            One slot per page, in order; ``None`` when some group has no room.
        """
        wanted: dict[int, int] = {}
        for group_id, _ in pages:
            wanted[group_id] = wanted.get(group_id, 0) + 1
        if any(self.room_slots(group_id) < count for group_id, count in wanted.items()):
            return None
        held: list[tuple[_Pool, _Page]] = []
        for group_id, block_hash in pages:
            pool = self._pools[group_id]
            assert block_hash not in pool.pages, "a known page was reserved again"
            if not pool.free:
                self.version += 1
            page = _Page(block_hash, pool.take_slot())
            page.pins = 1
            pool.pages[block_hash] = page
            held.append((pool, page))
        self._writing[operation_id] = held
        return [page.slot for _, page in held]

    def commit(self, operation_id: int) -> None:
        """Make the operation's pages readable: every rank has confirmed its copy."""
        held = self._writing.pop(operation_id)
        for _, page in held:
            page.ready = True
        self._unpin(held)
        self.version += 1

    def abort(self, operation_id: int) -> None:
        """Give the operation's slots back; its pages were never readable."""
        held = self._writing.pop(operation_id)
        for pool, page in held:
            pool.forget(page)
        self._unpin(held)

    def lease(self, owner: str, pages: Iterable[PageRef]) -> list[int]:
        """Keep known pages from leaving until ``release(owner)``.

        Pages still being written may be leased too. Leases of one owner add up.

        Returns:
            The slot of each page, in order.

        Raises:
            KeyError: a page is not known; nothing was leased then.
        """
        found: list[tuple[_Pool, _Page]] = []
        for group_id, block_hash in pages:
            pool = self._pools[group_id]
            found.append((pool, pool.pages[block_hash]))
        for pool, page in found:
            pool.pin(page)
        self._leases.setdefault(owner, []).extend(found)
        return [page.slot for _, page in found]

    def release(self, owner: str) -> None:
        """End the owner's leases; the end of its prefix will leave first."""
        held = self._leases.pop(owner, None)
        if held:
            self._unpin(held)

    def leased_pages(self, owner: str) -> int:
        """How many leases the owner has."""
        return len(self._leases.get(owner, ()))

    def drop(self, pages: Iterable[PageRef]) -> None:
        """Forget pages, held or not; a held slot is reused only when released."""
        for group_id, block_hash in pages:
            pool = self._pools[group_id]
            page = pool.pages.get(block_hash)
            if page is not None and page.ready:
                pool.forget(page)
        self.version += 1
        self.releases += 1

    def clear(self) -> None:
        """Forget every page; what is being written will not become readable."""
        for pool in self._pools.values():
            for page in list(pool.pages.values()):
                pool.forget(page)
        self.version += 1
        self.releases += 1

    def residency(self) -> dict[int, Residency]:
        """group_id -> what its pool holds."""
        return {
            group_id: Residency(
                pool.capacity_slots, len(pool.free), len(pool.idle), pool.evicted_pages
            )
            for group_id, pool in self._pools.items()
        }

    def _unpin(self, held: list[tuple[_Pool, _Page]]) -> None:
        for pool, page in reversed(held):
            pool.unpin(page)
        self.releases += 1
