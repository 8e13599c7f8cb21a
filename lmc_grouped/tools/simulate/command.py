"""Replay a request trace through the real index and hit code, without an engine.

Each request is looked up, restored as far as the host tier reaches, computed
and stored, for four ways of cutting the same budget:

  shared   rows of one size that every group takes from
  dense    a pool per group, all of the same tokens; every state and tail is kept
  sized    a pool per group, sized and kept by --retention
  elastic  extents that move between the groups, kept by --retention

The engine's own device cache is taken as empty for every request: every hit
counted is the host tier's. Requests run one after the other, in the order of
their arrival; there is no timing model. States exist where vLLM 0.32 ends a
prefill step, so --step-tokens matters for groups with recurrent state.

LAYOUT.json is the file that `lmc-grouped plan` reads. --trace is one of

  contexts   independent contexts of --context-tokens, each asked once, then each
             again in the same order; says how many could be restored at the end
             and how many the budget would hold if no byte were lost (the ceiling)
  lengths    the same of contexts from 1K to 128K tokens, or up to --context-tokens,
             asked once: as many between 1K and 2K as between 2K and 4K, and so on
  switch     the same of short contexts, then long ones, then short ones again, about
             as many bytes of each; the long ones have --context-tokens, the short
             ones a sixteenth of that
  chats      chats of several turns behind one system prompt
  agents     long sessions of tool calls, with branches
  documents  long documents, each asked several questions

or a file with one request per line, where a segment name:tokens stands for the
first tokens of the text of that name, the same wherever it is named:

  {"arrival": 0.0, "prompt": ["sys:2000", "doc7:60000", "q3:120"], "output_tokens": 200}
  {"arrival": 9.5, "prompt": ["sys:2000", "doc7:60000", "q4:90"], "output": "a4:200"}

`output` names what is generated, for later prompts to contain. Arrival and
output may be left out (0 seconds, one token).

Whole contexts are coarse where a budget holds few: --budgets 16x asks how the
same layout does with 16 times as much.

exit status: 0 the trace was run; 2 bad input.
"""

import argparse
import sys
from pathlib import Path

import msgspec

from lmc_grouped.core.retention import RetentionError, check_retention
from lmc_grouped.tools.arguments import named, positive, retention, whole_number
from lmc_grouped.tools.errors import ToolError
from lmc_grouped.tools.plan.layout import Layout, read_layout
from lmc_grouped.tools.plan.sizes import parse_size
from lmc_grouped.tools.simulate.answer import Question, answer
from lmc_grouped.tools.simulate.budgets import DEFAULT_SWEEP, budgets_bytes, parse_budgets
from lmc_grouped.tools.simulate.contexts import (
    BUDGETS_WRITTEN,
    CONTEXTS,
    LENGTHS,
    LONGEST_TOKENS,
    OF_CONTEXTS,
    SWITCH,
    ContextTraces,
)
from lmc_grouped.tools.simulate.plot import check_plot, write_plot
from lmc_grouped.tools.simulate.pools import Scheme
from lmc_grouped.tools.simulate.report import format_answer
from lmc_grouped.tools.simulate.trace import Trace
from lmc_grouped.tools.simulate.trace_file import read_trace
from lmc_grouped.tools.simulate.traces import GENERATED, generate

DEFAULT_REQUESTS = 200
DEFAULT_STEP_TOKENS = 8192


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `lmc-grouped simulate`."""
    add = parser.add_argument
    add("layout", type=Path, metavar="LAYOUT.json", help="the groups of the model")
    add(
        "--trace", default=CONTEXTS, metavar="TRACE",
        help=f"{', '.join((*OF_CONTEXTS, *GENERATED))}, or a file of requests; default "
        "%(default)s",
    )  # fmt: skip
    add(
        "--requests", type=named(positive), metavar="N",
        help=f"requests of a generated trace, default {DEFAULT_REQUESTS}; of {CONTEXTS} the number "
        f"of contexts, default one more than the largest budget could hold; of {LENGTHS} and of "
        f"each part of {SWITCH} by default {BUDGETS_WRITTEN} times what it could hold",
    )  # fmt: skip
    add(
        "--context-tokens", type=named(positive), metavar="N",
        help="length of the contexts, or of the longest request; default: the layout's "
        f"max_model_len, of {LENGTHS} {LONGEST_TOKENS}",
    )  # fmt: skip
    add("--seed", type=named(whole_number), default=0, help="of a generated trace; default 0")
    add(
        "--budget", type=named(parse_size), metavar="SIZE",
        help="host bytes over all workers, such as 16GiB; default: the layout's",
    )  # fmt: skip
    add(
        "--budgets", type=named(parse_budgets), metavar="LIST",
        help="several: sizes, or factors of --budget such as 0.5x,1x,2x; default with --plot: "
        f"{DEFAULT_SWEEP}",
    )  # fmt: skip
    add(
        "--workers", type=named(positive), metavar="N",
        help="workers that share the budget; default: the layout's, or 1",
    )  # fmt: skip
    add(
        "--partitions", type=named(_schemes), default=tuple(Scheme), metavar="LIST",
        help=f"which to run; default {','.join(Scheme)}",
    )  # fmt: skip
    add(
        "--retention", type=named(retention), default=0, metavar="0|TOKENS",
        help="of all but the dense pools: keep what serves proven resume points, or also one "
        "state or tail every TOKENS tokens; default %(default)s",
    )  # fmt: skip
    add(
        "--reference-tokens", type=named(positive), metavar="N",
        help="length of the contexts to size for, right or wrong; default: the layout's "
        "max_model_len",
    )  # fmt: skip
    add(
        "--step-tokens", type=named(positive), default=DEFAULT_STEP_TOKENS, metavar="N",
        help="most tokens of one prefill step (vLLM's max_num_batched_tokens); default %(default)s",
    )  # fmt: skip
    add("--json", action="store_true", help="print the answer as JSON")
    add(
        "--plot", type=Path, metavar="FILE.png|.svg",
        help="draw hit rate against budget; needs matplotlib",
    )  # fmt: skip


def run(arguments: argparse.Namespace) -> int:
    """Answer on stdout; progress on stderr when that is a terminal."""
    if arguments.plot is not None:
        check_plot(arguments.plot)
    found = answer(_question(arguments, read_layout(arguments.layout)), _say)
    if arguments.plot is not None:
        write_plot(arguments.plot, found)
    if arguments.json:
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(found), indent=2).decode() + "\n")
    else:
        print(format_answer(found))
    return 0


def _say(line: str) -> None:
    if sys.stderr.isatty():
        print(line, file=sys.stderr)


def _question(arguments: argparse.Namespace, layout: Layout) -> Question:
    if not layout.table.groups:
        raise ToolError("groups: no group of this layout can be stored; there is nothing to run")
    if arguments.retention is None:
        raise ToolError(
            "--retention none is what the dense pools keep: give 0 or a number of tokens"
        )
    try:
        check_retention(layout.table, arguments.retention)
    except RetentionError as error:
        raise ToolError(f"--retention: {error}") from error
    workers = arguments.workers or layout.workers or 1
    budgets = _budgets(arguments, layout, workers)
    return Question(
        layout=layout,
        trace=_trace(arguments, layout, budgets[-1] // workers),
        workers=workers,
        budgets_bytes=budgets,
        schemes=arguments.partitions,
        retention_tokens=arguments.retention,
        reference_tokens=arguments.reference_tokens or layout.max_model_tokens,
        step_tokens=arguments.step_tokens,
    )


def _budgets(arguments: argparse.Namespace, layout: Layout, workers: int) -> tuple[int, ...]:
    """Over all workers, ascending."""
    whole_bytes = arguments.budget or layout.budget_bytes
    wanted = arguments.budgets
    if wanted is None:
        wanted = parse_budgets(DEFAULT_SWEEP if arguments.plot is not None else "1x")
    try:
        budgets = budgets_bytes(wanted, whole_bytes)
    except ValueError as error:
        raise ToolError(
            f"--budget is missing and the layout has no budget_bytes ({error}): give one, such "
            "as 16GiB"
        ) from error
    if budgets[0] < workers:
        raise ToolError(f"--budget: {budgets[0]} bytes are less than one byte per worker")
    return budgets


def _trace(arguments: argparse.Namespace, layout: Layout, budget_bytes: int) -> Trace:
    """The trace that was asked for; `budget_bytes` is the largest of one worker."""
    name, context_tokens = arguments.trace, arguments.context_tokens
    if name == LENGTHS:
        context_tokens = context_tokens or LONGEST_TOKENS
    context_tokens = context_tokens or layout.max_model_tokens
    if name in GENERATED:
        requests = arguments.requests or DEFAULT_REQUESTS
        return generate(name, requests, context_tokens, arguments.seed)
    if name not in OF_CONTEXTS:
        return read_trace(Path(name))
    traces = ContextTraces(layout.table, budget_bytes, arguments.retention)
    return traces.make(name, arguments.requests, context_tokens, arguments.seed)


def _schemes(text: str) -> tuple[Scheme, ...]:
    names = [part.strip() for part in text.split(",")]
    unknown = [name for name in names if name not in tuple(Scheme)]
    if unknown:
        raise ValueError(f"{unknown[0]!r} is none of {', '.join(Scheme)}")
    return tuple(Scheme(name) for name in dict.fromkeys(names))
