"""Neighbouring slots, which go in one call."""

from collections.abc import Callable, Iterable
from typing import TypeVar

from lmc_grouped.host.disk.catalog import SlotRef
from lmc_grouped.host.disk.fileio import MAX_VECTORS

RUN_BYTES = 4 * 2**20
"""Of one call: small enough that threads share a large read or write evenly."""

Item = TypeVar("Item")


def split_runs(
    items: Iterable[Item],
    slot_of: Callable[[Item], SlotRef],
    page_bytes: Callable[[int], int],
) -> list[list[Item]]:
    """Group by neighbouring slots, at most ``RUN_BYTES`` each; no slot twice in one.

    Args:
        slot_of: where an item's page lies.
        page_bytes: group_id -> bytes of a page.
    """
    runs: list[list[Item]] = []
    next_ref: SlotRef | None = None
    longest = 0
    for ref, item in sorted(
        ((slot_of(item), item) for item in items), key=lambda placed: placed[0]
    ):
        if ref != next_ref or len(runs[-1]) == longest:
            runs.append([])
            longest = min(MAX_VECTORS, max(1, RUN_BYTES // page_bytes(ref[0])))
        runs[-1].append(item)
        next_ref = ref[0], ref[1] + 1
    return runs
