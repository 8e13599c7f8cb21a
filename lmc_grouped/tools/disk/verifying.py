"""`lmc-grouped disk verify`."""

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from lmc_grouped.tools.disk.progress import Progress
from lmc_grouped.tools.errors import ToolError
from lmc_grouped.tools.plan.sizes import format_size

if TYPE_CHECKING:
    from lmc_grouped.host.disk.inspection import GroupReport, StoreInfo

RIGHT, DAMAGED = 0, 1


def verify_stores(stores: "Sequence[StoreInfo]") -> int:
    """Read every page and print a line per group; 1 when anything is damaged.

    Raises:
        ToolError: nothing was damaged, but some store was in use and not verified.
    """
    from lmc_grouped.host.disk.directory import StoreInUseError
    from lmc_grouped.host.disk.inspection import verify_store

    progress = Progress("verify", sum(store.page_bytes for store in stores))
    skipped: list[str] = []
    is_right = True
    for store in stores:
        try:
            reports = verify_store(store.directory, progress.advance)
        except StoreInUseError as error:
            print(f"{store.directory}: not verified: {error}", file=sys.stderr)
            skipped.append(str(store.directory))
            continue
        print(store.directory)
        if not store.is_named_right:
            print("  namespace.json: missing, damaged, or of another namespace")
        for report in reports:
            print(f"  {format_report(report)}")
        is_right = is_right and store.is_named_right and all(r.is_right for r in reports)
    progress.finish()
    if not is_right:
        return DAMAGED
    if skipped:
        raise ToolError(
            f"{len(skipped)} of {len(stores)} stores are in use and were not verified: stop the "
            "engine first"
        )
    return RIGHT


def format_report(report: "GroupReport") -> str:
    """One line: what was read, and everything that is wrong with it."""
    contents = report.contents
    size = format_size(report.pages * contents.page_bytes)
    line = f"group {report.group_id}: {report.pages:,} pages, {size}"
    if report.is_right:
        return f"{line}: right"
    if contents.unreadable is not None:
        return f"{line}: DAMAGED: {contents.unreadable}"
    faults = {
        "pages whose bytes changed": report.wrong_pages,
        "damaged records": contents.damaged_records,
        "pages cut short": contents.short_pages,
        "keys recorded twice": contents.repeated_keys,
        "pages or parts of one without a record": contents.unrecorded_pages,
        "bytes of a record in part": contents.trailing_record_bytes,
    }
    found = [f"{count:,} {name}" for name, count in faults.items() if count]
    if contents.header.value != "ours":
        found.append(f"head of the record file: {contents.header}")
    return f"{line}: DAMAGED: {', '.join(found)}"
