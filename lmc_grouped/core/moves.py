"""Rebalancing: empty extents ahead of need, by evicting and by moving few survivors.

A group that stores takes an empty extent when its own are full. This keeps some
empty, in bounded work each step: the least recently useful pages of all groups
leave, and where a group has an extent's worth of free slots scattered over its
extents, the pages of its emptiest extent move into them.
"""

from dataclasses import dataclass

from lmc_grouped.core.extents import Arena, ElasticRoom, Extent
from lmc_grouped.core.index import PageIndex
from lmc_grouped.core.room import Page

MOVE_LIMIT_BYTES = 16 * 2**20
"""Bytes to move in one step: a few milliseconds of one core."""
EVICTIONS_PER_STEP = 1_000
"""Pages that may leave ahead of need in one step: a few milliseconds of work."""


@dataclass(frozen=True, slots=True)
class PageMove:
    """One page on its way: readable in its source slot until every rank has copied it.

    Nothing holds it for that, so that moving renews no use: it may be leased, or
    leave, like any other. If it leaves, whoever gets its source slot then can only spoil a
    copy that nobody will read.
    """

    page: Page
    room: ElasticRoom
    source_slot: int
    target_slot: int

    @property
    def group_id(self) -> int:
        """Whose page it is."""
        return self.page.pool.group_id


class Rebalancer:
    """Plans moves and ends them.

    Args:
        index: over extents.
        page_bytes: group_id -> bytes of one page.
    """

    def __init__(self, index: PageIndex, page_bytes: dict[int, int]) -> None:
        assert index.arena is not None
        self._index = index
        self._arena: Arena = index.arena
        self._page_bytes = page_bytes
        self._moving: dict[int, list[PageMove]] = {}
        self._immovable: set[ElasticRoom] = set()
        """Rooms in which a move has failed: their extents are emptied by eviction alone."""
        self._floor_hits = 0

    def plan(self, operation_id: int, limit_bytes: int) -> list[PageMove]:
        """What to move in this step.

        Args:
            operation_id: to end the moves with, when there are any.
            limit_bytes: bytes to move; one extent is emptied even where it is more.
        """
        arena = self._arena
        wanted = arena.shortage_extents
        target = max(arena.plan.reserve_extents, wanted)
        arena.shortage_extents = 0
        moves: list[PageMove] = []
        evictions = EVICTIONS_PER_STEP
        stuck: set[ElasticRoom] = set()
        """Rooms whose free slots are scattered and whose pages cannot move now."""
        while arena.spare_extents + arena.closing_extents < target:
            found = self._next_to_empty(stuck)
            if found is not None:
                room, sources = found
                emptied = _empty(room, sources)
                if not emptied:
                    stuck.add(room)
                moves += emptied
                limit_bytes -= sum(self._page_bytes[move.group_id] for move in emptied)
                if limit_bytes <= 0:
                    break
                continue
            # Nobody waits: younger pages do not leave because older ones cannot move now.
            if stuck and arena.spare_extents + arena.closing_extents >= wanted:
                break
            leaving = self._next_to_leave(stuck)
            if leaving is None or evictions == 0:
                break
            self._index.evict(leaving)
            self._index.releases += 1
            evictions -= 1
        if moves:
            self._moving[operation_id] = moves
        return moves

    def finish(self, operation_id: int, failure: str | None) -> list[PageMove]:
        """Every rank has reported the moves: the pages lie in their new slots, or stay.

        A page that is leased by now stays too: a load may be reading its source slot, and
        would go on reading while the next owner writes there.

        Returns:
            The moves that have taken place, or those that failed.
        """
        moves = self._moving.pop(operation_id)
        moved = []
        for move in moves:
            room, page = move.room, move.page
            if failure is None and not page.gone and not page.holds:
                page.slot = move.target_slot
                room.vacate_slot(move.source_slot)
                moved.append(move)
            else:
                room.vacate_slot(move.target_slot)
            if failure is not None:
                self._immovable.add(room)
        for room, number in {
            (move.room, move.source_slot // move.room.slots_per_extent) for move in moves
        }:
            extent = room.extents.get(number)
            if extent is not None and extent.is_closing:
                room.reopen(extent)
        self._index.releases += 1
        return moves if failure is not None else moved

    @property
    def moving_slots(self) -> set[tuple[int, int]]:
        """``(group_id, slot)`` of pages on their way: their bytes may go at any step."""
        return {
            (move.group_id, move.source_slot) for moves in self._moving.values() for move in moves
        }

    def take_counts(self) -> dict[str, int]:
        """What happened since the last call: stalled reservations, and floors that held."""
        counts = {"stalls": self._arena.stalls, "floor_hits": self._floor_hits}
        self._arena.stalls = self._floor_hits = 0
        return counts

    def _next_to_leave(self, stuck: set[ElasticRoom]) -> Page | None:
        """The page that leaves ahead of need, of a group above its floor."""
        rooms = [room for room in self._arena.rooms.values() if room not in stuck]
        leaving = self._arena.oldest([room for room in rooms if room.above_floor > 0])
        held_back = self._arena.oldest([room for room in rooms if room.above_floor <= 0])
        if leaving and held_back and held_back.used_at < leaving.used_at:
            self._floor_hits += 1
        return leaving

    def _next_to_empty(self, stuck: set[ElasticRoom]) -> tuple[ElasticRoom, list[Extent]] | None:
        """The room that could free an extent for the fewest bytes, and its open extents."""
        best: tuple[int, ElasticRoom, list[Extent]] | None = None
        for owner, room in self._arena.rooms.items():
            if room in stuck or room in self._immovable:
                continue
            if room.free_slots < room.slots_per_extent or room.above_floor <= 0:
                continue
            extents = room.open_extents()
            cost = extents[0].used * self._page_bytes[owner]
            if best is None or cost < best[0]:
                best = cost, room, extents
        return None if best is None else best[1:]


def _empty(room: ElasticRoom, extents: list[Extent]) -> list[PageMove]:
    """Move the pages of the first of ``extents`` that can move into the fullest others."""
    source = next((extent for extent in extents if _is_movable(room, extent)), None)
    if source is None:
        return []
    room.close(source)
    targets = [extent for extent in extents if extent is not source]
    return [_move(room, page, targets) for page in source.pages if page is not None]


def _move(room: ElasticRoom, page: Page, targets: list[Extent]) -> PageMove:
    while targets[-1].used == room.slots_per_extent:
        targets.pop()
    return PageMove(page, room, page.slot, room.reserve_copy(page, targets[-1]))


def _is_movable(room: ElasticRoom, extent: Extent) -> bool:
    """Whether nothing is being written to, read from or moved into the extent."""
    return not any(
        page is not None
        and (page.holds or page.gone or page.slot // room.slots_per_extent != extent.number)
        for page in extent.pages
    )
