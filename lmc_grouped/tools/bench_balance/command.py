"""The command line of `make bench-balance`."""

import argparse
import importlib.util
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec

from lmc_grouped.tools.arguments import named, positive
from lmc_grouped.tools.bench_balance.figures import Phase, Result, Side, Task
from lmc_grouped.tools.bench_balance.report import format_model
from lmc_grouped.tools.errors import ToolError
from lmc_grouped.tools.serving import build_env
from lmc_grouped.tools.tiny_models import write_tiny_model

PROGRAM = "lmc_grouped.tools.bench_balance.engine"
LOG_TAIL_LINES = 20
REFERENCE_TOKENS = 1_024
FORCED_PAGES = 4
WORK_DIR = Path(".models")

BUDGETS = {"gemma3": 32 * 2**20, "qwen3_next": 14 * 2**20}
"""Host bytes by model. A few dozen prompts fill them, and Qwen3-Next's is the least
from which on the plan picks extents of several pages."""
SHORT = {"gemma3": Phase(200, 40), "qwen3_next": Phase(300, 90)}
LONG = {"gemma3": Phase(1_500, 12), "qwen3_next": Phase(1_500, 36)}
"""Prompts of a phase by model: they keep more than the budget."""
SIDES = {
    "gemma3": (Side.AUTO, Side.FORCED, Side.STATIC, Side.OFF),
    "qwen3_next": (Side.AUTO, Side.STATIC, Side.OFF),
}
"""Gemma3's pages are all of one size: the plan puts one in an extent, and moves none."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; 1 when an engine failed."""
    options = _parser().parse_args(arguments)
    results: list[Result] = []
    try:
        for model in dict.fromkeys(options.models):
            model_dir = write_tiny_model(model, options.work_dir / model)
            of_model = []
            for side in SIDES[model]:
                print(f"{model}, {side.value}", file=sys.stderr, flush=True)
                of_model.append(run_engine(task_of(model, model_dir, side, options.rounds)))
            print(format_model(of_model) + "\n", flush=True)
            results += of_model
    except ToolError as error:
        print(f"bench-balance: {error}", file=sys.stderr)
        return 1
    if options.json:
        options.json.write_bytes(msgspec.json.format(msgspec.json.encode(results)) + b"\n")
    return 0


def task_of(model: str, model_dir: Path, side: Side, rounds: int) -> Task:
    """What one engine has to do."""
    return Task(
        model=model,
        model_dir=str(model_dir),
        side=side,
        budget_bytes=BUDGETS[model],
        reference_tokens=REFERENCE_TOKENS,
        short=SHORT[model],
        long=LONG[model],
        rounds=rounds,
        forced_pages=FORCED_PAGES,
    )


def run_engine(task: Task) -> Result:
    """Carry out a task in a process of its own.

    Raises:
        ToolError: vLLM is not installed, or the engine failed.
    """
    if importlib.util.find_spec("vllm") is None:
        raise ToolError("bench-balance starts engines: install vLLM (its CPU build will do)")
    environment = build_env(
        {
            "VLLM_LOGGING_LEVEL": os.environ.get("VLLM_LOGGING_LEVEL", "ERROR"),
            # Where another program has a core, threads wait for each other, and the engine's
            # time grows ten times: rebalancing would seem to cost nothing.
            "OMP_NUM_THREADS": "1",
        }
    )
    with tempfile.TemporaryDirectory(prefix="lmc-grouped-bench.") as directory:
        result_path = Path(directory) / "result.json"
        done = subprocess.run(
            [sys.executable, "-m", PROGRAM, str(result_path)],
            input=msgspec.json.encode(task),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment,
            check=False,
        )
        if done.returncode == 0 and result_path.exists():
            return msgspec.json.decode(result_path.read_bytes(), type=Result)
    tail = "\n".join(done.stdout.decode(errors="replace").splitlines()[-LOG_TAIL_LINES:])
    raise ToolError(
        f"the engine of {task.model}, {task.side.value}, ended with status {done.returncode} "
        f"and no result; it last wrote:\n{tail}"
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m lmc_grouped.tools.bench_balance",
        description=(
            "What rebalancing costs an engine whose requests alternate between short and long, "
            "and what each partition of the host budget restores of them."
        ),
    )
    parser.add_argument(
        "--models",
        nargs="+",
        choices=sorted(BUDGETS),
        default=sorted(BUDGETS),
        help="tiny models (all)",
    )
    parser.add_argument(
        "--rounds", type=named(positive), default=5, help="measured rounds (%(default)s)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything measured")
    parser.add_argument(
        "--work-dir", type=Path, default=WORK_DIR, help="where the models are (%(default)s)"
    )
    return parser
