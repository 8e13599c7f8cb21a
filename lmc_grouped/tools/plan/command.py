"""Say what a host budget holds for the groups of a model, without an engine.

LAYOUT.json lists the groups with the bytes of one page per worker:

  {"max_model_len": 65536, "groups": [
    {"group_id": 0, "kind": "full", "span_tokens": 784, "page_bytes": 10235904},
    {"group_id": 1, "kind": "scratch"},
    {"group_id": 2, "kind": "recurrent", "span_tokens": 784, "page_bytes": 9633792},
    {"group_id": 6, "kind": "window", "span_tokens": 64, "page_bytes": 4096,
     "window_tokens": 1024}]}

It may also give name, workers, budget_bytes (over all workers),
shared_row_bytes and alignment_tokens; other keys are ignored.

exit status: 0 there is an answer, with warnings or without; 2 bad input.
"""

import argparse
import sys
from pathlib import Path

import msgspec

from lmc_grouped.core.partition import Partition
from lmc_grouped.tools.arguments import named, positive, retention
from lmc_grouped.tools.errors import ToolError
from lmc_grouped.tools.plan.answer import Question, answer
from lmc_grouped.tools.plan.layout import Layout, read_layout
from lmc_grouped.tools.plan.report import format_answer
from lmc_grouped.tools.plan.sizes import parse_size


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `lmc-grouped plan`."""
    add = parser.add_argument
    add("layout", type=Path, metavar="LAYOUT.json", help="the groups of the model")
    add(
        "--budget", type=named(parse_size), metavar="SIZE",
        help="host bytes over all workers, such as 16GiB or 12.5GB; default: the layout's",
    )  # fmt: skip
    add(
        "--workers", type=named(positive), metavar="N",
        help="workers that share the budget; default: the layout's, or 1",
    )  # fmt: skip
    add(
        "--retention", type=named(retention), default=0, metavar="none|0|TOKENS",
        help="which states and window tails are kept: all of them, those at proven resume "
        "points, or also one every TOKENS tokens; default %(default)s",
    )  # fmt: skip
    add(
        "--reference-tokens", type=named(positive), metavar="N",
        help="length of the contexts to size for; default: the layout's max_model_len",
    )  # fmt: skip
    add(
        "--partition", choices=[str(kind) for kind in Partition], default=str(Partition.AUTO),
        help="a pool per group (static; auto is the same for now) or shared rows (off); "
        "default %(default)s",
    )  # fmt: skip
    add("--json", action="store_true", help="print the answer as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Answer on stdout; warnings are part of the answer."""
    question = _question(arguments, read_layout(arguments.layout))
    found = answer(question)
    if arguments.json:
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(found), indent=2).decode() + "\n")
    else:
        print(format_answer(question, found))
    return 0


def _question(arguments: argparse.Namespace, layout: Layout) -> Question:
    budget_bytes = arguments.budget or layout.budget_bytes
    if budget_bytes is None:
        raise ToolError(
            "--budget is missing and the layout has no budget_bytes: give one, such as 16GiB"
        )
    workers = arguments.workers or layout.workers or 1
    if budget_bytes < workers:
        raise ToolError(f"--budget: {budget_bytes} bytes are less than one byte per worker")
    return Question(
        layout=layout,
        workers=workers,
        budget_bytes_per_worker=budget_bytes // workers,
        retention_tokens=arguments.retention,
        reference_tokens=arguments.reference_tokens or layout.max_model_tokens,
        partition=Partition(arguments.partition),
    )
