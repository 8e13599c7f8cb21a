"""Short runs: a kernel of our own copies them straight between the cache and the pool.

Where ``staged`` gathers a page on the device and has it cross the bus afterwards, this
crosses in one launch per 255 pages, without device memory beside a table of the runs.
It takes multiprocessors from the engine while it runs. Not accepted on GPU.
"""

from lmc_grouped.transfer.copies import Ids
from lmc_grouped.transfer.cuda import kernel_block
from lmc_grouped.transfer.cuda.kernel_block import Geometry
from lmc_grouped.transfer.cuda.kernel_module import Kernels
from lmc_grouped.transfer.cuda.pinned import check_pinned
from lmc_grouped.transfer.cuda.stream import CudaStreams, EventTicket, operation_name
from lmc_grouped.transfer.ladder import KERNEL
from lmc_grouped.transfer.plan import HostPool, PagePlan


class KernelRung:
    """The rung ``kernel``; it has to outlive its tickets, whose launches read its table.

    Pieces of the pool that are pinned separately need no care: a kernel reads and writes
    words, and no word lies across two pages.

    Args:
        plan: of the group's pages.
        pool: page-locked, and mapped for the device at the host's own addresses.
        kernels: of the device.
        streams: of this worker's copies.

    Raises:
        TransferError: the pool is not page-locked, or the kernel lacks an entry.
        ValueError: more runs than a launch can number.
    """

    name = KERNEL
    copies_inline = False

    def __init__(
        self, plan: PagePlan, pool: HostPool, kernels: Kernels, streams: CudaStreams
    ) -> None:
        self._group_id = plan.group_id
        self._pool = pool
        self._kernels = kernels
        self._streams = streams
        check_pinned(streams.driver, plan.group_id, pool)
        self._geometry = Geometry.of(plan, pool)
        self._function = kernels.function(self._geometry.word_bytes)
        self._runs = kernels.on_device(self._geometry.runs)

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
        where = operation_name(self._group_id, len(slots), to_host=to_host)
        stream = self._streams.of(to_host=to_host)
        addresses = self._pool.addresses(slots)

        def submit() -> None:
            for first in range(0, len(slots), kernel_block.PAGES_PER_LAUNCH):
                part = slice(first, first + kernel_block.PAGES_PER_LAUNCH)
                operation = kernel_block.operation(
                    self._runs.data_ptr(), block_ids[part], addresses[part], to_host=to_host
                )
                grid = self._geometry.grid(len(block_ids[part]))
                self._kernels.launch(self._function, grid, operation, stream, where)

        return stream.begin(where, submit)
