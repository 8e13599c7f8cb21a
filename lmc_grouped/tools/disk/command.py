"""Look at, verify and clean up the directory that LMCache's `local_disk` names.

  lmc-grouped disk ls DIRECTORY
  lmc-grouped disk verify DIRECTORY
  lmc-grouped disk gc DIRECTORY --older-than 7d --max-bytes 50GiB
  lmc-grouped disk gc DIRECTORY --namespace 40fa3319 --delete

`gc` says what it would delete; `--delete` deletes it. With only `--namespace` it is
about whole namespaces, with an age or a size about pages, the oldest first.

exit status: 0 done; 1 `verify` found damage; 2 bad input, or a store that is in use.
"""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from lmc_grouped.tools.disk.ages import parse_age
from lmc_grouped.tools.disk.cleaning import Limits, delete, plan_removals, show
from lmc_grouped.tools.disk.listing import format_stores
from lmc_grouped.tools.disk.stores import read_stores
from lmc_grouped.tools.disk.verifying import verify_stores
from lmc_grouped.tools.errors import ToolError
from lmc_grouped.tools.plan.sizes import parse_size

Value = TypeVar("Value")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `lmc-grouped disk`."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    for name, run_action, summary in (
        ("ls", _list, "what is stored: namespaces, groups, pages, bytes, ages"),
        ("verify", _verify, "read every page and compare it with its checksum"),
        ("gc", _collect, "delete by age, size or namespace; says first what would go"),
    ):
        action = actions.add_parser(name, help=summary, description=summary)
        action.add_argument("directory", type=Path, metavar="DIRECTORY")
        action.add_argument(
            "--namespace", action="append", metavar="DIGITS",
            help="only this one, by the first digits that `ls` shows; can be repeated",
        )  # fmt: skip
        action.set_defaults(run_action=run_action)
        if name == "gc":
            _add_gc_arguments(action)


def _add_gc_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--older-than", type=_named(parse_age), metavar="AGE", help="pages older than 90m, 36h, 7d"
    )
    parser.add_argument(
        "--max-bytes", type=_named(parse_size), metavar="SIZE",
        help="the oldest pages, until all stores together hold no more than that, such as 50GiB",
    )  # fmt: skip
    parser.add_argument("--delete", action="store_true", help="delete instead of saying so")


def run(arguments: argparse.Namespace) -> int:
    """Run one action; returns the exit status."""
    run_action: Callable[[argparse.Namespace], int] = arguments.run_action
    return run_action(arguments)


def _list(arguments: argparse.Namespace) -> int:
    print(format_stores(read_stores(arguments.directory, arguments.namespace)))
    return 0


def _verify(arguments: argparse.Namespace) -> int:
    return verify_stores(read_stores(arguments.directory, arguments.namespace))


def _collect(arguments: argparse.Namespace) -> int:
    limits = Limits(arguments.older_than, arguments.max_bytes)
    if limits.is_empty and not arguments.namespace:
        raise ToolError("gc needs --older-than, --max-bytes or --namespace: say what may go")
    removals = plan_removals(read_stores(arguments.directory, arguments.namespace), limits)
    if not removals:
        print("nothing to delete")
    elif arguments.delete:
        delete(removals)
    else:
        show(removals)
    return 0


def _named(parse: Callable[[str], Value]) -> Callable[[str], Value]:
    """Let argparse print the reason beside the argument's name."""

    def parse_argument(text: str) -> Value:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return parse_argument
