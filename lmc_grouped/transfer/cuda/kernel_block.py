"""What a launch of ``gather.cu`` is told, laid out as the structures of its source.

One launch copies up to ``PAGES_PER_LAUNCH`` pages. The pages are part of the
launch's own parameters; the runs, which never change, lie in device memory.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lmc_grouped.transfer.copies import Ids
from lmc_grouped.transfer.cuda.kernel_nvrtc import ENTRY_WORDS_BYTES
from lmc_grouped.transfer.plan import HostPool, PagePlan

OPERATION_BYTES = 4096
"""The most that every device takes by value."""
PAGES_PER_LAUNCH = 255
THREADS = 256
WORDS_PER_THREAD = 4
_WORDS = OPERATION_BYTES // 8
_HEAD = 2
_MOST_PIECES = 64
_MOST_RUNS = 65535  # of the second dimension of a grid
_RUN_WORDS_LIMIT = 2**31


@dataclass(frozen=True, slots=True)
class Geometry:
    """How the runs of one group's pages are copied: worked out once."""

    word_bytes: int
    """The widest word that divides every address, stride, offset and size."""
    pieces: int
    """Blocks of threads that share one run."""
    runs: npt.NDArray[np.int64]
    """``[runs, 4]``: ``struct Run``, bytes each."""

    @classmethod
    def of(cls, plan: PagePlan, pool: HostPool) -> "Geometry":
        """Of a group's plan and pool.

        Raises:
            ValueError: more runs, or longer ones, than a launch can number.
        """
        fields = [
            plan.device_addresses,
            plan.block_strides_bytes,
            plan.page_offsets_bytes,
            plan.run_bytes,
        ]
        runs = np.stack(fields, axis=1)
        word_bytes = _widest(runs, pool)
        longest = int(plan.run_bytes.max(initial=0)) // word_bytes
        if len(runs) > _MOST_RUNS or longest >= _RUN_WORDS_LIMIT:
            raise ValueError(
                f"group {plan.group_id}: {len(runs)} runs of up to {longest} words; a launch "
                f"numbers {_MOST_RUNS} runs of fewer than {_RUN_WORDS_LIMIT} words: "
                "another way of copying serves this group"
            )
        pieces = -(-longest // (THREADS * WORDS_PER_THREAD))
        return cls(word_bytes, min(max(pieces, 1), _MOST_PIECES), runs)

    def grid(self, pages: int) -> tuple[int, int, int]:
        """Blocks of threads of one launch: pieces, runs, pages."""
        return self.pieces, len(self.runs), pages


def operation(
    runs_address: int, block_ids: Ids, host_addresses: Ids, *, to_host: bool
) -> npt.NDArray[np.int64]:
    """``struct Operation``, 4096 bytes, of at most ``PAGES_PER_LAUNCH`` pages."""
    assert len(block_ids) == len(host_addresses) <= PAGES_PER_LAUNCH
    block = np.zeros(_WORDS, dtype=np.int64)
    block[0] = runs_address
    block[1] = to_host
    end = _HEAD + 2 * len(block_ids)
    block[_HEAD:end:2] = block_ids
    block[_HEAD + 1 : end : 2] = host_addresses
    return block


def _widest(runs: npt.NDArray[np.int64], pool: HostPool) -> int:
    host = [pool.address, pool.extent_stride_bytes, pool.page_bytes]
    divisor = np.gcd.reduce(np.concatenate([runs.ravel(), np.array(host, dtype=np.int64)]))
    return next(word for word in ENTRY_WORDS_BYTES if divisor % word == 0)
