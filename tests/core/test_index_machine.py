"""The index against a slow, obvious model, driven by Hypothesis.

The prompts are paths in a small tree. Group 0 is full attention, group 1 a
window, group 2 recurrent; a node's number is the hash of the prompt up to it.
"""

from dataclasses import dataclass, field
from itertools import pairwise

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from lmc_grouped.core.index import PageIndex
from lmc_grouped.core.pool import NewPage, PageRef
from lmc_grouped.core.room import Page
from tests.factories import block_hash

FULL, WINDOW, RECURRENT = GROUPS = (0, 1, 2)
BEFORE = {1: None, 2: 1, 3: 2, 4: 2, 5: 4, 6: None, 7: 6, 8: 6}
"""node -> the node before it."""
NODES = st.sampled_from(sorted(BEFORE))
OWNERS = st.sampled_from(["a", "b", "c"])
PAGES = st.tuples(st.sampled_from(GROUPS), NODES)


def path_to(node: int | None) -> list[int]:
    return [] if node is None else [*path_to(BEFORE[node]), node]


def ref(group_id: int, node: int) -> PageRef:
    return group_id, block_hash(node)


class RecordingIndex(PageIndex):
    """An index that remembers who was evicted, in order."""

    evicted: list[PageRef]

    def evict(self, page: Page) -> None:
        group_id = next(g for g, pool in self._pools.items() if pool is page.pool)
        self.evicted.append((group_id, page.block_hash))
        super().evict(page)


@dataclass(eq=False)
class SlowPage:
    """A page of the model: everything about it is written down."""

    group_id: int
    node: int
    slot: int
    writer: int | None
    previous: "SlowPage | None" = None
    readers: list[str] = field(default_factory=list)
    ready: bool = False
    gone: bool = False
    used_at: int = 0


class IndexMachine(RuleBasedStateMachine):
    """Every page that still owns a slot is in ``self.pages``."""

    @initialize(slots=st.tuples(*[st.integers(1, 6)] * 3), shared=st.booleans())
    def start(self, slots: tuple[int, int, int], shared: bool) -> None:
        self.shared = shared
        self.slots = dict(zip(GROUPS, [sum(slots)] * 3 if shared else slots, strict=True))
        self.index = RecordingIndex(self.slots, shared=shared)
        self.index.evicted = []
        self.pages: list[SlowPage] = []
        self.families: set[tuple[SlowPage, ...]] = set()
        self.open: list[int] = []
        self.now = 0
        self.evictions = 0

    # What the model says.

    def known(self, group_id: int, node: int) -> SlowPage | None:
        for page in self.pages:
            if (page.group_id, page.node, page.gone) == (group_id, node, False):
                return page
        return None

    def in_room_of(self, group_id: int) -> list[SlowPage]:
        return [page for page in self.pages if self.shared or page.group_id == group_id]

    def followers(self, page: SlowPage) -> list[SlowPage]:
        return [other for other in self.pages if other.previous is page]

    def is_held(self, page: SlowPage) -> bool:
        by_follower = any(self.is_held(other) for other in self.followers(page))
        return page.writer is not None or bool(page.readers) or by_follower

    def is_useful(self, page: SlowPage) -> bool:
        serves = any(page in family for family in self.families)
        return serves or any(self.is_useful(other) for other in self.followers(page))

    def held_pages(self) -> set[SlowPage]:
        return {page for page in self.pages if self.is_held(page)}

    def forget(self, page: SlowPage) -> None:
        """The page can be found no more; without holders its slot is free."""
        self.families = {family for family in self.families if page not in family}
        page.gone, page.previous = True, None

    def settle(self, held_before: set[SlowPage]) -> None:
        """What nothing holds any more was used until now; what is gone gives its slot back."""
        for page in held_before - self.held_pages():
            page.used_at = self.now
        self.pages = [page for page in self.pages if not page.gone or self.is_held(page)]

    def check_evictions(self) -> None:
        """Each page that left was the right one, given those that had left before."""
        for group_id, evicted_hash in self.index.evicted:
            page = next(
                p
                for p in self.pages
                if not p.gone and (p.group_id, block_hash(p.node)) == (group_id, evicted_hash)
            )
            idle = [p for p in self.in_room_of(group_id) if not p.gone and not self.is_held(p)]
            ends = [p for p in idle if not self.followers(p)]
            assert page in ends
            useless = [p for p in ends if not self.is_useful(p)]
            if useless:
                assert page in useless
            else:
                assert page.used_at == min(p.used_at for p in ends)
            self.forget(page)
            self.pages.remove(page)
            self.evictions += 1
        self.index.evicted.clear()

    # Rules.

    @rule(owner=OWNERS, node=NODES, tail=st.integers(1, 2), keep=st.booleans())
    def serve(self, owner: str, node: int, tail: int, keep: bool) -> None:
        """What a request does: store a prompt with its tail and its state, and end."""
        self.write(owner, node, {(WINDOW, n) for n in path_to(node)[-tail:]} | {(RECURRENT, node)})
        while self.open:
            self.commit()
        self.join(node, tail, set(GROUPS))
        if not keep:
            self.release(owner)

    @rule(owner=OWNERS, node=NODES, others=st.sets(PAGES, max_size=3))
    def write(self, owner: str, node: int, others: set[tuple[int, int]]) -> None:
        """Store what is missing of a path in the full group, and pages of the other groups."""
        self.now += 1
        path = path_to(node)
        missing = [n for n in path if self.known(FULL, n) is None]
        anchors = path[: len(path) - len(missing)][-1:]
        self.index.lease(owner, [ref(FULL, n) for n in anchors])
        for n in anchors:
            self.known(FULL, n).readers.append(owner)
        wanted = [(FULL, n) for n in missing]
        wanted += [(g, n) for g, n in sorted(others) if g != FULL and self.known(g, n) is None]
        self.reserve(wanted)

    def reserve(self, wanted: list[tuple[int, int]]) -> None:
        before = self.index.residency()
        held = self.held_pages()
        room = {g: self.slots[g] - sum(p in held for p in self.in_room_of(g)) for g in GROUPS}
        fits = all(sum(self.shared or other == g for other, _ in wanted) <= room[g] for g in GROUPS)
        new = []
        for group_id, node in wanted:
            previous = BEFORE[node] if group_id == FULL else None
            new.append(
                NewPage(*ref(group_id, node), None if previous is None else block_hash(previous))
            )
        slots = self.index.reserve(self.now, new)
        assert (slots is not None) == fits
        if slots is None:
            assert self.index.residency() == before
            return
        self.check_evictions()
        for (group_id, node), slot in zip(wanted, slots, strict=True):
            assert 0 <= slot < self.slots[group_id]
            assert slot not in [page.slot for page in self.in_room_of(group_id)]
            previous = self.known(FULL, BEFORE[node]) if group_id == FULL and BEFORE[node] else None
            self.pages.append(SlowPage(group_id, node, slot, self.now, previous))
        self.open.append(self.now)

    @rule()
    def commit(self) -> None:
        if not self.open:
            return
        self.now += 1
        held = self.held_pages()
        operation_id = self.open.pop(0)
        self.index.commit(operation_id)
        for page in self.pages:
            if page.writer == operation_id:
                page.writer, page.ready = None, not page.gone
        self.settle(held)

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        self.now += 1
        operation_id = data.draw(st.sampled_from(self.open))
        self.open.remove(operation_id)
        self.index.abort(operation_id)
        mine = [p for p in self.pages if p.writer == operation_id]
        self.lose([p for p in mine if not p.gone], writer=operation_id)

    def lose(self, lost: list[SlowPage], writer: int | None = None) -> None:
        """Forget pages and what leans on them."""
        held = self.held_pages()
        queue = list(lost)
        while queue:
            page = queue.pop()
            queue += [other for other in self.followers(page) if not other.gone]
            if not page.gone:
                self.forget(page)
        for page in self.pages:
            if writer is not None and page.writer == writer:
                page.writer = None
        self.settle(held)

    @rule(node=NODES, tail=st.integers(1, 3), groups=st.sets(st.sampled_from(GROUPS), min_size=1))
    def join(self, node: int, tail: int, groups: set[int]) -> None:
        self.now += 1
        chains = []
        for group_id in sorted(groups):
            nodes = path_to(node)[-tail:] if group_id == WINDOW else [node]
            chains.append((group_id, nodes))
        pages = [[self.known(g, n) for n in nodes] for g, nodes in chains]
        is_known = all(page is not None for chain in pages for page in chain)
        joined = self.index.join([(g, [block_hash(n) for n in nodes]) for g, nodes in chains])
        assert joined == is_known
        if not is_known:
            return
        for chain in pages:
            for previous, page in pairwise(chain):
                page.previous = previous
        self.families.add(tuple(chain[-1] for chain in pages))
        for chain in pages:
            walk = chain[-1]
            while walk is not None:
                walk.used_at = self.now
                walk = walk.previous

    @precondition(lambda self: self.families)
    @rule(data=st.data())
    def renew(self, data: st.DataObject) -> None:
        """Another request with the same prompt proves a boundary again."""
        ends = [[(p.group_id, p.node) for p in family] for family in self.families]
        family = data.draw(st.sampled_from(sorted(ends)))
        self.join(family[0][1], 1, {group_id for group_id, _ in family})

    @rule(owner=OWNERS, wanted=st.lists(PAGES, max_size=4))
    def lease(self, owner: str, wanted: list[tuple[int, int]]) -> None:
        self.now += 1
        found = [page for g, n in wanted if (page := self.known(g, n)) is not None]
        refs = [ref(page.group_id, page.node) for page in found]
        self.index.lease(owner, refs)
        assert self.index.slots(refs) == [page.slot for page in found]
        for page in found:
            page.readers.append(owner)

    @rule(owner=OWNERS)
    def release(self, owner: str) -> None:
        self.now += 1
        held = self.held_pages()
        self.index.release(owner)
        for page in self.pages:
            page.readers = [reader for reader in page.readers if reader != owner]
        self.settle(held)

    @rule(wanted=st.lists(PAGES, max_size=2))
    def drop(self, wanted: list[tuple[int, int]]) -> None:
        self.now += 1
        self.index.drop([ref(g, n) for g, n in wanted])
        found = [page for g, n in wanted if (page := self.known(g, n)) is not None]
        self.lose([page for page in found if page.ready])

    @rule(really=st.integers(0, 9))
    def clear(self, really: int) -> None:
        if really == 9:
            self.now += 1
            self.index.clear()
            self.lose([page for page in self.pages if not page.gone])

    # What must hold at every step.

    @invariant()
    def exactly_the_committed_pages_are_readable(self) -> None:
        for group_id in GROUPS:
            for node in BEFORE:
                page = self.known(group_id, node)
                key = ref(group_id, node)
                assert self.index.knows(*key) == (page is not None)
                assert self.index.has(*key) == (page is not None and page.ready)

    @invariant()
    def a_readable_page_of_a_full_group_has_its_whole_prefix(self) -> None:
        for node, before in BEFORE.items():
            if before is not None and self.index.has(*ref(FULL, node)):
                assert self.index.has(*ref(FULL, before))

    @invariant()
    def room_and_residency_tell_the_truth(self) -> None:
        residency = self.index.residency()
        held = self.held_pages()
        for group_id, slots in self.slots.items():
            mine = self.in_room_of(group_id)
            pool = residency[group_id]
            assert self.index.room_slots(group_id) == slots - sum(page in held for page in mine)
            assert pool.capacity_slots == slots
            assert pool.free_slots == slots - len(mine)
            assert pool.resident_pages == sum(
                page.group_id == group_id and not page.gone for page in mine
            )
            idle = [page for page in mine if page not in held]
            assert (pool.idle_slots, pool.held_slots) == (len(idle), len(mine) - len(idle))
            assert pool.useless_slots == sum(not self.is_useful(page) for page in idle)
        assert sum(pool.evicted_pages for pool in residency.values()) == self.evictions

    @invariant()
    def every_owner_has_the_leases_it_took(self) -> None:
        for owner in ("a", "b", "c"):
            taken = sum(page.readers.count(owner) for page in self.pages)
            assert self.index.leased_pages(owner) == taken


TestIndexMachine = IndexMachine.TestCase
TestIndexMachine.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
