"""Where the rows of a host region lie, and where it may be cut into pieces."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

MEMORY_PAGE_BYTES = 4_096
"""Pools start at multiples of it, and pieces end there where rows allow it."""
PIECE_BYTES = 64 * 2**20
MAX_PIECE_BYTES = 64 * 2**30
"""A driver refuses to page-lock 512 GiB in one call, however much memory there is."""


@dataclass(frozen=True, slots=True)
class RowRun:
    """Rows of one size behind each other; a page of a group lies within one row."""

    offset_bytes: int
    """Of the first row in the region, a multiple of ``MEMORY_PAGE_BYTES``."""
    rows: int
    row_bytes: int


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of the region that the driver is given in one call."""

    offset_bytes: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class RegionLayout:
    """Where everything in a region lies; nothing has to be mapped for it."""

    size_bytes: int
    pool_offsets_bytes: Mapping[int, int]
    """group_id -> first byte of its pool."""
    runs: tuple[RowRun, ...]
    """Ascending; together with the padding behind each they fill the region."""

    def pieces(self, piece_bytes: int = PIECE_BYTES) -> tuple[Piece, ...]:
        """Cut the whole region between rows; a region without rows has no pieces.

        Args:
            piece_bytes: aimed at from below; a row that is larger is a piece of its own.

        Raises:
            ValueError: ``piece_bytes``, or a row, is beyond what a piece may have.
        """
        if not 0 < piece_bytes <= MAX_PIECE_BYTES:
            raise ValueError(
                f"pieces of {piece_bytes} bytes cannot be pinned: choose 1 to {MAX_PIECE_BYTES}"
            )
        borders = [*(run.offset_bytes for run in self.runs), self.size_bytes]
        pieces: list[Piece] = []
        for run, end in zip(self.runs, borders[1:], strict=True):
            step = _step_bytes(run.row_bytes)
            size = max(piece_bytes // step, 1) * step
            starts = range(run.offset_bytes, end, size)
            pieces += [Piece(start, min(size, end - start)) for start in starts]
        return tuple(pieces)


def _step_bytes(row_bytes: int) -> int:
    """The shortest way between two places of a run where it may be cut.

    Rows and memory pages both end there, since a driver locks whole memory pages
    and documented for long that it wants both ends on their borders. Rows that
    meet those only beyond the largest piece are cut at any row.

    Raises:
        ValueError: one row is more than a piece may have.
    """
    if row_bytes > MAX_PIECE_BYTES:
        raise ValueError(
            f"rows of {row_bytes} bytes cannot be pinned: a piece of at most {MAX_PIECE_BYTES} "
            "bytes has to hold one; lower max_local_cpu_size so that extents become smaller"
        )
    aligned = math.lcm(row_bytes, MEMORY_PAGE_BYTES)
    return aligned if aligned <= MAX_PIECE_BYTES else row_bytes
