"""The tier against a slow, obvious model: an ordered dict and a sum."""

import shutil
import tempfile
from collections import OrderedDict
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from lmc_grouped.host.disk import DiskTier, Quota, ReadOutcome
from lmc_grouped.host.disk.groupfile import pages_path
from tests.factories import disk_key, namespace, page_of
from tests.host.conftest import Disk

SIZES = {0: 400, 2: 100}
KEYS = st.builds(disk_key, st.sampled_from(sorted(SIZES)), st.integers(0, 30))
CAPS = st.sampled_from([1_000, 2_000, 5_000, 8_000])
"""In the last one up to 500 bytes are written at once: a page of each group, or five small ones."""


class TierMachine(RuleBasedStateMachine):
    """One writer thread, so that the order of writes is the order of puts."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp())
        self.pages: OrderedDict[tuple[int, bytes], int] = OrderedDict()
        """Visible pages, oldest first -> the order in which they were written."""
        self.damaged: set[tuple[int, bytes]] = set()
        self.written = 0
        self.cap_bytes = 2_000
        self.open()

    def open(self) -> None:
        quota = Quota(self.cap_bytes)
        tier = DiskTier.open(self.root, namespace(SIZES), 0, quota, threads=1)
        self.disk = Disk(tier)
        self.followed = {(p.group_id, p.block_hash) for p in tier.track_changes()}

    def teardown(self) -> None:
        self.disk.tier.close()
        shutil.rmtree(self.root)

    def used(self) -> int:
        return sum(SIZES[group_id] for group_id, _ in self.pages)

    def evict(self, needed_bytes: int) -> None:
        while self.pages and self.used() + needed_bytes > int(0.8 * self.cap_bytes):
            target = self.used() - int(0.2 * self.cap_bytes)
            while self.pages and self.used() > target:
                self.forget(next(iter(self.pages)))

    def forget(self, key) -> None:
        self.pages.pop(key, None)
        self.damaged.discard(key)

    @rule(keys=st.lists(KEYS, max_size=12, unique=True))
    def put_all(self, keys) -> None:
        fresh = [key for key in keys if key not in self.pages]
        for key in keys:  # those that are there become the youngest before any is written
            if key not in fresh:
                self.pages.move_to_end(key)
        answers = self.disk.put_all(keys)
        assert answers == ["accepted" if key in fresh else "present" for key in keys]
        for key in fresh:
            self.note_written(key)

    @rule(key=KEYS)
    def put(self, key) -> None:
        present = key in self.pages
        assert self.disk.put(key) == ["present" if present else "accepted"]
        if present:
            self.pages.move_to_end(key)
        else:
            self.note_written(key)

    def note_written(self, key) -> None:
        self.evict(SIZES[key[0]])
        self.written += 1
        self.pages[key] = self.written

    @rule(keys=st.lists(KEYS, max_size=8, unique=True))
    def read(self, keys) -> None:
        outcomes = self.disk.read(keys)
        for key, outcome in zip(keys, outcomes, strict=True):
            if key in self.damaged:
                assert outcome is ReadOutcome.DAMAGED
                self.forget(key)
            elif key in self.pages:
                assert outcome is ReadOutcome.HIT
                self.pages.move_to_end(key)
            else:
                assert outcome is ReadOutcome.MISS
        self.disk.tier.flush()

    @rule(keys=st.lists(KEYS, max_size=4, unique=True))
    def drop(self, keys) -> None:
        assert self.disk.tier.drop(keys) == sum(key in self.pages for key in keys)
        for key in keys:
            self.forget(key)
        self.disk.tier.flush()

    @precondition(lambda self: self.pages)
    @rule(data=st.data())
    def damage(self, data) -> None:
        key = data.draw(st.sampled_from(sorted(self.pages)))
        path = pages_path(self.disk.tier.directory, key[0])
        stored = bytearray(path.read_bytes())
        place = stored.find(page_of(key, SIZES[key[0]]))
        if key in self.damaged or place % SIZES[key[0]]:
            return
        stored[place + data.draw(st.integers(0, SIZES[key[0]] - 1))] ^= 64
        path.write_bytes(stored)
        # A freed slot may still hold the same bytes: then another copy was damaged.
        probe = stored.find(page_of(key, SIZES[key[0]]))
        if probe < 0:
            self.damaged.add(key)

    @rule(cap_bytes=CAPS)
    def restart(self, cap_bytes) -> None:
        self.disk.tier.close()
        self.cap_bytes = cap_bytes
        self.open()
        self.pages = OrderedDict(sorted(self.pages.items(), key=lambda item: item[1]))
        self.evict(0)

    @invariant()
    def what_is_there_is_what_the_model_has(self) -> None:
        tier = self.disk.tier
        assert [(p.group_id, p.block_hash) for p in tier.stored_pages()] == list(self.pages)
        for key, is_visible in tier.take_changes():
            assert (key in self.followed) != is_visible
            (self.followed.add if is_visible else self.followed.discard)(key)
        assert self.followed == set(self.pages)
        stats = tier.stats()
        assert stats.used_bytes == self.used()
        assert stats.allocated_bytes <= self.cap_bytes
        assert sum(group.pages for group in stats.groups.values()) == len(self.pages)


TestTierMachine = TierMachine.TestCase
TestTierMachine.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
