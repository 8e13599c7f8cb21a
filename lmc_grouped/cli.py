"""The command `lmc-grouped`.

A command is a module with `add_arguments(parser)` and `run(arguments) -> int`.
Only the module of the command that was asked for is imported, so that `plan`
does not pay for what `certify` needs.

Exit statuses: 0 success; 1 the command ran and what it checked is not right;
2 bad input or an unusable server.
"""

import argparse
import importlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, cast

from lmc_grouped.tools.errors import ToolError

EXIT_USAGE = 2
EXIT_INTERRUPTED = 130  # what a shell reports for SIGINT


class CommandModule(Protocol):
    """What the module of a command offers."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the command's arguments."""

    def run(self, arguments: argparse.Namespace) -> int:
        """Run the command; returns the exit status."""


@dataclass(frozen=True, slots=True)
class Command:
    """One subcommand."""

    name: str
    summary: str
    """One line for `lmc-grouped --help`."""
    module: str
    """Dotted name of a `CommandModule`."""

    def load(self) -> CommandModule:
        """Import the command's module."""
        return cast(CommandModule, importlib.import_module(self.module))


COMMANDS = (
    Command(
        "certify",
        "check on a running vLLM server that restored prefixes give the right output",
        "lmc_grouped.tools.certify.command",
    ),
    Command(
        "inspect",
        "say what a host budget holds for a model directory, by asking vLLM for its groups",
        "lmc_grouped.tools.inspect.command",
    ),
    Command(
        "compat",
        "say what the installed LMCache release, or every one, does with KV-cache groups",
        "lmc_grouped.tools.compat",
    ),
    Command(
        "disk",
        "look at, verify and clean up what the disk tier stored",
        "lmc_grouped.tools.disk.command",
    ),
    Command(
        "doctor",
        "say whether this machine can serve, and what to do where it cannot",
        "lmc_grouped.tools.doctor.command",
    ),
    Command(
        "plan",
        "say what a host budget holds for the groups of a model, without an engine",
        "lmc_grouped.tools.plan.command",
    ),
    Command(
        "simulate",
        "replay a request trace on a host budget cut in four ways, without an engine",
        "lmc_grouped.tools.simulate.command",
    ),
)


def build_parser(wanted: str | None) -> argparse.ArgumentParser:
    """The parser; only the command named `wanted` gets its own arguments."""
    parser = argparse.ArgumentParser(
        prog="lmc-grouped", description="Group-aware prefix cache for vLLM: the tools."
    )
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for command in COMMANDS:
        subparser = subparsers.add_parser(command.name, help=command.summary)
        if command.name == wanted:
            module = command.load()
            subparser.description = module.__doc__
            subparser.formatter_class = argparse.RawDescriptionHelpFormatter
            module.add_arguments(subparser)
            subparser.set_defaults(run=module.run)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status.

    argparse itself leaves with status 2 on arguments it does not know.
    """
    argv = sys.argv[1:] if argv is None else list(argv)
    wanted = argv[0] if argv else None
    arguments = build_parser(wanted).parse_args(argv)
    try:
        return int(arguments.run(arguments))
    except ToolError as error:
        print(f"lmc-grouped {wanted}: {error}", file=sys.stderr)
        return EXIT_USAGE
    except KeyboardInterrupt:
        print(f"lmc-grouped {wanted}: interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
