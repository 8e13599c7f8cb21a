"""How much a store holds: counted after a kill, oldest first, files below the cap."""

import signal
import subprocess
import sys

import pytest

from lmc_grouped.host.disk import DiskError, Quota, ReadOutcome
from tests.factories import disk_key
from tests.host.conftest import KB

HIT = ReadOutcome.HIT

FILL_AND_DIE = """
import os, signal, sys
from pathlib import Path
from lmc_grouped.host.disk import DiskTier, Quota
from tests.factories import A18_PAGE_BYTES, disk_key, namespace, page_of
tier = DiskTier.open(Path(sys.argv[1]), namespace(), 0, Quota(100 * 1024), threads=1)
keys = [disk_key(g, n) for n in range(15) for g in (0, 1)] + [disk_key(1, n) for n in (15, 16, 17)]
for key in keys:
    tier.put(key, page_of(key, A18_PAGE_BYTES[key[0]]))
tier.flush()
os.kill(os.getpid(), signal.SIGKILL)
"""
A19_KEYS = [disk_key(g, n) for n in range(15) for g in (0, 1)] + [
    disk_key(1, n) for n in (15, 16, 17)
]


@pytest.fixture
def killed_at_78_kb(tmp_path):
    done = subprocess.run([sys.executable, "-c", FILL_AND_DIE, str(tmp_path)], check=False)
    assert done.returncode == -signal.SIGKILL


@pytest.mark.usefixtures("killed_at_78_kb")
def test_a19_a_killed_store_counts_78_kb_and_both_groups_hit(open_disk):
    disk = open_disk()
    stats = disk.tier.stats()
    assert (stats.used_bytes, stats.evicted_pages) == (78 * KB, 0)
    assert disk.read(A19_KEYS) == [HIT] * 33


@pytest.mark.usefixtures("killed_at_78_kb")
def test_a19_crossing_80_kb_evicts_20_kb_oldest_first(open_disk):
    disk = open_disk(threads=1)
    disk.put(disk_key(0, 99), disk_key(1, 99))
    stats = disk.tier.stats()
    # Oldest first: four pairs of 5 KB are the 20 KB.
    assert (stats.used_bytes, stats.evicted_pages) == ((78 + 5 - 20) * KB, 8)
    assert disk.hits(A19_KEYS) == A19_KEYS[8:]
    disk.tier.close()
    assert open_disk().hits(A19_KEYS) == A19_KEYS[8:]


@pytest.mark.usefixtures("killed_at_78_kb")
def test_a19_a_lowered_cap_evicts_at_start(open_disk):
    disk = open_disk(50 * KB)
    stats = disk.tier.stats()
    # Above 40 KB, 10 KB at a time: 78, 68, 58, 48, 38.
    assert stats.used_bytes == 38 * KB
    assert stats.allocated_bytes <= 50 * KB
    assert disk.hits(A19_KEYS) == A19_KEYS[16:]
    blocks = sum(path.stat().st_blocks * 512 for path in disk.tier.directory.glob("*.pages"))
    assert blocks <= 60 * KB, "the file system still holds what was evicted"


def test_page_files_stay_below_the_cap_when_the_room_moves_between_groups(open_disk):
    disk = open_disk(threads=1)
    for number in range(200):
        disk.put(disk_key(0, number))
    for number in range(400):
        disk.put(disk_key(1, number))
    stats = disk.tier.stats()
    assert stats.groups[0].pages == 0
    assert stats.groups[1].pages >= 60
    assert stats.allocated_bytes <= 100 * KB
    blocks = sum(path.stat().st_blocks * 512 for path in disk.tier.directory.glob("*.pages"))
    assert blocks <= 104 * KB


def test_a_page_that_is_read_becomes_the_youngest(open_disk):
    disk = open_disk(threads=1)
    keys = [disk_key(0, number) for number in range(20)]
    disk.put(*keys)
    assert disk.hits(keys[:2]) == keys[:2]
    disk.put(disk_key(0, 99))
    assert disk.hits(keys) == keys[:2] + keys[7:]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((0,), "quota is 0 bytes"),
        ((1, 0.0), "watermark is 0.0"),
        ((1, 0.8, 1.5), "evict_ratio is 1.5"),
    ],
)
def test_a_quota_that_makes_no_sense_is_refused(arguments, says):
    with pytest.raises(DiskError, match=says):
        Quota(*arguments)


def test_a_quota_below_one_page_of_every_group_says_what_is_needed(open_disk):
    with pytest.raises(DiskError, match=r"6399 bytes, .*\(5120 bytes\).*at least 6400 bytes"):
        open_disk(6_399)
    open_disk(6_400)
