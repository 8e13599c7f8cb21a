"""`lmc-grouped disk gc`: what would go, and then what goes."""

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from lmc_grouped.tools.disk.progress import Progress
from lmc_grouped.tools.errors import ToolError
from lmc_grouped.tools.plan.sizes import format_size

if TYPE_CHECKING:
    from lmc_grouped.host.disk.format import Record
    from lmc_grouped.host.disk.inspection import StoreInfo


@dataclass(frozen=True, slots=True)
class Limits:
    """What may stay; `None` for no limit. Without any, nothing may."""

    older_than_seconds: float | None = None
    max_bytes: int | None = None

    @property
    def is_empty(self) -> bool:
        """Whether whole stores are meant."""
        return self.older_than_seconds is None and self.max_bytes is None


@dataclass(frozen=True, slots=True)
class Removal:
    """What goes from one store."""

    directory: Path
    records: "tuple[Record, ...]"
    size_bytes: int
    is_whole: bool
    """Nothing would be left: the directory goes too."""


def plan_removals(stores: "Sequence[StoreInfo]", limits: Limits) -> list[Removal]:
    """Choose pages over all stores, the oldest first."""
    everything = sorted(
        (
            (record.stamp_ns, number, record)
            for number, store in enumerate(stores)
            for group in store.groups
            for _, record in group.pages
        ),
        key=lambda page: page[:2],
    )
    kept_bytes = sum(record.page_bytes for _, _, record in everything)
    oldest_ns = time.time_ns() - int((limits.older_than_seconds or 0) * 1e9)
    chosen: dict[int, list[Record]] = {number: [] for number in range(len(stores))}
    for stamp_ns, number, record in everything:
        too_old = limits.older_than_seconds is not None and stamp_ns < oldest_ns
        too_many = limits.max_bytes is not None and kept_bytes > limits.max_bytes
        if too_old or too_many or limits.is_empty:
            chosen[number].append(record)
            kept_bytes -= record.page_bytes
    removals = (
        Removal(
            store.directory,
            tuple(chosen[number]),
            store.allocated_bytes
            if len(chosen[number]) == store.pages
            else sum(record.page_bytes for record in chosen[number]),
            is_whole=len(chosen[number]) == store.pages,
        )
        for number, store in enumerate(stores)
        if chosen[number] or limits.is_empty
    )
    return list(removals)


def show(removals: Sequence[Removal]) -> None:
    """Print what would go."""
    for removal in removals:
        what = "the whole store" if removal.is_whole else f"{len(removal.records):,} pages"
        print(f"{removal.directory}: {what}, {format_size(removal.size_bytes)}")
    total = format_size(sum(removal.size_bytes for removal in removals))
    print(f"{total} in {len(removals)} stores would go; `--delete` deletes them")


def delete(removals: Sequence[Removal]) -> None:
    """Delete what was chosen and print what went.

    Raises:
        ToolError: a store is in use or cannot be written; the others were cleaned.
    """
    from lmc_grouped.host.disk.format import DiskError
    from lmc_grouped.host.disk.removal import remove_pages, remove_store

    progress = Progress("gc", sum(removal.size_bytes for removal in removals))
    failed = 0
    for removal in removals:
        try:
            if removal.is_whole:
                left = remove_store(removal.directory)
                print(f"{removal.directory}: deleted, {format_size(removal.size_bytes)}")
                for path in left:
                    print(f"{path}: left: the disk tier did not write it", file=sys.stderr)
            else:
                count = remove_pages(removal.directory, removal.records)
                print(f"{removal.directory}: {count:,} pages deleted")
        except (DiskError, OSError) as error:
            print(f"{removal.directory}: kept: {error}", file=sys.stderr)
            failed += 1
        progress.advance(removal.size_bytes)
    progress.finish()
    if failed:
        raise ToolError(f"{failed} of {len(removals)} stores could not be cleaned")
