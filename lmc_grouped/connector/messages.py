"""Messages between the scheduler half and the worker halves.

The scheduler plans operations; every worker begins them in order and
acknowledges each one when it has ended. An operation has one id on all ranks.
"""

from dataclasses import dataclass, field

import msgspec
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorHandshakeMetadata,
    KVConnectorMetadata,
    KVConnectorWorkerMetadata,
)

from lmc_grouped.core.pool import PageRef
from lmc_grouped.core.pools import PoolPlan


class GroupPages(msgspec.Struct, frozen=True, array_like=True):
    """Pages of one group: ``block_ids[i]`` on the device, ``slots[i]`` in the pool."""

    group_id: int
    block_ids: list[int]
    slots: list[int]


class Operation(msgspec.Struct, frozen=True, array_like=True):
    """One store or one load over all groups, all or nothing."""

    operation_id: int
    request_id: str
    pages: tuple[GroupPages, ...]
    refused: str | None = None
    """For a load that cannot be carried out: why. Workers report it as failed, and the
    blocks of ``pages``, which have no slots then."""


class GroupMoves(msgspec.Struct, frozen=True, array_like=True):
    """Pages of one group: from pool slot ``source_slots[i]`` to ``target_slots[i]``."""

    group_id: int
    source_slots: list[int]
    target_slots: list[int]


class MoveOperation(msgspec.Struct, frozen=True, array_like=True):
    """Pages that change their slots, all or none."""

    operation_id: int
    moves: tuple[GroupMoves, ...]


class DiskPages(msgspec.Struct, frozen=True, array_like=True):
    """Pages of one group: in pool slot ``slots[i]``, on disk under ``hashes[i]``."""

    group_id: int
    slots: list[int]
    hashes: list[bytes]


class DiskOperation(msgspec.Struct, frozen=True, array_like=True):
    """Pages to write to disk, or to read from it. They end in the background."""

    operation_id: int
    pages: tuple[DiskPages, ...]
    store_id: int | None = None
    """For a write: the store of the same step that brings the bytes."""


@dataclass
class StepMetadata(KVConnectorMetadata):
    """What the workers have to do in one engine step."""

    loads: list[Operation] = field(default_factory=list)
    stores: list[Operation] = field(default_factory=list)
    moves: list[MoveOperation] = field(default_factory=list)
    disk_writes: list[DiskOperation] = field(default_factory=list)
    disk_reads: list[DiskOperation] = field(default_factory=list)
    has_forward: bool = True
    """Whether tokens are computed in the step. Without, not every engine says that it is over,
    and waiting for copies keeps nobody."""
    disk_epoch: int = 0
    """Grows when everything on disk is to be forgotten, before this step's operations."""


@dataclass
class DiskReport:
    """What ended on the disks since the last report; reports of ranks add up."""

    written: dict[int, int] = field(default_factory=dict)
    """operation_id -> ranks on which no page of the write is under way any more."""
    not_written: dict[str, int] = field(default_factory=dict)
    """reason -> pages that a rank did not write; every rank counts its own."""
    read: dict[int, int] = field(default_factory=dict)
    """operation_id -> ranks that finished the read, well or badly."""
    lost: dict[int, dict[int, str]] = field(default_factory=dict)
    """operation_id -> position of a page in the read -> why a rank does not have it."""
    changes: dict[int, tuple[int, list[tuple[PageRef, bool]]]] = field(default_factory=dict)
    """rank -> epoch, and what became visible on its disk and what left, in order."""

    def is_empty(self) -> bool:
        """Whether nothing ended."""
        return not (self.written or self.not_written or self.read or self.changes)

    def add(self, other: "DiskReport") -> None:
        """Add another rank's report."""
        for mine, theirs in ((self.written, other.written), (self.read, other.read)):
            for operation_id, ranks in theirs.items():
                mine[operation_id] = mine.get(operation_id, 0) + ranks
        for reason, pages in other.not_written.items():
            self.not_written[reason] = self.not_written.get(reason, 0) + pages
        for operation_id, pages_lost in other.lost.items():
            self.lost[operation_id] = pages_lost | self.lost.get(operation_id, {})
        self.changes |= other.changes


@dataclass
class StepReport(KVConnectorWorkerMetadata):
    """What the workers did in one engine step; reports of ranks add up."""

    stored: dict[int, int] = field(default_factory=dict)
    """operation_id -> ranks that finished the store, well or badly."""
    loaded: dict[int, int] = field(default_factory=dict)
    """operation_id -> ranks that finished the load, well or badly."""
    moved: dict[int, int] = field(default_factory=dict)
    """operation_id -> ranks that finished the moves, well or badly."""
    failures: dict[int, str] = field(default_factory=dict)
    """operation_id -> the first rank's reason, where a rank failed."""
    disk: DiskReport = field(default_factory=DiskReport)

    def is_empty(self) -> bool:
        """Whether there is nothing to tell."""
        return not (self.stored or self.loaded or self.moved) and self.disk.is_empty()

    def aggregate(self, other: KVConnectorWorkerMetadata) -> "StepReport":
        """Add another rank's report."""
        assert isinstance(other, StepReport)
        for mine, theirs in (
            (self.stored, other.stored),
            (self.loaded, other.loaded),
            (self.moved, other.moved),
        ):
            for operation_id, ranks in theirs.items():
                mine[operation_id] = mine.get(operation_id, 0) + ranks
        self.failures = other.failures | self.failures
        self.disk.add(other.disk)
        return self


class RankDiskReport(msgspec.Struct, frozen=True):
    """What one rank found on its disk at start."""

    rank: int
    group_ids: tuple[int, ...]
    """Groups of which the rank holds bytes; a pipeline stage may have none of some."""
    keys: tuple[bytes, ...]
    """Page keys (``encode_key``), the first to leave first."""
    root_hash: str
    """What its namespace says the hash chain starts from."""


@dataclass
class RankReport(KVConnectorHandshakeMetadata):
    """What one rank made of the group table, for the scheduler to compare."""

    fingerprint: str
    table_json: bytes
    plan: PoolPlan
    disk: RankDiskReport | None = None
    """Where the file tier is on."""
