"""The file tier of one rank: carries out disk operations behind the steps."""

import logging
import threading
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import Future
from functools import partial

import numpy as np
import numpy.typing as npt

from lmc_grouped.connector.messages import (
    DiskOperation,
    DiskReport,
    RankDiskReport,
    StepMetadata,
)
from lmc_grouped.core.keys import encode_key
from lmc_grouped.core.pool import PageRef
from lmc_grouped.host.disk import DiskError, DiskTier, PutAnswer, ReadOutcome, WriteEnd
from lmc_grouped.host.region import HostRegion

logger = logging.getLogger(__name__)

_Read = tuple[int, list[int], "Future[list[ReadOutcome]]"]
"""(operation_id, positions in the operation, outcomes)."""


class RankDisk:
    """Writes pages of the host region to the rank's store, and reads them back.

    A slot named in an operation is the tier's until the operation is reported.

    Args:
        tier: the rank's store.
        region: the host memory that slots lie in.
        rank: of the store.
        group_ids: groups of which this rank holds bytes.
        root_hash: of the store's namespace.
    """

    def __init__(
        self,
        tier: DiskTier,
        region: HostRegion,
        *,
        rank: int,
        group_ids: Collection[int],
        root_hash: str,
    ) -> None:
        self.tier = tier
        self._region = region
        self._rank = rank
        self._group_ids = frozenset(group_ids)
        self._epoch = 0
        self._lock = threading.Lock()
        self._open_pages: dict[int, int] = {}
        """operation_id -> pages of the write that have not ended."""
        self._writing: set[PageRef] = set()
        self._ended = DiskReport()
        self._reads: list[_Read] = []
        stored = tier.track_changes()
        if not stored:  # the store has said what it found
            logger.info("lmc_grouped disk tier: nothing in %s yet", tier.directory)
        self.report = RankDiskReport(
            rank,
            tuple(sorted(group_ids)),
            tuple(encode_key((page.group_id, page.block_hash)) for page in stored),
            root_hash,
        )

    def run(self, step: StepMetadata, failed: Collection[int]) -> None:
        """Begin this step's operations; the stores of the step have been carried out.

        Args:
            step: what to do.
            failed: operation ids of stores that failed on this rank.
        """
        if step.disk_epoch != self._epoch:
            self._forget(step.disk_epoch)
        for operation in step.disk_writes:
            self._write(operation, is_failed=operation.store_id in failed)
        for operation in step.disk_reads:
            self._read(operation)

    def take_report(self) -> DiskReport:
        """What has ended since the last call."""
        with self._lock:
            report, self._ended = self._ended, DiskReport()
        reads, self._reads = self._reads, []
        for operation_id, positions, outcomes in reads:
            if not outcomes.done():
                self._reads.append((operation_id, positions, outcomes))
                continue
            report.read[operation_id] = 1
            lost = _lost_pages(positions, outcomes)
            if lost:
                report.lost[operation_id] = lost
        # After the reads: a page found damaged has left by now.
        changes = self.tier.take_changes()
        if changes:
            report.changes[self._rank] = (self._epoch, changes)
        return report

    def close(self) -> None:
        """Write what was accepted, and let others open the store."""
        self.tier.close()

    def _write(self, operation: DiskOperation, *, is_failed: bool) -> None:
        # From the end: the start of a prefix is then the youngest, and leaves last.
        pages = list(self._pages(operation))[::-1]
        operation_id = operation.operation_id
        with self._lock:
            self._open_pages[operation_id] = len(pages) + 1
            self._writing.update(ref for _, ref, _ in pages)
        refs = [ref for _, ref, _ in pages]
        answers: Sequence[str] = ["store_failed"] * len(pages)
        if not is_failed:
            buffers = [page for _, _, page in pages]
            answers = self.tier.put_all(refs, buffers, partial(self._end_write, operation_id))
        for ref, answer in zip(refs, answers, strict=True):
            if answer is PutAnswer.PRESENT:
                self._end_page(operation_id, ref, None)
            elif answer is not PutAnswer.ACCEPTED:
                self._end_page(operation_id, ref, answer)
        self._end_page(operation_id, None, None)

    def _end_write(self, operation_id: int, ref: PageRef, end: WriteEnd) -> None:
        """Called by the tier's threads."""
        self._end_page(operation_id, ref, None if end is WriteEnd.STORED else end)

    def _end_page(self, operation_id: int, ref: PageRef | None, reason: str | None) -> None:
        with self._lock:
            if ref is not None:
                self._writing.discard(ref)
            if reason is not None:
                counts = self._ended.not_written
                counts[str(reason)] = counts.get(str(reason), 0) + 1
            self._open_pages[operation_id] -= 1
            if self._open_pages[operation_id] == 0:
                del self._open_pages[operation_id]
                self._ended.written[operation_id] = 1

    def _read(self, operation: DiskOperation) -> None:
        pages = list(self._pages(operation))[::-1]
        positions = [position for position, _, _ in pages]
        refs, buffers = [ref for _, ref, _ in pages], [page for _, _, page in pages]
        outcomes: Future[list[ReadOutcome]]
        try:
            outcomes = self.tier.start_read(refs, buffers)
        except DiskError as error:
            outcomes = Future()
            outcomes.set_exception(error)
        self._reads.append((operation.operation_id, positions, outcomes))

    def _pages(
        self, operation: DiskOperation
    ) -> Iterator[tuple[int, PageRef, npt.NDArray[np.uint8]]]:
        """``(position, key, bytes)`` of the pages that this rank holds bytes of."""
        position = 0
        for pages in operation.pages:
            for slot, block_hash in zip(pages.slots, pages.hashes, strict=True):
                if pages.group_id in self._group_ids:
                    ref = pages.group_id, block_hash
                    yield position, ref, self._region.page(pages.group_id, slot)
                position += 1

    def _forget(self, epoch: int) -> None:
        """Empty the store; what is being written does not become visible any more."""
        with self._lock:
            keys = list(self._writing)
        keys += [(page.group_id, page.block_hash) for page in self.tier.stored_pages()]
        self.tier.drop(keys)
        self.tier.take_changes()
        self._epoch = epoch


def _lost_pages(positions: list[int], outcomes: "Future[list[ReadOutcome]]") -> dict[int, str]:
    """position -> why the page was not read."""
    error = outcomes.exception()
    if error is not None:
        logger.error("disk tier: a read failed: %s", error)
        return dict.fromkeys(positions, "read_failed")
    return {
        position: str(outcome)
        for position, outcome in zip(positions, outcomes.result(), strict=True)
        if outcome is not ReadOutcome.HIT
    }
