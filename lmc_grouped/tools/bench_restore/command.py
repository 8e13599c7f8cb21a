"""The command line of `make bench-restore`."""

import argparse
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from lmc_grouped.tools.arguments import named, positive
from lmc_grouped.tools.bench_restore.figures import Sample, Side
from lmc_grouped.tools.bench_restore.measure import (
    OUTPUT_TOKENS,
    OtherLoad,
    Plan,
    idle_share,
    run_rounds,
)
from lmc_grouped.tools.bench_restore.report import Report, compute_ratios, find_versions
from lmc_grouped.tools.bench_restore.sides import Bench, Running, running
from lmc_grouped.tools.errors import ToolError
from lmc_grouped.tools.tiny_models import MODELS, write_tiny_model

LMCACHE_CHUNK_TOKENS = 256
"""LMCache's default: what a restore brings back is whole chunks of it."""
MAX_IDLE_CORES = 0.2
MAX_OTHER_CORES = 0.1
WORK_DIR = Path(".models")


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and write the JSON file when one was asked for; 1 when a
    server did not start or a phase was not what it should be."""
    options = _parser().parse_args(arguments)
    # An ended bench must not leave its servers: SIGTERM unwinds as Ctrl-C does.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        report = _run(options)
    except ToolError as error:
        print(f"bench-restore: {error}", file=sys.stderr)
        return 1
    print(report.format())
    if options.json:
        report.write(options.json)
    return 0


def _run(options: argparse.Namespace) -> Report:
    recipe = MODELS["gemma3"]
    bench = Bench(
        model_dir=write_tiny_model(recipe.name, options.work_dir / recipe.name),
        recipe=recipe,
        log_dir=options.work_dir / "bench_restore",
        chunk_tokens=options.chunk_size,
        serve_args=options.serve_arg,
    )
    chunk_tokens = options.chunk_size or LMCACHE_CHUNK_TOKENS
    plan = Plan(options.rounds, sorted(set(options.tokens)), options.seed, chunk_tokens)
    left_out = set(options.without) | (set() if options.with_disk else {Side.DISK.name.lower()})
    sides = [side for side in Side if side.name.lower() not in left_out]
    _note(f"starting {len(sides)} servers; logs are in {bench.log_dir}")
    with running(bench, sides, _note) as up:
        idle_cores = idle_share(up)
        if idle_cores > MAX_IDLE_CORES:
            _note(f"idle servers use {idle_cores:.2f} cores: they disturb each other")
        load = OtherLoad(up)
        samples = _with_progress(up, plan)
        other_cores = load.cores()
    if other_cores > MAX_OTHER_CORES:
        _note(f"the rest of the machine used {other_cores:.2f} cores: measure again when it rests")
    settings = {
        "model": recipe.name,
        "rounds": str(plan.rounds),
        "seed": str(plan.seed),
        "output tokens": str(OUTPUT_TOKENS),
        "chunk size": str(options.chunk_size or "default"),
    }
    return Report(
        find_versions(), settings, idle_cores, other_cores, samples, compute_ratios(samples)
    )


def _with_progress(up: Sequence[Running], plan: Plan) -> list[Sample]:
    samples: list[Sample] = []
    for sample in run_rounds(up, plan):
        if not samples or samples[-1].round_index != sample.round_index:
            _note(f"round {sample.round_index + 1} of {plan.rounds}")
        samples.append(sample)
    return samples


def _note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m lmc_grouped.tools.bench_restore",
        description=(
            "Time to first token of a computed and of a restored prefix: without a connector, "
            "with lmc_grouped and with LMCache's multi-process connector, side by side."
        ),
    )
    parser.add_argument("--rounds", type=named(positive), default=5, help="measured rounds (5)")
    parser.add_argument(
        "--tokens",
        type=named(positive),
        nargs="+",
        default=[2000, 4000],
        help="prompt lengths (2000 4000)",
    )
    parser.add_argument(
        "--chunk-size",
        type=named(positive),
        help="store granularity of both connectors in tokens; without it each has its default",
    )
    parser.add_argument("--seed", type=int, default=0, help="of the prompts (0)")
    parser.add_argument(
        "--without",
        action="append",
        default=[],
        choices=[side.name.lower() for side in Side if side is not Side.DISK],
        help="leave a side out; can be repeated",
    )
    parser.add_argument(
        "--with-disk",
        action="store_true",
        help="one more side: lmc_grouped with its file tier, for the cost of writing",
    )
    parser.add_argument(
        "--serve-arg",
        action="append",
        default=[],
        metavar="ARG",
        help="one more argument of every `vllm serve`; --serve-arg=--flag, can be repeated",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything measured")
    parser.add_argument(
        "--work-dir", type=Path, default=WORK_DIR, help=f"model and logs ({WORK_DIR})"
    )
    return parser
