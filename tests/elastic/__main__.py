"""Print how much of the ceiling each way of cutting a budget holds, as Markdown tables.

`make bench-elastic` runs all six layouts, which takes many minutes; name some to
run only those. `--budget-factor` is for one that should be smaller or larger.
"""

import argparse
import json
import sys
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

from tests.elastic.cases import BUDGET_FACTORS, Steady, Switched, steady, switched
from tests.elastic.curves import curves, write_plot

LEAST_SHARE = 0.97
MOST_BEHIND = 0.01
LEAST_SWITCHED = 0.99


def main() -> int:
    """Exit status 0 when elastic pools are where they should be in every row."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("layouts", nargs="*", metavar="LAYOUT", help=", ".join(BUDGET_FACTORS))
    parser.add_argument("--budget-factor", type=float, help="times the layout's own budget")
    parser.add_argument("--json", type=Path, help="write the figures there as well")
    parser.add_argument("--plot", type=Path, help="draw a switch of workload and nothing else")
    arguments = parser.parse_args()
    unknown = [name for name in arguments.layouts if name not in BUDGET_FACTORS]
    if unknown:
        parser.error(f"{unknown[0]!r} is none of {', '.join(BUDGET_FACTORS)}")
    if arguments.plot:
        write_plot(arguments.plot, curves())
        return 0
    rows: list[Steady] = []
    switches: list[Switched] = []
    for name in arguments.layouts or BUDGET_FACTORS:
        factor = arguments.budget_factor or BUDGET_FACTORS[name]
        for periodic in (False, True):
            rows += _said(steady(name, factor, periodic=periodic))
            switches += _said(switched(name, factor, periodic=periodic))
    print(_steady_table(rows), _switch_table(switches), sep="\n\n")
    if arguments.json:
        figures = {"steady": list(map(asdict, rows)), "switched": list(map(asdict, switches))}
        arguments.json.write_text(json.dumps(figures, indent=1) + "\n")
    return 0 if all(map(_is_good, rows)) and all(map(_is_absorbed, switches)) else 1


def _said(found: Iterable[Steady] | Iterable[Switched]) -> list:
    """The list, with a line on stderr as each arrives."""
    some = []
    for one in found:
        print(one, file=sys.stderr, flush=True)
        some.append(one)
    return some


def _is_good(row: Steady) -> bool:
    return row.shares["elastic"] >= LEAST_SHARE and row.ahead >= -MOST_BEHIND


def _is_absorbed(switch: Switched) -> bool:
    return switch.ratio >= LEAST_SWITCHED


def _steady_table(rows: list[Steady]) -> str:
    lines = [
        "| layout | retention | contexts | reference | shared rows | fixed pools | elastic "
        "| to the better | |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        shared, sized, elastic = (row.shares[name] for name in ("shared", "sized", "elastic"))
        factor = {1.0: "right", 4.0: "4 times", 0.25: "a quarter"}[row.reference_factor]
        note = "" if _is_good(row) else "missed"
        if row.cut_as != "auto":
            note = f"{note} cut as {row.cut_as}".strip()
        lines.append(
            f"| {row.layout} | {row.retention_tokens:,} | {row.workload} | {factor} "
            f"| {shared:.1%} | {sized:.1%} | {elastic:.1%} | {100 * row.ahead:+.1f} | {note} |"
        )
    return "\n".join(lines)


def _switch_table(switches: list[Switched]) -> str:
    lines = ["| layout | retention | switch | of fresh pools | |", "|---|---|---|---|---|"]
    lines += [
        f"| {some.layout} | {some.retention_tokens:,} | {some.direction} | {some.ratio:.1%} "
        f"| {'' if _is_absorbed(some) else 'missed'} |"
        for some in switches
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
