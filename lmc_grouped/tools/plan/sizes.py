"""Byte sizes as people write them."""

import re
from decimal import Decimal

UNITS = {
    "B": 1,
    "KB": 1000, "MB": 1000**2, "GB": 1000**3, "TB": 1000**4,
    "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40,
}  # fmt: skip

_SIZE = re.compile(r"(\d+(?:\.\d*)?|\.\d+)\s*([A-Za-z]*)", re.ASCII)
_LONGEST = 64  # characters; no real size needs more


def parse_size(text: str) -> int:
    """Bytes of ``16GiB``, ``1.5 GB`` or plain ``4294967296``; parts of a byte are cut off.

    Raises ValueError for anything else, and for less than one byte.
    """
    found = _SIZE.fullmatch(text.strip()) if len(text) <= _LONGEST else None
    by_lower_case = {name.lower(): factor for name, factor in UNITS.items()}
    factor = by_lower_case.get((found[2] or "B").lower()) if found else None
    if found is None or factor is None:
        raise ValueError(
            f"{text[:_LONGEST]!r} is not a size: write a positive number and one of "
            f"{', '.join(UNITS)}, for example 16GiB"
        )
    size_bytes = int(Decimal(found[1]) * factor)
    if size_bytes <= 0:
        raise ValueError(f"{text!r} is less than one byte: give a positive size")
    return size_bytes


def format_size(size_bytes: int) -> str:
    """In the largest binary unit that leaves at least 1, with three digits or more: 3.72 GiB."""
    unit, factor = "B", 1
    for name in ("KiB", "MiB", "GiB", "TiB"):
        if size_bytes >= UNITS[name]:
            unit, factor = name, UNITS[name]
    if factor == 1:
        return f"{size_bytes} B"
    number = size_bytes / factor
    decimals = 2 if number < 10 else 1 if number < 100 else 0
    return f"{number:.{decimals}f} {unit}"
