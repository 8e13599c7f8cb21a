"""Runs copied as they are, straight between the engine's cache and the pool."""

from collections.abc import Mapping, Sequence

from lmc_grouped.transfer.copies import Ids
from lmc_grouped.transfer.cuda.merging import merge
from lmc_grouped.transfer.cuda.pinned import check_borders, check_pinned
from lmc_grouped.transfer.cuda.stream import CudaStreams, EventTicket, operation_name
from lmc_grouped.transfer.cuda.submit import Directed, Submit, submit_batches, submit_runs
from lmc_grouped.transfer.ladder import BATCH, RUNS
from lmc_grouped.transfer.plan import HostPool, PagePlan

SUBMIT: Mapping[str, Submit] = {BATCH: submit_batches, RUNS: submit_runs}


class CopyEngineRung:
    """The rungs ``batch`` and ``runs``: they differ in the call only.

    Args:
        name: which of the two.
        plan: of the group's pages.
        pool: page-locked.
        streams: of this worker's copies.
        borders: host addresses at which separately pinned pieces begin.

    Raises:
        TransferError: the pool is not page-locked, or cut inside a page.
    """

    copies_inline = False

    def __init__(
        self,
        name: str,
        plan: PagePlan,
        pool: HostPool,
        streams: CudaStreams,
        borders: Sequence[int] = (),
    ) -> None:
        self.name = name
        self._submit = SUBMIT[name]
        self._plan = plan
        self._pool = pool
        self._streams = streams
        check_pinned(streams.driver, plan.group_id, pool)
        self._borders = check_borders(plan.group_id, pool, borders)

    def store(self, block_ids: Ids, slots: Ids) -> EventTicket:
        """Begin to copy device block ``block_ids[i]`` into pool slot ``slots[i]``.

        Raises:
            TransferError: the copies could not be begun.
        """
        return self._begin(block_ids, slots, to_host=True)

    def load(self, block_ids: Ids, slots: Ids) -> EventTicket:
        """Begin to copy pool slot ``slots[i]`` into device block ``block_ids[i]``.

        Raises:
            TransferError: the copies could not be begun.
        """
        return self._begin(block_ids, slots, to_host=False)

    def _begin(self, block_ids: Ids, slots: Ids, *, to_host: bool) -> EventTicket:
        where = operation_name(self._plan.group_id, len(slots), to_host=to_host)
        merged = merge(self._plan.copies(self._pool, block_ids, slots), self._borders)
        copies = Directed.of(merged, to_host=to_host)
        stream = self._streams.of(to_host=to_host)
        return stream.begin(where, lambda: self._submit(stream, copies, where))
