"""Ages as people write them."""

import re

_UNITS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}
_AGE = re.compile(r"(\d{1,9}(?:\.\d{1,3})?)([smhdw])", re.ASCII)


def parse_age(text: str) -> float:
    """Seconds of ``90m``, ``36h``, ``7d`` or ``2w``. Raises ValueError for anything else."""
    found = _AGE.fullmatch(text.strip())
    if found is None:
        raise ValueError(
            f"{text[:64]!r} is not an age: write a number and one of {', '.join(_UNITS)}, "
            "for example 7d"
        )
    return float(found[1]) * _UNITS[found[2]]


def format_age(seconds: float) -> str:
    """In the largest unit that leaves at least 1: ``3.5d``."""
    unit = "s"
    for name, factor in _UNITS.items():
        if seconds >= factor and name != "w":
            unit = name
    number = seconds / _UNITS[unit]
    return f"{number:.1f}{unit}" if number < 10 and unit != "s" else f"{number:.0f}{unit}"
