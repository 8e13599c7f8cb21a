"""Messages between the scheduler half and the worker halves.

The scheduler plans operations; every worker executes them in order and
acknowledges each one. An operation has one id on all ranks.
"""

from dataclasses import dataclass, field

import msgspec
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorHandshakeMetadata,
    KVConnectorMetadata,
    KVConnectorWorkerMetadata,
)

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
    """For a load that cannot be carried out: why. Workers report it as failed."""


class GroupMoves(msgspec.Struct, frozen=True, array_like=True):
    """Pages of one group: from pool slot ``source_slots[i]`` to ``target_slots[i]``."""

    group_id: int
    source_slots: list[int]
    target_slots: list[int]


class MoveOperation(msgspec.Struct, frozen=True, array_like=True):
    """Pages that change their slots, all or none."""

    operation_id: int
    moves: tuple[GroupMoves, ...]


@dataclass
class StepMetadata(KVConnectorMetadata):
    """What the workers have to do in one engine step."""

    loads: list[Operation] = field(default_factory=list)
    stores: list[Operation] = field(default_factory=list)
    moves: list[MoveOperation] = field(default_factory=list)


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
        return self


@dataclass
class RankReport(KVConnectorHandshakeMetadata):
    """What one rank made of the group table, for the scheduler to compare."""

    fingerprint: str
    table_json: bytes
    plan: PoolPlan
