"""The list of budgets that one run compares."""

import re
from collections.abc import Sequence
from fractions import Fraction

from lmc_grouped.tools.plan.sizes import parse_size

Budget = int | Fraction
"""Bytes, or a factor of another budget."""

DEFAULT_SWEEP = "0.25x,0.5x,0.75x,1x,1.5x,2x,3x"

_FACTOR = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)x", re.ASCII)


def parse_budgets(text: str) -> tuple[Budget, ...]:
    """Sizes and factors, separated by commas: ``8GiB,16GiB`` or ``0.5x,1x``.

    Raises ValueError for anything else, and for a factor of 0.
    """
    return tuple(_budget(part.strip()) for part in text.split(","))


def _budget(text: str) -> Budget:
    factor = _FACTOR.fullmatch(text)
    if factor is None:
        return parse_size(text)
    if not Fraction(factor[1]):
        raise ValueError(f"{text!r} is no budget: a factor must be above 0")
    return Fraction(factor[1])


def budgets_bytes(budgets: Sequence[Budget], whole_bytes: int | None) -> tuple[int, ...]:
    """Every budget in bytes, ascending, each once.

    Raises ValueError: a factor is given and ``whole_bytes`` is not.
    """
    if whole_bytes is None and any(isinstance(budget, Fraction) for budget in budgets):
        raise ValueError("a factor such as 2x needs a budget that it multiplies")
    found = {int(b * (whole_bytes or 0)) if isinstance(b, Fraction) else b for b in budgets}
    return tuple(sorted(found))
