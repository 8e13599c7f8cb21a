"""How fast each rung is here, beside one plain copy of the same bytes; printed, not judged."""

from collections.abc import Callable
from functools import partial
from statistics import median

import pytest
import torch

from lmc_grouped.transfer.ladder import LONG_RUN_BYTES
from tests.gpu import machine

TOTAL_BYTES = 256 * 2**20
ROUNDS = 5
SHAPES = {
    "pages of 64 KiB, one run": (1, 64 * 2**10),
    "pages of 1 MiB, one run": (1, 2**20),
    "pages of 256 KiB, runs of 8 KiB": (32, 8 * 2**10),
    "pages of 1 MiB, runs of 60 KiB": (17, LONG_RUN_BYTES),
}


def gigabytes_per_second(work: Callable[[], None], size_bytes: int) -> float:
    work()
    return size_bytes / median(machine.seconds_of(work) for _ in range(ROUNDS)) / 1e9


@pytest.mark.parametrize("shape", SHAPES)
def test_bandwidth_is_reported(worker, shape):
    runs, run_bytes = SHAPES[shape]
    page_bytes = runs * run_bytes
    pages = TOTAL_BYTES // page_bytes
    # Every second block, and runs apart: nothing can be merged.
    cache = torch.zeros(2 * pages, runs, 2 * run_bytes, dtype=torch.uint8, device=machine.DEVICE)
    host = worker.pinned(pages * page_bytes)
    copier = worker.copier(3, [cache[..., :run_bytes]], host.view(1, pages, page_bytes))
    blocks, slots = list(range(1, 2 * pages, 2)), list(range(pages))
    flat = cache.view(-1)[: host.numel()]

    def go(move: Callable[[list[int], list[int]], object]) -> None:
        move(blocks, slots).wait()  # type: ignore[attr-defined]

    out, back = (
        gigabytes_per_second(partial(go, move), host.numel())
        for move in (copier.store, copier.load)
    )
    plain_out = gigabytes_per_second(partial(host.copy_, flat, non_blocking=True), host.numel())
    plain_back = gigabytes_per_second(partial(flat.copy_, host, non_blocking=True), host.numel())
    machine.report.append(
        f"{shape}, {worker.rung}: out {out:.1f} GB/s ({out / plain_out:.2f} of one copy), "
        f"back {back:.1f} GB/s ({back / plain_back:.2f})"
    )
