"""The command line of `make bench-disk`."""

import argparse
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from lmc_grouped.tools.arguments import named, positive
from lmc_grouped.tools.bench_disk.crc import measure_crc32
from lmc_grouped.tools.bench_disk.recovery import measure_recovery
from lmc_grouped.tools.bench_disk.report import (
    Sample,
    format_crc32,
    format_samples,
    format_shapes,
)
from lmc_grouped.tools.bench_disk.shape_figures import ShapeFigures, measure_shapes
from lmc_grouped.tools.bench_disk.sides import SIDES, Mode, Pages, Side, order

PAGE_BYTES = 2**20
SMALL_PAGE_BYTES = 512
WORK_DIR = Path("build/bench_disk")


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; files are made in the work directory and removed again."""
    options = _parser().parse_args(arguments)
    work_dir: Path = options.work_dir
    shutil.rmtree(work_dir, ignore_errors=True)
    try:
        if options.shapes:
            print(format_shapes(_shapes(options)))
            return 0
        sides = [side for side in Side if side.name.lower() not in options.without]
        print(format_samples(_rounds(options, sides), options.pages, options.page_bytes))
        pages = Pages(options.pages, options.page_bytes)
        print("\n" + format_crc32([measure_crc32(pages) for _ in range(options.rounds)]))
        seconds = [measure_recovery(work_dir, options.records) for _ in range(options.rounds)]
        print(
            f"opening a store of {options.records:,} pages: {median(seconds):.2f} s "
            f"({min(seconds):.2f}..{max(seconds):.2f})"
        )
    finally:
        shutil.rmtree(work_dir, ignore_errors=True)
    return 0


def _rounds(options: argparse.Namespace, sides: Sequence[Side]) -> list[Sample]:
    pages = Pages(options.pages, options.page_bytes)
    samples = []
    # A first round that is not counted: memory the machine never touched is slow once.
    for round_index in range(-1, options.rounds):
        print(f"round {round_index + 1} of {options.rounds}", file=sys.stderr, flush=True)
        for mode in Mode:
            for side in order(sides, round_index):
                sample = _measure(options.work_dir, mode, side, pages, round_index)
                if round_index >= 0:
                    samples.append(sample)
    return samples


def _measure(work_dir: Path, mode: Mode, side: Side, pages: Pages, round_index: int) -> Sample:
    work_dir.mkdir(parents=True)
    pages.wipe()
    with SIDES[side](work_dir, mode, pages) as (put, get):
        start = time.perf_counter()
        put()
        middle = time.perf_counter()
        get()
        end = time.perf_counter()
    pages.check()
    shutil.rmtree(work_dir)
    megabytes = pages.total_bytes / 1e6
    return Sample(side, mode, round_index, megabytes / (middle - start), megabytes / (end - middle))


def _shapes(options: argparse.Namespace) -> list[list[ShapeFigures]]:
    return [
        measure_shapes(
            options.work_dir, options.page_bytes, options.pages, options.records, SMALL_PAGE_BYTES
        )
        for _ in range(options.rounds)
    ]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m lmc_grouped.tools.bench_disk",
        description=(
            "Put and get of pages: plain system calls, the file tier, and LMCache's disk "
            "backend, side by side, past the page cache and through it; then the time to open a "
            "store of many pages."
        ),
    )
    add = parser.add_argument
    add("--rounds", type=named(positive), default=7, help="measured rounds (7)")
    add("--pages", type=named(positive), default=256, help="pages per round (256)")
    add(
        "--page-bytes",
        type=named(positive),
        default=PAGE_BYTES,
        help=f"bytes of one ({PAGE_BYTES})",
    )
    add(
        "--records",
        type=named(positive),
        default=100_000,
        help="pages of the store to open (100000)",
    )
    add(
        "--without", action="append", default=[], choices=[side.name.lower() for side in Side],
        help="leave a side out; can be repeated",
    )  # fmt: skip
    add("--shapes", action="store_true", help="compare shapes a store could have, and nothing else")
    add("--work-dir", type=Path, default=WORK_DIR, help=f"emptied first and last ({WORK_DIR})")
    return parser
