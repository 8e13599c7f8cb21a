"""The index: which page of which group lies in which slot.

One index lives in the scheduler process and speaks for every worker: slot
``s`` of group ``g`` is the same page on all of them. A page is visible to
lookups only after ``commit``, that is after every rank has confirmed its copy.

Every page of a prefix leans on the page before it and cannot outlive it, so
the pages that a full-attention group holds of a prompt have no holes.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

from lmc_grouped.core.eviction import (
    form_family,
    hold,
    lean,
    leave,
    make_ready,
    unhold,
    with_followers,
)
from lmc_grouped.core.extents import Arena, ExtentPlan
from lmc_grouped.core.grants import Grant
from lmc_grouped.core.pool import Chain, NewPage, PageRef, Pool, Residency, lacking_slots
from lmc_grouped.core.room import Clock, Page, Room


class PageIndex:
    """Slots per group, with all-or-nothing reservations and owner-tagged leases.

    Args:
        slots_by_group: group_id -> number of slots in that group's own pool.
        shared: the groups take their slots from one room, of as many slots as
            the smallest number given.
        extents: the groups take their slots from extents instead, which move
            between them.
    """

    def __init__(
        self,
        slots_by_group: Mapping[int, int],
        *,
        shared: bool = False,
        extents: ExtentPlan | None = None,
    ) -> None:
        self._clock = Clock()
        self.arena = Arena(extents, self._clock) if extents else None
        self._pools = {
            group_id: Pool(group_id, room)
            for group_id, room in self._rooms(slots_by_group, shared).items()
        }
        self._writing: dict[int, list[Page]] = {}
        self._confirmed: dict[int, list[Page]] = {}
        """Pages that every rank has and that lean on pages of operations under way."""
        self._leases: dict[str, list[Page]] = {}
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

    def room_slots(self, group_id: int) -> int:
        """Slots that a reservation for this group alone could get now."""
        return self._pools[group_id].room.available_slots

    def has_room(self, slots_by_group: Mapping[int, int]) -> bool:
        """Whether a reservation of that many slots of each group would succeed now."""
        return self._shortage(self._by_room(slots_by_group)) <= 0

    def note_shortage(self, slots_by_group: Mapping[int, int]) -> None:
        """Somebody waits for that many slots: make room for them ahead of the next attempt."""
        if self.arena:
            lacking = self._shortage(self._by_room(slots_by_group))
            self.arena.shortage_extents = max(self.arena.shortage_extents, lacking)
            self.arena.stalls += 1

    def slots(self, pages: Iterable[PageRef]) -> list[int]:
        """The slot of each page, in order; ``KeyError`` for one that is not known."""
        return [self._pools[group_id].pages[block_hash].slot for group_id, block_hash in pages]

    def reserve(self, operation_id: int, pages: Sequence[NewPage]) -> list[int] | None:
        """Take a slot for every page, or change nothing.

        The pages must not be known yet and must not repeat. A previous page is
        held by somebody, or comes earlier in ``pages``.

        Returns:
            One slot per page, in order; ``None`` when some group has no room.
        """
        wanted = self._by_room(Counter(new.group_id for new in pages))
        grant = Grant(self.arena, wanted) if self.arena else None
        if (-grant.slack if grant else lacking_slots(wanted)) > 0:
            return None
        held: list[Page] = []
        for group_id, block_hash, previous in pages:
            pool = self._pools[group_id]
            assert block_hash not in pool.pages, "a known page was reserved again"
            page = Page(pool, block_hash)
            if previous is not None:
                before = pool.pages[previous]
                assert before.holds, "a page was reserved behind one that may leave"
                lean(page, before)
            hold(page)
            if grant:
                grant.find_slot(page, self.evict)
            else:
                self._find_slot(page)
            pool.pages[block_hash] = page
            held.append(page)
        self._writing[operation_id] = held
        return [page.slot for page in held]

    def commit(self, operation_id: int, lost: Iterable[PageRef] = ()) -> None:
        """Make the operation's pages readable: every rank has confirmed its copy.

        Pages that lean on pages of an operation still under way become readable when
        that one has ended.

        Args:
            operation_id: of ``reserve``.
            lost: pages of it that some rank does not have: they are forgotten, with
                all that leans on them.
        """
        held = self._writing.pop(operation_id)
        found = {self._pools[group_id].pages.get(block_hash) for group_id, block_hash in lost}
        if found:
            # After ``clear`` another operation may have reserved the same pages.
            self._forget(page for page in held if page in found)
        self._confirmed[operation_id] = held
        self._publish()

    def abort(self, operation_id: int) -> None:
        """Give the operation's slots back, and those of pages that lean on them."""
        held = self._writing.pop(operation_id)
        self._forget(page for page in held if not page.gone)
        self._let_go(held)
        self._publish()

    def join(self, chains: Sequence[Chain]) -> bool:
        """The last pages of ``chains`` serve one boundary, each with those before it.

        From now on they leave together. Saying it again renews their use.

        Returns:
            Whether all the pages are known; nothing is changed otherwise.
        """
        found: list[list[Page]] = []
        for group_id, hashes in chains:
            known = self._pools[group_id].pages
            pages = [known[block_hash] for block_hash in hashes if block_hash in known]
            if len(pages) < len(hashes):
                return False
            found.append(pages)
        for pages in found:
            for previous, page in pairwise(pages):
                lean(page, previous)
        self._clock.tick()
        form_family([pages[-1] for pages in found if pages])
        return True

    def lease(self, owner: str, pages: Iterable[PageRef]) -> None:
        """Keep known pages, and those they lean on, from leaving until ``release(owner)``.

        Pages still being written may be leased too. Leases of one owner add up.
        Whoever reads bytes names every page it reads: after ``drop`` only the
        slots of named pages stay its own.

        Raises:
            KeyError: a page is not known; nothing was leased then.
        """
        found = [self._pools[group_id].pages[block_hash] for group_id, block_hash in pages]
        for page in found:
            hold(page)
        self._leases.setdefault(owner, []).extend(found)

    def release(self, owner: str) -> None:
        """End the owner's leases; the end of its prefix will leave first."""
        held = self._leases.pop(owner, None)
        if held:
            self._let_go(held)

    def leased_pages(self, owner: str) -> int:
        """How many leases the owner has."""
        return len(self._leases.get(owner, ()))

    def drop(self, pages: Iterable[PageRef]) -> None:
        """Forget readable pages and all that lean on them, held or not.

        A held slot is reused only when released. The cost grows with the pools.
        """
        found = [self._pools[group_id].pages.get(block_hash) for group_id, block_hash in pages]
        self._forget(page for page in found if page is not None and page.ready)

    def clear(self) -> None:
        """Forget every page; what is being written will not become readable."""
        self._forget(page for pool in self._pools.values() for page in list(pool.pages.values()))

    def residency(self) -> dict[int, Residency]:
        """group_id -> what its pool holds."""
        first: dict[Room, int] = {}
        return {
            group_id: pool.residency(first.setdefault(pool.room, group_id))
            for group_id, pool in self._pools.items()
        }

    def evict(self, page: Page) -> None:
        """Let a page go that nothing holds and that nothing leans on."""
        assert page.followers == 0, "a page would leave before the pages that lean on it"
        del page.pool.pages[page.block_hash]
        page.pool.evicted_pages += 1
        leave(page)
        self.version += 1

    def _rooms(self, slots_by_group: Mapping[int, int], shared: bool) -> dict[int, Room]:
        if self.arena:
            plan, rooms = self.arena.plan, self.arena.rooms
            return {group_id: rooms[plan.owner_of(group_id)] for group_id in plan.slots_per_extent}
        common = Room(min(slots_by_group.values(), default=0), self._clock)
        return {
            group_id: common if shared else Room(slots, self._clock)
            for group_id, slots in slots_by_group.items()
        }

    def _by_room(self, slots_by_group: Mapping[int, int]) -> dict[Room, int]:
        wanted: dict[Room, int] = {}
        for group_id, count in slots_by_group.items():
            room = self._pools[group_id].room
            wanted[room] = wanted.get(room, 0) + count
        return wanted

    def _shortage(self, wanted: Mapping[Room, int]) -> int:
        """Slots, or extents, that are lacking; 0 or less: there is room."""
        return -Grant(self.arena, wanted).slack if self.arena else lacking_slots(wanted)

    def _publish(self) -> None:
        """Make confirmed pages readable; operations may end in any order."""
        found = True
        while found and self._confirmed:
            found = False
            for operation_id, held in list(self._confirmed.items()):
                waiting = [page for page in held if not page.ready]
                late = [page for page in waiting if not make_ready(page)]
                found = found or len(late) < len(waiting)
                self.version += 1
                if not late:
                    del self._confirmed[operation_id]
                    self._let_go(held)

    def _find_slot(self, page: Page) -> None:
        """A free slot for ``page``; others leave until there is one."""
        room = page.pool.room
        while not room.place(page):
            leaving = room.next_to_leave()
            assert leaving is not None, "room was counted before"
            self.evict(leaving)

    def _forget(self, pages: Iterable[Page]) -> None:
        for page in with_followers(list(pages)):
            del page.pool.pages[page.block_hash]
            leave(page)
        self.version += 1
        self.releases += 1

    def _let_go(self, held: list[Page]) -> None:
        self._clock.tick()
        for page in reversed(held):
            unhold(page)
        self.releases += 1
