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
`lmc-grouped inspect` writes one for a model directory.

exit status: 0 there is an answer, with warnings or without; 2 bad input.
"""

import argparse
from pathlib import Path

from lmc_grouped.tools.plan.arguments import add_question_arguments, read_question
from lmc_grouped.tools.plan.layout import read_layout
from lmc_grouped.tools.plan.report import print_answer


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `lmc-grouped plan`."""
    parser.add_argument("layout", type=Path, metavar="LAYOUT.json", help="the groups of the model")
    add_question_arguments(
        parser,
        budget_default="the layout's",
        workers_help="workers that share the budget; default: the layout's, or 1",
    )


def run(arguments: argparse.Namespace) -> int:
    """Answer on stdout; warnings are part of the answer."""
    question = read_question(arguments, read_layout(arguments.layout))
    print_answer(question, as_json=arguments.json)
    return 0
