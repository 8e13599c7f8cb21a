"""Reads, writes and drops at once, in a store that evicts all the time."""

import random
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from lmc_grouped.host.disk import PutAnswer, ReadOutcome
from tests.factories import disk_key, namespace, page_of

SIZES = {0: 4_096, 1: 700}
KEYS = [disk_key(group_id, number) for number in range(60) for group_id in SIZES]
ROUNDS = 300


@pytest.fixture
def eager_threads():
    """Threads take turns a hundred times as often as they usually do."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(before / 100)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("eager_threads")
def test_no_page_is_damaged_or_lost_count_of_between_threads(open_disk):
    disk = open_disk(100_000, ns=namespace(SIZES))
    tier = disk.tier
    done = threading.Event()
    pages = {key: page_of(key, SIZES[key[0]]) for key in KEYS}

    def write(seed: int) -> int:
        chance = random.Random(seed)
        accepted = 0
        while not done.is_set():
            accepted += tier.put(key := chance.choice(KEYS), pages[key]) is PutAnswer.ACCEPTED
        return accepted

    def read_and_drop(seed: int) -> int:
        chance = random.Random(seed)
        hits = 0
        for _ in range(ROUNDS):
            keys = chance.sample(KEYS, 12)
            hits += disk.read(keys).count(ReadOutcome.HIT)
            tier.drop(keys[:1])
        return hits

    with ThreadPoolExecutor(4) as threads:
        writers = [threads.submit(write, seed) for seed in (1, 2)]
        readers = [threads.submit(read_and_drop, seed) for seed in (3, 4)]
        hits = sum(reader.result() for reader in readers)
        done.set()
        accepted = sum(writer.result() for writer in writers)
    tier.flush()
    stats = tier.stats()
    stored = tier.stored_pages()
    assert accepted > 0
    assert hits == stats.hits > 0
    assert stats.damaged_pages == 0, "a slot was reused while somebody read it"
    assert stats.used_bytes == sum(page.page_bytes for page in stored)
    assert sum(group.pages for group in stats.groups.values()) == len(stored)
    assert sum(stats.writes_by_end.values()) == accepted
    assert stats.allocated_bytes <= stats.cap_bytes
