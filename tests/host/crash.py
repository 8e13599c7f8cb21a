"""Kill a writer at random points and read everything back.

`python -m tests.host.crash --kills 200`. Each round starts a process that writes and
drops pages of two groups as fast as it can, in a store small enough to evict all the
time, kills it after a random moment, and opens the store: every page is exact or a
miss, and what the store says it holds is what it holds.
"""

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

from lmc_grouped.host.disk import DiskTier, Quota, ReadOutcome
from tests.factories import disk_key, namespace, page_of

PAGE_BYTES = {0: 12_288, 1: 1_000}
"""One group past the page cache where that is possible, one not."""
KEYS = [disk_key(group_id, number) for number in range(120) for group_id in PAGE_BYTES]
CAP_BYTES = 400_000
"""About a quarter of all pages: eviction and reuse of slots never stop. Up to 25,000 bytes
are written at once."""


def open_store(root: Path) -> DiskTier:
    """The store of all rounds."""
    return DiskTier.open(root, namespace(PAGE_BYTES), 0, Quota(CAP_BYTES))


def write_for_ever(root: Path, seed: int) -> None:
    """Put and drop random pages until killed; says when it begins."""
    chance = random.Random(seed)
    tier = open_store(root)
    os.write(1, b".")
    while True:
        keys = chance.sample(KEYS, 20)
        tier.put_all(keys, [page_of(key, PAGE_BYTES[key[0]]) for key in keys])
        tier.drop(chance.sample(KEYS, 3))
        if chance.random() < 0.2:
            tier.flush()


def kill_one(root: Path, seed: int, seconds: float) -> None:
    """Let a writer run that long, then kill it."""
    command = [sys.executable, "-m", "tests.host.crash", "--write", str(root), "--seed", str(seed)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        writer.stdout.read(1)
        try:
            writer.wait(seconds)
        except subprocess.TimeoutExpired:
            writer.send_signal(signal.SIGKILL)
        if writer.wait() != -signal.SIGKILL:
            raise RuntimeError(f"the writer ended by itself with status {writer.returncode}")


def check(root: Path) -> Counter[str]:
    """Read all keys of the store; AssertionError for a wrong byte or a wrong sum."""
    with open_store(root) as tier:
        stored = tier.stored_pages()
        used_bytes = sum(page.page_bytes for page in stored)
        assert tier.stats().used_bytes == used_bytes <= CAP_BYTES
        assert tier.stats().allocated_bytes <= CAP_BYTES
        buffers = [bytearray(PAGE_BYTES[group_id]) for group_id, _ in KEYS]
        outcomes = tier.read(KEYS, buffers)
        for key, buffer, outcome in zip(KEYS, buffers, outcomes, strict=True):
            if outcome is ReadOutcome.HIT:
                assert buffer == page_of(key, len(buffer)), "a wrong byte was served"
        tier.flush()
        after, counts = tier.stats(), Counter(map(str, outcomes))
        assert counts["hit"] + counts["damaged"] == len(stored)
        assert (after.hits, after.damaged_pages, after.misses) == (
            counts["hit"], counts["damaged"], counts["miss"],
        )  # fmt: skip
        left = sum(page.page_bytes for page in tier.stored_pages())
        assert after.used_bytes == left
        counts["faults found at opening"] = sum(group.faults for group in after.recovered)
    return counts


def run(kills: int, seed: int, root: Path) -> Counter[str]:
    """That many rounds on one store; what all checks counted together."""
    chance = random.Random(seed)
    total: Counter[str] = Counter()
    for number in range(kills):
        if number % 10 == 0:  # files that grow die differently from files that are full
            shutil.rmtree(root / namespace(PAGE_BYTES).digest(), ignore_errors=True)
        kill_one(root, seed + number, chance.uniform(0, 0.05))
        total += check(root)
    return total


def main() -> int:
    """Exit status 0 when every byte was right; an AssertionError otherwise."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--write", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.write:
        write_for_ever(arguments.write, arguments.seed)
    with tempfile.TemporaryDirectory() as root:
        total = run(arguments.kills, arguments.seed, Path(root))
    text = ", ".join(f"{count} {name}" for name, count in sorted(total.items()))
    sys.stdout.write(f"{arguments.kills} kills: no wrong byte; {text}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
