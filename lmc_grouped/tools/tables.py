"""Plain text tables for the command line."""

from collections.abc import Sequence
from enum import Enum


class Align(Enum):
    """On which side of its column a cell stands."""

    LEFT = "left"
    RIGHT = "right"


def format_table(
    headers: Sequence[str], rows: Sequence[Sequence[str]], aligns: Sequence[Align]
) -> str:
    """Lay out cells in columns two spaces apart, with a rule under the header.

    `rows` is `[number of rows][len(headers)]`; `aligns` has one entry per
    column. Lines carry no trailing spaces and the last has no line feed.

    Raises ValueError when a row or `aligns` has another number of columns.
    """
    for cells in (*rows, aligns):
        if len(cells) != len(headers):
            raise ValueError(
                f"a table row has {len(cells)} cells, the header has {len(headers)}: "
                "give every row one cell per column"
            )
    columns = list(zip(headers, *rows, strict=True))
    widths = [max(map(len, column)) for column in columns]

    def line(cells: Sequence[str]) -> str:
        padded = (
            cell.rjust(width) if align is Align.RIGHT else cell.ljust(width)
            for cell, width, align in zip(cells, widths, aligns, strict=True)
        )
        return "  ".join(padded).rstrip()

    rule = "  ".join("-" * width for width in widths)
    return "\n".join([line(headers), rule, *map(line, rows)])
