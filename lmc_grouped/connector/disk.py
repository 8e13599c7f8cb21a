"""The file tier in the scheduler: what is on disk, what is written and read."""

import logging
from collections.abc import Collection

from lmc_grouped.adapters import namespace
from lmc_grouped.connector.acknowledgements import Acknowledgements
from lmc_grouped.connector.disk_writes import (
    WRITING_BYTES,
    WRITING_SHARE,
    DiskWrites,
    MovingSlots,
)
from lmc_grouped.connector.messages import DiskReport, RankDiskReport, StepMetadata
from lmc_grouped.connector.metrics import GroupedStats
from lmc_grouped.connector.promotions import Promotions
from lmc_grouped.connector.requests import Tier
from lmc_grouped.core.disk_index import DiskIndex
from lmc_grouped.core.keys import decode_key

logger = logging.getLogger(__name__)


class DiskHalf:
    """The scheduler's part of the file tier.

    Args:
        tier: host memory, open.
        reports: what each rank found on its disk.
        pool_bytes: host memory of one worker.
        moving_slots: see ``DiskWrites``.
    """

    def __init__(
        self,
        tier: Tier,
        reports: Collection[RankDiskReport],
        *,
        pool_bytes: int,
        moving_slots: MovingSlots,
    ) -> None:
        self._tier = tier
        self._roots = {report.rank: report.root_hash for report in reports}
        self.index = DiskIndex(
            tier.table.groups,
            {
                group_id: [report.rank for report in reports if group_id in report.group_ids]
                for group_id in tier.table.group_ids
            },
        )
        for report in reports:
            self.index.apply(report.rank, [(decode_key(key), True) for key in report.keys])
        limit_bytes = min(WRITING_BYTES, pool_bytes // WRITING_SHARE)
        self.writes = DiskWrites(tier, self.index, limit_bytes, moving_slots)
        self.promotions = Promotions(tier, self.index, self.writes)
        self._written = Acknowledgements(tier.world_size)
        self._read = Acknowledgements(tier.world_size)
        self._lost: dict[int, dict[int, str]] = {}
        self._epoch = 0

    def fill(self, step: StepMetadata) -> None:
        """Add this step's operations."""
        step.disk_epoch = self._epoch
        step.disk_writes = self.writes.take()
        step.disk_reads = self.promotions.take()

    def accept(self, report: DiskReport) -> None:
        """Follow what happened on the disks; what an older epoch had is gone."""
        for rank, (epoch, changes) in report.changes.items():
            if epoch == self._epoch:
                self._tier.count_pages("written", self.index.apply(rank, changes))
        for reason, pages in report.not_written.items():
            self._tier.stats.add("not_written_pages", pages, reason)
        for operation_id in self._written.add(report.written):
            self.writes.finish(operation_id)
        for operation_id, lost in report.lost.items():
            self._lost.setdefault(operation_id, {}).update(lost)
        for operation_id in self._read.add(report.read):
            self.promotions.finish(operation_id, self._lost.pop(operation_id, {}))

    def reset(self) -> None:
        """Forget all pages; the ranks drop theirs with the next step."""
        self._epoch += 1
        self.index.clear()
        self.writes.clear()

    def set_gauges(self, stats: GroupedStats) -> None:
        """What is on disk."""
        for group_id, (pages, size_bytes) in self.index.residency().items():
            stats.set("disk_pages", pages, group_id)
            stats.set("disk_bytes", size_bytes, group_id)

    def check_root(self) -> None:
        """Say so when the engine's hash chain is not the one that the stores are named after."""
        engines = namespace.engine_root_hash()
        if engines is not None and any(root != engines for root in self._roots.values()):
            logger.error(
                "block hashes start from %s in the engine but from %s on the ranks: nothing "
                "on disk will be found; set PYTHONHASHSEED to the same number in every process",
                engines,
                self._roots,
            )
