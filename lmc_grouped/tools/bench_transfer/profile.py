"""Where the time of our rung goes: ids and calls on one side, bytes on the other."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from lmc_grouped.tools.bench_transfer.memory import LAYERS, Ids, Memory, Order
from lmc_grouped.tools.bench_transfer.report import Sample
from lmc_grouped.tools.bench_transfer.sides import Side

_SMALL_RUN_BYTES = 64


@dataclass(frozen=True, slots=True)
class CallFigures:
    """What one page costs apart from its bytes, microseconds."""

    pages: int
    page_bytes: int
    ids_us: float
    """Checking the ids and making arrays of them."""
    calls_us: float
    """Calls: as many pages of as many runs, but of 64 bytes each."""


def measure_calls(memory: Memory, rounds: int) -> CallFigures:
    """Store pages of small runs in the order of random ids, and the ids alone."""
    import torch

    from lmc_grouped.transfer.copies import DONE, Ticket
    from lmc_grouped.transfer.copies import Ids as IdArray
    from lmc_grouped.transfer.pages import PageCopier

    class NoCopies:
        name, copies_inline = "none", True

        def store(self, block_ids: IdArray, slots: IdArray) -> Ticket:
            return DONE

        load = store

    ids = Ids.of(Order.RANDOM, memory.pages)
    cache = torch.zeros(LAYERS, memory.pages, _SMALL_RUN_BYTES, dtype=torch.uint8)
    pool = torch.zeros(1, memory.pages, LAYERS * _SMALL_RUN_BYTES, dtype=torch.uint8)
    seconds: list[list[float]] = []
    for rung in (NoCopies(), None):
        copier = PageCopier(0, list(cache), pool, rung)
        seconds.append([])
        for _ in range(rounds):
            start = time.perf_counter()
            copier.store(ids.block_ids, ids.slots)
            seconds[-1].append(time.perf_counter() - start)
    ids_us, all_us = (1e6 * median(each) / memory.pages for each in seconds)
    return CallFigures(memory.pages, memory.page_bytes, ids_us, max(0.0, all_us - ids_us))


def format_profile(calls: CallFigures, samples: Sequence[Sample]) -> str:
    """One line: the parts of a page's time, stored in random order."""
    ours = [s.out_gb_s for s in samples if (s.side, s.order) == (Side.OURS, Order.RANDOM)]
    if not ours:
        return f"per page: ids {calls.ids_us:.2f} us, calls {calls.calls_us:.2f} us"
    page_us = calls.page_bytes / median(ours) / 1e3
    bytes_us = page_us - calls.ids_us - calls.calls_us
    return (
        f"per page out, random: {page_us:.2f} us, of which ids {calls.ids_us:.2f}, "
        f"calls {calls.calls_us:.2f}, bytes {bytes_us:.2f} "
        f"({calls.page_bytes / max(bytes_us, 1e-9) / 1e3:.2f} GB/s)"
    )
