"""Elastic pools against a slow, obvious model, over real bytes.

Memory is one `bytearray`. A page's bytes follow from its key, so a page read from
a slot that holds anything else is seen at once. Stores are carried out in the order
in which they were planned, as workers do, and so are moves, which may come later than
stores planned after them; loads take as long as their leases. All are reported later,
well or badly.

A longer run: ``python -m tests.core.elastic_machine --steps 200000``.
"""

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from lmc_grouped.core.extents import ElasticRoom, ExtentPlan
from lmc_grouped.core.index import PageIndex
from lmc_grouped.core.moves import PageMove, Rebalancer
from lmc_grouped.core.pool import NewPage, PageRef
from lmc_grouped.core.room import Page
from tests.factories import block_hash

FULL, WINDOW, RECURRENT, ALIKE = GROUPS = (0, 1, 2, 3)
SHARES = {ALIKE: RECURRENT}
EXTENT_BYTES = 12
BEFORE = {n: None if n % 6 == 1 else n - 1 for n in range(1, 61)} | {10: 8, 16: 2, 40: 2, 52: 44}
"""node -> the node before it: ten prompts, some of which branch off another."""
NODES = st.sampled_from(sorted(BEFORE))
PROMPTS = st.lists(NODES, min_size=1, max_size=4)
LUCK = st.integers(0, 5)
"""0: the operation fails on some rank."""
OWNERS = st.sampled_from(["a", "b", "c"])


def path_to(node: int | None) -> list[int]:
    return [] if node is None else [*path_to(BEFORE[node]), node]


def ref(group_id: int, node: int) -> PageRef:
    return group_id, block_hash(node)


class WatchedIndex(PageIndex):
    """An index that checks every page that leaves."""

    asked_by: Counter[int] | None = None
    """The groups that slots are being looked for; nothing while the rebalancer evicts."""

    def reserve(self, operation_id: int, pages: Sequence[NewPage]) -> list[int] | None:
        self.asked_by = Counter(page.group_id for page in pages)
        slots = super().reserve(operation_id, pages)
        self.asked_by = None
        return slots

    def evict(self, page: Page) -> None:
        room = page.pool.room
        assert isinstance(room, ElasticRoom)
        assert page.holds == 0
        assert page.followers == 0
        own = self.asked_by is not None and any(self._pools[g].room is room for g in self.asked_by)
        assert own or room.above_floor > 0, "a group at its floor lost a page to another"
        super().evict(page)


@dataclass
class Planned:
    """An operation on its way through the workers."""

    operation_id: int
    writes: list[tuple[PageRef, int]] = field(default_factory=list)
    moves: list[PageMove] = field(default_factory=list)
    fails: bool = False


class ElasticMachine(RuleBasedStateMachine):
    """``leases`` is all the model remembers beside the operations under way."""

    @initialize(
        extents=st.integers(7, 14),
        floors=st.tuples(st.integers(1, 3), st.integers(1, 2), st.integers(1, 2)),
        reserve=st.integers(0, 4),
        state_bytes=st.sampled_from([6, 12]),
    )
    def start(
        self, extents: int, floors: tuple[int, int, int], reserve: int, state_bytes: int
    ) -> None:
        """States take half of an extent, or all of it."""
        self.page_bytes = {FULL: 4, WINDOW: 3, RECURRENT: state_bytes, ALIKE: state_bytes}
        slots = {g: EXTENT_BYTES // size for g, size in self.page_bytes.items()}
        owners = [group_id for group_id in GROUPS if group_id not in SHARES]
        floor_extents = dict(zip(owners, floors, strict=True))
        plan = ExtentPlan(EXTENT_BYTES, extents, slots, floor_extents, SHARES)
        self.index = WatchedIndex({g: extents * slots[g] for g in GROUPS}, extents=plan)
        self.arena = self.index.arena
        self.rebalancer = Rebalancer(self.index, self.page_bytes)
        self.memory = bytearray(extents * EXTENT_BYTES)
        self.reserve = reserve
        self.planned: list[Planned] = []
        """Not carried out yet."""
        self.unreported: list[Planned] = []
        """Carried out, the ranks' answer still under way."""
        self.leases: dict[str, Counter[PageRef]] = {}
        self.reading: dict[str, set[tuple[PageRef, int]]] = {}
        """owner -> pages that it reads until its leases end, and their slots when it began."""
        self.operations = 0

    # Bytes.

    def place(self, group_id: int, slot: int) -> slice:
        size = self.page_bytes[group_id]
        extent, position = divmod(slot, EXTENT_BYTES // size)
        start = extent * EXTENT_BYTES + position * size
        return slice(start, start + size)

    def content(self, group_id: int, block: bytes) -> bytes:
        return bytes([int(block[4:]) * 4 + group_id] * self.page_bytes[group_id])

    def carry_out(self, *, moves_wait: bool = False) -> None:
        """The workers do what was planned, in order; moves may wait behind a load."""
        waiting = [operation for operation in self.planned if moves_wait and operation.moves]
        for operation in self.planned:
            if operation in waiting:
                continue
            for (group_id, block), slot in operation.writes:
                self.write(group_id, slot, self.content(group_id, block), operation)
            for move in operation.moves:
                source = self.memory[self.place(move.group_id, move.source_slot)]
                self.write(move.group_id, move.target_slot, source, operation)
            self.unreported.append(operation)
        self.planned = waiting

    def write(self, group_id: int, slot: int, data: bytes, operation: Planned) -> None:
        """Copy; what fails leaves rubbish behind."""
        self.memory[self.place(group_id, slot)] = bytes(len(data)) if operation.fails else data

    def next_id(self) -> int:
        self.operations += 1
        return self.operations

    # Rules.

    @rule(
        nodes=st.lists(NODES, min_size=1, max_size=4), tail=st.integers(1, 4), state=st.booleans()
    )
    def serve(self, nodes: list[int], tail: int, state: bool) -> None:
        """Requests one after the other, each from its start to its end."""
        for node in nodes:
            self.store("served", node, tail, state)
            self.carry_out()
            while self.unreported:
                self.report()
            self.release("served")
            self.rebalance(100)

    @rule(owner=OWNERS, node=NODES, tail=st.integers(1, 3), state=st.booleans(), luck=LUCK)
    def store(self, owner: str, node: int, tail: int, state: bool, luck: int = 1) -> None:
        """What a request stores: its path, a tail, a state; joined when all is there."""
        path = path_to(node)
        missing = [n for n in path if not self.index.knows(*ref(FULL, n))]
        anchors = path[: len(path) - len(missing)][-1:]
        self.lease(owner, [(FULL, n) for n in anchors])
        wanted = [(FULL, n) for n in missing]
        wanted += [(WINDOW, n) for n in path[-tail:] if not self.index.knows(*ref(WINDOW, n))]
        if state:
            wanted += [(g, node) for g in (RECURRENT, ALIKE) if not self.index.knows(*ref(g, node))]
        pages = [
            NewPage(*ref(g, n), block_hash(BEFORE[n]) if g == FULL and BEFORE[n] else None)
            for g, n in wanted
        ]
        counts = Counter(page.group_id for page in pages)
        operation_id, promised = self.next_id(), self.index.has_room(counts)
        before = self.index.residency()
        slots = self.index.reserve(operation_id, pages)
        assert (slots is not None) == promised
        if slots is None:
            assert self.index.residency() == before
            self.index.note_shortage(counts)
            return
        writes = [(ref(g, n), slot) for (g, n), slot in zip(wanted, slots, strict=True)]
        self.planned.append(Planned(operation_id, writes, fails=luck == 0))
        self.lease(owner, wanted)
        chains = [(WINDOW, path[-tail:]), (RECURRENT, [node]), (ALIKE, [node]), (FULL, [node])]
        self.index.join([(g, [block_hash(n) for n in nodes]) for g, nodes in chains])

    def lease(self, owner: str, wanted: list[tuple[int, int]]) -> None:
        known = [ref(g, n) for g, n in wanted if self.index.knows(*ref(g, n))]
        self.index.lease(owner, known)
        self.leases.setdefault(owner, Counter()).update(known)

    @rule(owner=OWNERS, node=NODES, tail=st.integers(1, 3))
    def read(self, owner: str, node: int, tail: int) -> None:
        """A hit: what is read is held, and its bytes are right whenever workers look."""
        path = path_to(node)
        wanted = [(FULL, n) for n in path] + [(WINDOW, n) for n in path[-tail:]]
        wanted += [(RECURRENT, node), (ALIKE, node)]
        readable = [(g, n) for g, n in wanted if self.index.has(*ref(g, n))]
        self.lease(owner, readable)
        keys = [ref(g, n) for g, n in readable]
        self.reading.setdefault(owner, set()).update(zip(keys, self.index.slots(keys), strict=True))

    @rule(owner=OWNERS)
    def release(self, owner: str) -> None:
        self.index.release(owner)
        self.reading.pop(owner, None)
        self.leases.pop(owner, None)

    @rule(node=NODES, group_id=st.sampled_from(GROUPS))
    def drop(self, node: int, group_id: int) -> None:
        key = ref(group_id, node)
        if self.index.has(*key):
            self.index.drop([key])
            self.forget_unknown()

    @rule(really=st.integers(0, 19))
    def clear(self, really: int) -> None:
        if really == 19:
            self.index.clear()
            self.forget_unknown()

    def forget_unknown(self) -> None:
        """Leases on pages that can be found no more end with their owner; not our business."""
        for held in self.leases.values():
            for key in [key for key in held if not self.index.knows(*key)]:
                del held[key]

    @rule(limit_bytes=st.sampled_from([1, 12, 100]), luck=LUCK)
    def rebalance(self, limit_bytes: int, luck: int = 1) -> None:
        self.arena.shortage_extents = max(self.arena.shortage_extents, self.reserve)
        operation_id = self.next_id()
        moves = self.rebalancer.plan(operation_id, limit_bytes)
        if moves:
            self.planned.append(Planned(operation_id, moves=moves, fails=luck == 0))

    @rule(moves_wait=st.booleans())
    def work(self, moves_wait: bool) -> None:
        self.carry_out(moves_wait=moves_wait)

    @rule()
    def report(self) -> None:
        """The ranks' answer to the oldest operation arrives."""
        if not self.unreported:
            return
        operation = self.unreported.pop(0)
        if operation.moves:
            self.rebalancer.finish(operation.operation_id, "refused" if operation.fails else None)
        elif operation.fails:
            self.index.abort(operation.operation_id)
            self.forget_unknown()
        else:
            self.index.commit(operation.operation_id)

    def teardown(self) -> None:
        """In the end nothing is held, and the budget is whole."""
        if not hasattr(self, "index"):
            return
        self.carry_out()
        while self.unreported:
            self.report()
        for room in self.arena.rooms.values():
            assert not any(extent.is_closing for extent in room.extents.values())
        for owner in list(self.leases):
            self.release(owner)
        assert all(pool.held_slots == 0 for pool in self.index.residency().values())
        self.index.clear()
        assert len(self.arena.empty) == self.arena.plan.extents

    # What must hold at every step.

    @invariant()
    def every_readable_page_has_its_own_bytes(self) -> None:
        """Whatever was planned since: a reader that starts now finds them."""
        for group_id in GROUPS:
            for block, page in self.index._pools[group_id].pages.items():
                if page.ready:
                    assert self.memory[self.place(group_id, page.slot)] == self.content(
                        group_id, block
                    )

    @invariant()
    def what_is_being_read_keeps_its_bytes(self) -> None:
        """Even if the page was forgotten, or moved, since the reading began."""
        for pages in self.reading.values():
            for (group_id, block), slot in pages:
                assert self.memory[self.place(group_id, slot)] == self.content(group_id, block)

    @invariant()
    def no_byte_has_two_owners(self) -> None:
        owned: set[int] = set()
        extents = set(self.arena.empty)
        assert len(extents) == len(self.arena.empty)
        for group_id, room in self.arena.rooms.items():
            for number, extent in room.extents.items():
                assert number not in extents
                extents.add(number)
                assert extent.used == sum(page is not None for page in extent.pages) > 0
                for position, page in enumerate(extent.pages):
                    if page is not None:
                        place = self.place(group_id, number * room.slots_per_extent + position)
                        bytes_of_page = set(range(place.start, place.stop))
                        assert not owned & bytes_of_page
                        owned |= bytes_of_page
        assert extents == set(range(self.arena.plan.extents))

    @invariant()
    def counts_add_up(self) -> None:
        for room in self.arena.rooms.values():
            extents = room.extents.values()
            free = sum(room.slots_per_extent - e.used for e in extents if not e.is_closing)
            assert room.free_slots == free
            assert room.capacity_slots == free + sum(extent.used for extent in extents)

    @invariant()
    def floors_hold(self) -> None:
        """Empty extents are always there for every group that is below its floor."""
        assert self.arena.spare_extents >= 0

    @invariant()
    def what_is_leased_stays(self) -> None:
        for held in self.leases.values():
            assert all(self.index.knows(*key) for key in held)


def main(argv: list[str] | None = None) -> int:
    """Run the machine for about that many steps."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=200_000)
    steps = parser.parse_args(argv).steps
    run_state_machine_as_test(
        ElasticMachine,
        settings=settings(
            max_examples=max(1, steps // 200),
            stateful_step_count=200,
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
    sys.stdout.write(f"{steps} steps: nothing wrong\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
