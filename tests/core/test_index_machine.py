"""The index against a slow, obvious model, driven by Hypothesis."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from lmc_grouped.core.index import PageIndex, PageRef
from tests.factories import block_hash

GROUPS = (0, 2)
HASHES = [block_hash(number) for number in range(7)]
OWNERS = ["a", "b", "c"]


class SlowPage:
    """A page of the model: everything about it is written down."""

    def __init__(self, ref: PageRef, slot: int) -> None:
        self.ref = ref
        self.slot = slot
        self.writer: int | None = None
        self.readers: list[str] = []
        self.dropped = False

    @property
    def is_held(self) -> bool:
        return self.writer is not None or bool(self.readers)

    @property
    def is_readable(self) -> bool:
        return self.writer is None and not self.dropped


class IndexMachine(RuleBasedStateMachine):
    """Every page ever given a slot that it still owns is in ``self.pages``."""

    @initialize(slots=st.tuples(st.integers(0, 4), st.integers(0, 4)))
    def start(self, slots: tuple[int, int]) -> None:
        self.slots = dict(zip(GROUPS, slots, strict=True))
        self.index = PageIndex(self.slots)
        self.pages: list[SlowPage] = []
        self.operation_id = 0
        self.open: list[int] = []
        self.evicted = 0

    def known(self, ref: PageRef) -> SlowPage | None:
        return next((p for p in self.pages if p.ref == ref and not p.dropped), None)

    def of_group(self, group_id: int) -> list[SlowPage]:
        return [page for page in self.pages if page.ref[0] == group_id]

    def settle(self, pages: list[SlowPage]) -> None:
        """Pages that nothing holds and nobody can find give their slots back."""
        for page in pages:
            if page.dropped and not page.is_held:
                self.pages.remove(page)

    @rule(wanted=st.sets(st.tuples(st.sampled_from(GROUPS), st.sampled_from(HASHES)), max_size=6))
    def reserve(self, wanted: set[PageRef]) -> None:
        refs = sorted(ref for ref in wanted if self.known(ref) is None)
        before = self.index.residency()
        self.operation_id += 1
        room = {g: self.slots[g] - sum(page.is_held for page in self.of_group(g)) for g in GROUPS}
        fits = all(sum(ref[0] == g for ref in refs) <= room[g] for g in GROUPS)
        slots = self.index.reserve(self.operation_id, refs)
        assert (slots is not None) == fits
        if slots is None:
            assert self.index.residency() == before
            return
        for ref, slot in zip(refs, slots, strict=True):
            assert 0 <= slot < self.slots[ref[0]]
            for page in [p for p in self.of_group(ref[0]) if p.slot == slot]:
                # Whoever had the slot was evicted: nothing may have held it.
                assert not page.is_held
                assert not page.dropped
                self.pages.remove(page)
                self.evicted += 1
            page = SlowPage(ref, slot)
            page.writer = self.operation_id
            self.pages.append(page)
        self.open.append(self.operation_id)

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def commit(self, data: st.DataObject) -> None:
        operation_id = data.draw(st.sampled_from(self.open))
        self.open.remove(operation_id)
        self.index.commit(operation_id)
        mine = [page for page in self.pages if page.writer == operation_id]
        for page in mine:
            page.writer = None
        self.settle(mine)

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        operation_id = data.draw(st.sampled_from(self.open))
        self.open.remove(operation_id)
        self.index.abort(operation_id)
        mine = [page for page in self.pages if page.writer == operation_id]
        for page in mine:
            page.writer = None
            page.dropped = True
        self.settle(mine)

    @rule(
        owner=st.sampled_from(OWNERS),
        wanted=st.lists(st.tuples(st.sampled_from(GROUPS), st.sampled_from(HASHES)), max_size=4),
    )
    def lease(self, owner: str, wanted: list[PageRef]) -> None:
        found = [page for ref in wanted if (page := self.known(ref)) is not None]
        slots = self.index.lease(owner, [page.ref for page in found])
        assert slots == [page.slot for page in found]
        for page in found:
            page.readers.append(owner)

    @rule(owner=st.sampled_from(OWNERS))
    def release(self, owner: str) -> None:
        self.index.release(owner)
        mine = [page for page in self.pages if owner in page.readers]
        for page in mine:
            page.readers = [reader for reader in page.readers if reader != owner]
        self.settle(mine)

    @rule(wanted=st.lists(st.tuples(st.sampled_from(GROUPS), st.sampled_from(HASHES)), max_size=4))
    def drop(self, wanted: list[PageRef]) -> None:
        self.index.drop(wanted)
        mine = [page for page in self.pages if page.ref in wanted and page.is_readable]
        for page in mine:
            page.dropped = True
        self.settle(mine)

    @rule()
    def clear(self) -> None:
        self.index.clear()
        for page in self.pages:
            page.dropped = True
        self.settle(list(self.pages))

    @invariant()
    def no_slot_has_two_owners(self) -> None:
        owned = [(page.ref[0], page.slot) for page in self.pages]
        assert len(owned) == len(set(owned))

    @invariant()
    def exactly_the_committed_pages_are_readable(self) -> None:
        for ref in [(g, h) for g in GROUPS for h in HASHES]:
            page = self.known(ref)
            assert self.index.knows(*ref) == (page is not None)
            assert self.index.has(*ref) == (page is not None and page.is_readable)

    @invariant()
    def room_and_residency_tell_the_truth(self) -> None:
        residency = self.index.residency()
        for group_id, slots in self.slots.items():
            pages = self.of_group(group_id)
            held = sum(page.is_held for page in pages)
            assert self.index.room_slots(group_id) == slots - held
            pool = residency[group_id]
            assert pool.capacity_slots == slots
            assert pool.resident_slots == len(pages)
            assert pool.idle_slots == len(pages) - held
        assert sum(pool.evicted_pages for pool in residency.values()) == self.evicted

    @invariant()
    def every_owner_has_the_leases_it_took(self) -> None:
        for owner in OWNERS:
            taken = sum(page.readers.count(owner) for page in self.pages)
            assert self.index.leased_pages(owner) == taken


TestIndexMachine = IndexMachine.TestCase
TestIndexMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
