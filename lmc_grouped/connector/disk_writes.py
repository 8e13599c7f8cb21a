"""Writes to disk as the scheduler plans them: every stored page, in the background, bounded."""

from collections.abc import Callable, Collection, Iterable, Sequence

from lmc_grouped.connector.messages import DiskOperation, DiskPages
from lmc_grouped.connector.requests import Tier
from lmc_grouped.core.disk_index import DiskIndex
from lmc_grouped.core.pool import PageRef

WRITING_BYTES = 256 * 2**20
"""Of pages of one worker that are held in host memory until they are on disk."""
WRITING_SHARE = 4
"""At most one in so many bytes of host memory: stores need the rest."""
QUEUED_PAGES = 100_000
"""Keys of pages that wait for their turn; nothing holds them."""

MovingSlots = Callable[[], Collection[tuple[int, int]]]
"""``(group_id, slot)`` of pages on their way to other slots."""


class DiskWrites:
    """Plans writes. A page is held from the step that stores it until every rank is done.

    Beyond ``limit_bytes`` only keys wait; such a page is written later if it is still
    in host memory.

    Args:
        tier: whose index holds the pages.
        disk: what is on disk already.
        limit_bytes: of pages held for writing.
        moving_slots: slots whose bytes are not to be relied on.
    """

    def __init__(
        self, tier: Tier, disk: DiskIndex, limit_bytes: int, moving_slots: MovingSlots
    ) -> None:
        self._tier = tier
        self._disk = disk
        self._limit_bytes = limit_bytes
        self._moving_slots = moving_slots
        self._page_bytes = {group.group_id: group.page_bytes for group in tier.table.groups}
        self._queued: dict[PageRef, None] = {}
        self._planned: list[DiskOperation] = []
        self._operations: dict[int, list[PageRef]] = {}
        self._writing: set[PageRef] = set()
        self.writing_bytes = 0
        """Of pages held for writing, on one worker."""

    def follow(self, store_id: int, refs: Sequence[PageRef], slots: Sequence[int]) -> None:
        """Write the pages of a store in the step that brings them."""
        chosen: list[tuple[PageRef, int]] = []
        for ref, slot in zip(refs, slots, strict=True):
            if not self._is_wanted(ref):
                continue
            if self._take(ref):
                chosen.append((ref, slot))
            else:
                self._enqueue(ref)
        self._plan(chosen, store_id)

    def offer(self, refs: Iterable[PageRef]) -> None:
        """Write pages of host memory that the disk has lost, or never had."""
        for ref in refs:
            if self._is_wanted(ref):
                self._enqueue(ref)

    def take(self) -> list[DiskOperation]:
        """The writes of this step, with those whose turn has come."""
        if self._queued:
            self._plan(self._next_in_queue(), None)
        planned, self._planned = self._planned, []
        return planned

    def finish(self, operation_id: int) -> None:
        """No rank reads the slots any more."""
        for ref in self._operations.pop(operation_id):
            self._writing.discard(ref)
            self.writing_bytes -= self._page_bytes[ref[0]]
        self._tier.index.release(_owner(operation_id))

    def clear(self) -> None:
        """Let what waits for its turn go: the cache was reset."""
        if self._queued:
            self._tier.stats.add("not_written_pages", len(self._queued), "dropped")
        self._queued.clear()

    def _is_wanted(self, ref: PageRef) -> bool:
        return not self._disk.has(*ref) and ref not in self._writing

    def _take(self, ref: PageRef) -> bool:
        """Count the page as held, if there is room for it; one always fits."""
        size_bytes = self._page_bytes[ref[0]]
        if self.writing_bytes and self.writing_bytes + size_bytes > self._limit_bytes:
            return False
        self._writing.add(ref)
        self.writing_bytes += size_bytes
        return True

    def _enqueue(self, ref: PageRef) -> None:
        if ref in self._queued:
            return
        if len(self._queued) >= QUEUED_PAGES:
            self._tier.stats.add("not_written_pages", 1, "queue_full")
            return
        self._queued[ref] = None

    def _next_in_queue(self) -> list[tuple[PageRef, int]]:
        """Queued pages that may be written now."""
        index = self._tier.index
        moving = self._moving_slots()
        chosen: list[tuple[PageRef, int]] = []
        for ref in list(self._queued):
            if not index.knows(*ref):
                self._tier.stats.add("not_written_pages", 1, "left_memory")
            elif self._is_wanted(ref):
                slot = index.slots([ref])[0]
                if not index.has(*ref) or (ref[0], slot) in moving or not self._take(ref):
                    break
                chosen.append((ref, slot))
            del self._queued[ref]
        return chosen

    def _plan(self, chosen: Sequence[tuple[PageRef, int]], store_id: int | None) -> None:
        if not chosen:
            return
        operation_id = self._tier.next_operation_id()
        refs = [ref for ref, _ in chosen]
        self._tier.index.lease(_owner(operation_id), refs)
        self._operations[operation_id] = refs
        self._planned.append(
            DiskOperation(operation_id, disk_pages(refs, [slot for _, slot in chosen]), store_id)
        )


def disk_pages(refs: Sequence[PageRef], slots: Sequence[int]) -> tuple[DiskPages, ...]:
    """Pages as workers get them, in the order of ``refs``."""
    runs: list[DiskPages] = []
    for (group_id, block_hash), slot in zip(refs, slots, strict=True):
        if not runs or runs[-1].group_id != group_id:
            runs.append(DiskPages(group_id, [], []))
        runs[-1].slots.append(slot)
        runs[-1].hashes.append(block_hash)
    return tuple(runs)


def _owner(operation_id: int) -> str:
    """Lease owner of the pages being written."""
    return f"disk:{operation_id}"
