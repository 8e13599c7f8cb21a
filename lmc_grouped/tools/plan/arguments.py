"""The arguments that ask about a layout: `plan` and `inspect` have them in common."""

import argparse

from lmc_grouped.core.pools import Partition
from lmc_grouped.tools.arguments import named, positive, retention
from lmc_grouped.tools.errors import ToolError
from lmc_grouped.tools.plan.answer import Question
from lmc_grouped.tools.plan.layout import Layout
from lmc_grouped.tools.plan.sizes import parse_size


def add_question_arguments(
    parser: argparse.ArgumentParser, *, budget_default: str, workers_help: str
) -> None:
    """Declare the arguments that `read_question` reads, and `--json`."""
    add = parser.add_argument
    add(
        "--budget", type=named(parse_size), metavar="SIZE",
        help=f"host bytes over all workers, such as 16GiB or 12.5GB; default: {budget_default}",
    )  # fmt: skip
    add("--workers", type=named(positive), metavar="N", help=workers_help)
    add(
        "--retention", type=named(retention), default=0, metavar="none|0|TOKENS",
        help="which states and window tails are kept: all of them, those at proven resume "
        "points, or also one every TOKENS tokens; default %(default)s",
    )  # fmt: skip
    add(
        "--reference-tokens", type=named(positive), metavar="N",
        help="length of the contexts to size for; default: the longest the model takes",
    )  # fmt: skip
    add(
        "--partition", choices=[str(kind) for kind in Partition], default=str(Partition.STATIC),
        help="extents that move between the groups (auto, what a server does unless told "
        "otherwise), a fixed pool per group (static), or shared rows (off); the three are "
        "compared whatever is given; default %(default)s",
    )  # fmt: skip
    add("--json", action="store_true", help="print the answer as JSON")


def read_question(arguments: argparse.Namespace, layout: Layout) -> Question:
    """What the arguments ask about `layout`.

    Raises ToolError when neither gives a budget, or one without a byte per worker.
    """
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
