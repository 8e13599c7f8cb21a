"""Fewer, longer copies: neighbours on both sides become one, within a pinned piece."""

import numpy as np
import numpy.typing as npt

from lmc_grouped.transfer.copies import Copies

Addresses = npt.NDArray[np.int64]


def merge(copies: Copies, borders: Addresses) -> Copies:
    """Copies that follow each other without a gap on both sides, as one.

    Args:
        copies: in the order in which neighbours are looked for.
        borders: ``[b]``, ascending host addresses at which a separately pinned piece begins. No
            copy reaches over one: the driver knows each piece as a range of its own.
    """
    device, host, sizes = copies.device_addresses, copies.host_addresses, copies.sizes_bytes
    if not len(sizes):
        return copies
    follows = (device[:-1] + sizes[:-1] == device[1:]) & (host[:-1] + sizes[:-1] == host[1:])
    first = np.flatnonzero(np.concatenate(([True], ~follows)))
    merged = Copies(device[first], host[first], np.add.reduceat(sizes, first))
    return _cut(merged, borders) if len(borders) else merged


def _cut(copies: Copies, borders: Addresses) -> Copies:
    host, sizes = copies.host_addresses, copies.sizes_bytes
    ends = host + sizes
    inside = np.searchsorted(borders, host, side="right")  # the first border within each copy
    pieces = np.searchsorted(borders, ends, side="left") - inside + 1
    if (pieces == 1).all():
        return copies
    row = np.repeat(np.arange(len(host)), pieces)
    piece = np.arange(len(row)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    starts = host[row].copy()
    later = piece > 0
    starts[later] = borders[(inside[row] + piece - 1)[later]]
    stops = np.append(starts[1:], ends[-1])
    last = piece == pieces[row] - 1
    stops[last] = ends[row[last]]
    return Copies(copies.device_addresses[row] + starts - host[row], starts, stops - starts)
