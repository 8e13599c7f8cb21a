"""Say whether this machine can serve with lmc_grouped, and what to do where it cannot.

  lmc-grouped doctor                    everything, on one screen
  lmc-grouped doctor --workers 4        budgets are per worker: memory and disk of four
  lmc-grouped doctor --layout L.json    how the groups that `inspect` wrote would be copied
  lmc-grouped doctor --wheel FILE...    which GPUs the libraries in wheels hold code for

Needs nothing beside this package: what is missing is part of the answer. Nothing is
started and nothing removed; torch, vLLM and LMCache are imported in processes of their
own. In the directory that `local_disk` names, if there, one small file is written and
removed. Set the same LMCACHE_* variables as for the server.

exit status: 0 nothing that was found stops serving, or the wheels were read; 1 serving
would fail; 2 bad input.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from lmc_grouped.tools.arguments import named, positive
from lmc_grouped.tools.doctor import disk, gpus, leftovers, memory, rungs, software
from lmc_grouped.tools.doctor.asking import ask_all
from lmc_grouped.tools.doctor.findings import Finding, Section, serves
from lmc_grouped.tools.doctor.questions import Reply
from lmc_grouped.tools.doctor.report import format_report
from lmc_grouped.tools.doctor.wheels import format_files, read_files
from lmc_grouped.tools.plan.layout import Layout, read_layout


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `lmc-grouped doctor`."""
    add = parser.add_argument
    add("--json", action="store_true", help="print the findings as JSON")
    add(
        "--workers", type=named(positive), default=1, metavar="N",
        help="workers of the server on this machine; default %(default)s",
    )  # fmt: skip
    add("--layout", type=Path, metavar="LAYOUT.json", help="groups of a model, of `inspect`")
    add(
        "--wheel", type=Path, nargs="+", metavar="FILE",
        help="read these wheels or shared libraries instead of looking at this machine",
    )  # fmt: skip


def run(arguments: argparse.Namespace) -> int:
    """Findings on stdout."""
    if arguments.wheel:
        facts = read_files(arguments.wheel)
        if arguments.json:
            _print(facts)
        else:
            print(format_files(arguments.wheel, facts))
        return 0
    layout = read_layout(arguments.layout) if arguments.layout else None
    sections = examine(arguments.workers, layout)
    if arguments.json:
        _print({"serves": serves(sections), "sections": sections})
    else:
        print(format_report(sections))
    return 0 if serves(sections) else 1


def examine(workers: int, layout: Layout | None) -> list[Section]:
    """Look at everything."""
    questions = _questions()
    if questions:
        print("asking what is installed; imports take their time", file=sys.stderr)
    replies = ask_all(questions)
    torch, settings = replies.get("torch"), replies.get("settings")
    driver = gpus.find_driver()
    capabilities = gpus.capabilities(driver)
    return [
        _section(
            "software",
            software.check_python(),
            software.check_torch(torch),
            software.check_engine(replies.get("engine")),
            software.check_lmcache(),
            software.check_extension(capabilities),
            software.check_patches(replies.get("patches")),
        ),
        _section(
            "devices",
            gpus.check_driver(driver, torch),
            gpus.check_devices(driver, torch),
        ),
        _section("copies", rungs.check_copies(driver, torch, layout)),
        _section("memory and disk", *_resources(settings, workers, bool(capabilities))),
    ]


def _resources(settings: Reply | None, workers: int, has_devices: bool) -> list[list[Finding]]:
    return [
        memory.check_settings(settings),
        memory.check_memory(settings, workers),
        memory.check_locked_memory(settings, has_devices=has_devices),
        memory.check_shared_memory(workers),
        leftovers.check_leftovers(),
        memory.check_hash_seed(settings),
        disk.check_disk(settings, workers),
    ]


def _questions() -> list[str]:
    """What can be asked with what is installed."""
    here = {name: software.is_here(name) for name in ("torch", "vllm", "lmcache")}
    possible = {
        "torch": here["torch"],
        "engine": here["vllm"],
        "settings": here["lmcache"],
        "patches": here["vllm"] and here["lmcache"],
    }
    return [name for name, is_possible in possible.items() if is_possible]


def _section(title: str, *parts: Sequence[Finding]) -> Section:
    return Section(title, tuple(finding for part in parts for finding in part))


def _print(value: Any) -> None:
    text = msgspec.json.format(msgspec.json.encode(value), indent=2)
    sys.stdout.write(text.decode() + "\n")
