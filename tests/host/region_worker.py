"""A worker that maps five pools, pins them with a fake driver, and can be killed anywhere.

`python -m tests.host.region_worker MODE LOCK`. It writes where it has come to, and the
address of its region once there is one.

- `unmapped`, `mapped`, `populated`, `pinning`, `pinned`: come to that point and stay there.
- `for_ever`: map, fill, pin and unpin again and again.
- `restart`: do all of it once with an address space that holds one region and no second.
- `owner`: fill the region, then answer `check` and `damage` from standard input.
"""

import os
import resource
import signal
import sys
from pathlib import Path

from lmc_grouped.host.region import HostRegion, PoolShape, RegionError
from tests.host.fake_driver import FakeDriver

SHAPES = {
    0: PoolShape(400, 35_840),
    1: PoolShape(150, 65_536),
    3: PoolShape(1_000, 4_096),
    4: PoolShape(100, 12_345),
    7: PoolShape(20, 100_000),
}
STAGES = ("unmapped", "mapped", "populated", "pinning", "pinned")
MARGIN_BYTES = 12 * 2**20
"""For what Python needs beside the region; less than the region."""


def say(text: str) -> None:
    os.write(1, f"{text}\n".encode())


def stay(stage: str) -> None:
    say(stage)
    signal.pause()


class StoppingDriver(FakeDriver):
    """Stays inside the call for the second piece."""

    def register(self, address: int, size_bytes: int) -> int:
        if self.locked:
            stay("pinning")
        return super().register(address, size_bytes)


class UnpopulatedRegion(HostRegion):
    """Stays between mapping the memory and taking it."""

    def _populate(self) -> None:
        stay("mapped")


def fill(region: HostRegion) -> None:
    for group_id in SHAPES:
        region.pool(group_id)[:] = group_id + 1


def is_unchanged(region: HostRegion) -> bool:
    pages = (
        (g, region.page(g, slot)) for g, shape in SHAPES.items() for slot in range(shape.slots)
    )
    return all(page.min() == page.max() == group_id + 1 for group_id, page in pages)


def run_to(stage: str, lock: Path) -> None:
    if stage == "unmapped":
        stay(stage)
    region = (UnpopulatedRegion if stage == "mapped" else HostRegion)(SHAPES)
    say(f"at {region.address}")
    fill(region)
    if stage == "populated":
        stay(stage)
    driver = StoppingDriver() if stage == "pinning" else FakeDriver()
    region.pin(driver, 0, piece_bytes=2**20, lock_path=lock)
    stay(stage)


def run_for_ever(lock: Path) -> None:
    say("running")
    while True:
        region = HostRegion(SHAPES)
        fill(region)
        region.pin(FakeDriver(), 0, piece_bytes=2**20, lock_path=lock)
        region.close()


def restart(lock: Path) -> None:
    used_bytes = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    region_bytes = sum(shape.slots * shape.page_bytes for shape in SHAPES.values())
    limit = used_bytes + region_bytes + MARGIN_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    region = HostRegion(SHAPES)
    fill(region)
    region.pin(FakeDriver(), 0, piece_bytes=2**20, lock_path=lock)
    try:
        HostRegion(SHAPES)
    except RegionError:
        say("one region and no second")
    if is_unchanged(region):
        say("done")


def own() -> None:
    region = HostRegion(SHAPES)
    fill(region)
    say("filled")
    for line in sys.stdin:
        if line == "damage\n":
            region.page(4, 99)[-1] ^= 1
        say("unchanged" if is_unchanged(region) else "changed")


if __name__ == "__main__":
    mode, lock_path = sys.argv[1], Path(sys.argv[2])
    if mode in STAGES:
        run_to(mode, lock_path)
    elif mode == "for_ever":
        run_for_ever(lock_path)
    elif mode == "restart":
        restart(lock_path)
    else:
        own()
