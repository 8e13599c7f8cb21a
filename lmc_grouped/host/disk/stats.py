"""What the file tier answers and counts."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from lmc_grouped.host.disk.recovery import GroupContents


class PutAnswer(StrEnum):
    """What became of an offered page."""

    ACCEPTED = "accepted"
    """It will be written; the caller keeps its bytes as they are until told the end."""
    PRESENT = "present"
    """It is stored or being written already."""
    QUEUE_FULL = "queue_full"
    """The disk is slower than what is offered."""
    NO_SPACE = "no_space"
    """The file system is full; writing goes on by itself when there is room."""
    UNAVAILABLE = "unavailable"
    """The files of this group could not be opened."""
    CLOSED = "closed"
    """The tier is closed or closing."""


class WriteEnd(StrEnum):
    """What became of an accepted page."""

    STORED = "stored"
    NO_SPACE = "no_space"
    """The file system is full."""
    OVER_QUOTA = "over_quota"
    """No slot could be had within the quota: other groups hold the room and cannot give it."""
    IO_ERROR = "io_error"
    DROPPED = "dropped"
    """``drop`` was called for it meanwhile."""


class Counts:
    """Counters of one tier; its lock is held around every change."""

    def __init__(self) -> None:
        self.refused: Counter[PutAnswer] = Counter()
        self.ended: Counter[WriteEnd] = Counter()
        self.hits = 0
        self.misses = 0
        self.damaged_pages = 0
        self.evicted_pages = 0
        self.dropped_pages = 0


@dataclass(frozen=True, slots=True)
class GroupUse:
    """What one group has on disk."""

    pages: int
    page_bytes: int
    allocated_bytes: int
    """Of its page file: pages, and room kept for the next ones."""
    is_direct: bool


@dataclass(frozen=True, slots=True)
class DiskStats:
    """A moment of a tier; counters count since it was opened."""

    used_bytes: int
    """Of pages, those being written included."""
    cap_bytes: int
    pending_bytes: int
    """Of accepted pages that are not written yet."""
    is_paused: bool
    """The file system is full."""
    groups: Mapping[int, GroupUse]
    refused_by_answer: Mapping[PutAnswer, int]
    writes_by_end: Mapping[WriteEnd, int]
    hits: int
    misses: int
    damaged_pages: int
    """Reads whose bytes were not what was written, or could not be had."""
    evicted_pages: int
    dropped_pages: int
    recovered: tuple[GroupContents, ...]
    """What opening found, by group; the faults in it are misses."""

    @property
    def allocated_bytes(self) -> int:
        """Of all page files."""
        return sum(group.allocated_bytes for group in self.groups.values())


@dataclass(frozen=True, slots=True)
class StoredPage:
    """One page of the store."""

    group_id: int
    block_hash: bytes
    page_bytes: int
    stamp_ns: int
    """When it was written, in nanoseconds since 1970."""
