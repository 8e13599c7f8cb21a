"""The command line of `make bench-transfer`."""

import argparse
import sys
import time
from collections.abc import Sequence

from lmc_grouped.tools.arguments import named, positive
from lmc_grouped.tools.bench_transfer.memory import Ids, Memory, Order
from lmc_grouped.tools.bench_transfer.profile import format_profile, measure_calls
from lmc_grouped.tools.bench_transfer.report import Sample, format_samples
from lmc_grouped.tools.bench_transfer.runs import format_runs, measure_runs
from lmc_grouped.tools.bench_transfer.sides import SIDES, Side

PAGE_BYTES = (64 * 2**10, 2**20)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print."""
    options = _parser().parse_args(arguments)
    import torch

    torch.set_num_threads(options.threads)
    total_bytes = options.mib * 2**20
    if options.runs:
        print(format_runs(measure_runs(options.runs_page_bytes, total_bytes, options.rounds)))
        return 0
    sides = [side for side in Side if side.name.lower() not in options.without]
    for page_bytes in options.page_bytes or PAGE_BYTES:
        memory = Memory(page_bytes, total_bytes)
        samples = _measure(memory, sides, options.rounds)
        print(format_samples(samples, memory.pages, page_bytes))
        print()
        print(format_profile(measure_calls(memory, options.rounds), samples))
        print()
    return 0


def _measure(memory: Memory, sides: Sequence[Side], rounds: int) -> list[Sample]:
    samples = []
    for order in Order:
        ids = Ids.of(order, memory.pages)
        # A first round that is not counted, but checked: all bytes come back.
        for round_index in range(-1, rounds):
            print(f"{order}: round {round_index + 1} of {rounds}", file=sys.stderr, flush=True)
            start = (round_index + 1) % len(sides)
            for side in [*sides[start:], *sides[:start]]:
                store, load = SIDES[side](memory, ids)
                before = time.perf_counter()
                store()
                stored = time.perf_counter()
                if round_index < 0:
                    memory.wipe_cache()
                begun = time.perf_counter()
                load()
                loaded = time.perf_counter()
                if round_index < 0:
                    memory.check(side)
                    continue
                gigabytes = memory.total_bytes / 1e9
                out, back = gigabytes / (stored - before), gigabytes / (loaded - begun)
                samples.append(Sample(side, order, round_index, out, back))
    return samples


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m lmc_grouped.tools.bench_transfer",
        description=(
            "Copies of pages between a cache and a pool in host memory, out and in: our CPU "
            "rung, plain memcpy, LMCache's torch operations and a loop, side by side."
        ),
    )
    add = parser.add_argument
    add("--rounds", type=named(positive), default=9, help="measured rounds (9)")
    add("--mib", type=named(positive), default=64, help="MiB of one operation (64)")
    add(
        "--page-bytes", type=named(positive), action="append",
        help="bytes of a page of 16 layers; can be repeated (65536 and 1048576)",
    )  # fmt: skip
    add("--threads", type=named(positive), default=1, help="threads of torch's operations (1)")
    add(
        "--without", action="append", default=[], choices=[side.name.lower() for side in Side],
        help="leave a side out; can be repeated",
    )  # fmt: skip
    add("--runs", action="store_true", help="compare ways for each size of run, and nothing else")
    add(
        "--runs-page-bytes",
        type=named(positive),
        default=65536,
        help="of a page with --runs (65536)",
    )
    return parser
