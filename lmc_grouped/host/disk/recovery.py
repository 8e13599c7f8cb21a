"""What a group's two files hold, read as they are found: nothing is written here."""

from dataclasses import dataclass, field
from enum import StrEnum

from lmc_grouped.core.pool import PageRef
from lmc_grouped.host.disk.format import (
    HEADER_BYTES,
    RECORD_BYTES,
    FileHeader,
    Record,
    Unreadable,
    decode_header,
    decode_records,
    record_offset,
)


class HeaderState(StrEnum):
    """What the head of a record file says."""

    FRESH = "fresh"
    """Neither file holds anything yet."""
    OURS = "ours"
    DAMAGED = "damaged"
    """Missing, short or with another CRC: every page of the group is lost."""
    FOREIGN = "foreign"
    """Of another namespace, group, page size or format: not read, not deleted."""


@dataclass(frozen=True, slots=True)
class GroupContents:
    """The pages of one group, and what could not be one."""

    group_id: int
    page_bytes: int
    header: HeaderState
    pages: tuple[tuple[int, Record], ...] = ()
    """``(slot, record)`` in ascending slot; the pages themselves are not read."""
    cleared_slots: tuple[int, ...] = field(default=(), repr=False)
    """Slots whose record is to be made free."""
    damaged_records: int = 0
    short_pages: int = 0
    """Records of pages that end behind the page file's end."""
    repeated_keys: int = 0
    """Records of a key that a later record has too."""
    unrecorded_pages: int = 0
    """Pages, whole or in part, that no record was ever written for."""
    trailing_record_bytes: int = 0
    unreadable: str | None = None
    """Why the files could not be opened or read."""

    @property
    def faults(self) -> int:
        """How many things were wrong; what a killed writer leaves included."""
        return (
            self.damaged_records
            + self.short_pages
            + self.repeated_keys
            + self.unrecorded_pages
            + bool(self.trailing_record_bytes)
            + (self.header in (HeaderState.DAMAGED, HeaderState.FOREIGN))
            + (self.unreadable is not None)
        )


def read_contents(records: bytes, pages_bytes: int, expected: FileHeader) -> GroupContents:
    """What a record file of these bytes says of a page file of that size."""
    group_id, page_bytes = expected.group_id, expected.page_bytes
    if not records and not pages_bytes:
        return GroupContents(group_id, page_bytes, HeaderState.FRESH)
    header = decode_header(records)
    if header != expected:
        state = HeaderState.DAMAGED if header is None else HeaderState.FOREIGN
        return GroupContents(group_id, page_bytes, state)
    newest: dict[PageRef, tuple[int, Record]] = {}
    cleared: list[int] = []
    damaged = short = repeated = 0
    for slot, record in decode_records(records, expected):
        if record is Unreadable.DAMAGED:
            damaged += 1
            cleared.append(slot)
        elif (slot + 1) * page_bytes > pages_bytes:
            short += 1
            cleared.append(slot)
        else:
            before = newest.get(record.key)
            if before is not None:
                repeated += 1
                older, newer = sorted((before, (slot, record)), key=lambda at: at[1].stamp_ns)
                cleared.append(older[0])
                newest[record.key] = newer
            else:
                newest[record.key] = slot, record
    recorded = (len(records) - HEADER_BYTES) // RECORD_BYTES
    return GroupContents(
        group_id,
        page_bytes,
        HeaderState.OURS,
        pages=tuple(sorted(newest.values(), key=lambda at: at[0])),
        cleared_slots=tuple(cleared),
        damaged_records=damaged,
        short_pages=short,
        repeated_keys=repeated,
        # A writer killed between page and record leaves a page behind the last record. A
        # page cut off from a short one is counted there.
        unrecorded_pages=max(0, -(-pages_bytes // page_bytes) - recorded),
        trailing_record_bytes=len(records) - record_offset(recorded),
    )
