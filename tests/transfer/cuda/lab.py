"""One group of a worker on the fake driver: cache, pool, streams, and the engine's work."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from lmc_grouped.transfer.cuda.device import CudaDevice, device_facts
from lmc_grouped.transfer.cuda.direct import CopyEngineRung
from lmc_grouped.transfer.cuda.driver import Driver
from lmc_grouped.transfer.cuda.kernel import KernelRung
from lmc_grouped.transfer.cuda.kernel_module import Kernels
from lmc_grouped.transfer.cuda.registrar import CudaRegistrar
from lmc_grouped.transfer.cuda.staged import StagedRung, Staging
from lmc_grouped.transfer.cuda.stream import CopyStream, CudaStreams
from lmc_grouped.transfer.cuda.submit import submit_batches, submit_runs
from lmc_grouped.transfer.plan import HostPool, PagePlan
from tests.transfer.cuda.shapes import SHAPES
from tests.transfer.fake_cuda import FakeCuda

BLOCKS, SLOTS_PER_EXTENT, EXTENTS = 24, 5, 4
SLOTS = SLOTS_PER_EXTENT * EXTENTS
RUNGS = ("batch", "runs", "staged", "staged over runs", "kernel")


def fake_device(fake: FakeCuda) -> CudaDevice:
    """The fake's device; torch's work is done when its stream comes to it."""

    kept: list[torch.Tensor] = []  # a test may drop the rung that owns it before the copy

    def memory(size_bytes: int) -> torch.Tensor:
        kept.append(torch.zeros(size_bytes, dtype=torch.uint8))
        fake.device(kept[-1])
        return kept[-1]

    driver = Driver(fake)
    return CudaDevice(
        driver,
        device_facts(driver, 0),
        compute=lambda: 0,
        run_on=lambda stream: partial(fake.streams.enqueue, stream.handle),
        memory=memory,
        pinned_memory=lambda size_bytes: torch.zeros(size_bytes, dtype=torch.uint8),
    )


class Lab:
    """A group with these layers; ``extent_padding_bytes`` lie between its extents.

    Args:
        views: of the engine's cache.
        fake: the driver.
        is_pinned: whether the pool is registered, extent by extent.
        has_own_compute: whether the engine runs on a stream of its own instead of the NULL one.
    """

    def __init__(
        self,
        views: Sequence[torch.Tensor],
        fake: FakeCuda | None = None,
        *,
        extent_padding_bytes: int = 0,
        is_pinned: bool = True,
        has_own_compute: bool = False,
        borders: Sequence[int] | None = None,
    ) -> None:
        self.fake = fake or FakeCuda()
        self.views = list(views)
        self.fake.device(*self.views)
        self.plan = PagePlan.of(3, self.views)
        extent_bytes = SLOTS_PER_EXTENT * self.plan.page_bytes + extent_padding_bytes
        self.memory = np.zeros((EXTENTS, extent_bytes), dtype=np.uint8)
        shape = (EXTENTS, SLOTS_PER_EXTENT, self.plan.page_bytes)
        pages = self.memory[:, : SLOTS_PER_EXTENT * self.plan.page_bytes]
        self.pages = np.lib.stride_tricks.as_strided(
            pages, shape, (extent_bytes, self.plan.page_bytes, 1)
        )
        self.pool = HostPool.of(self.pages)
        self.device = fake_device(self.fake)
        self.driver = self.device.driver
        self.extents = [self.memory.ctypes.data + i * extent_bytes for i in range(EXTENTS)]
        if is_pinned:
            registrar = CudaRegistrar(self.driver)
            assert not any(registrar.register(a, extent_bytes) for a in self.extents)
        self.borders = self.extents if borders is None else borders
        self.compute = self.fake.streams.new_stream() if has_own_compute else 0
        self.streams = CudaStreams(self.driver, lambda: self.compute)

    def rung(self, name: str, staging_pages: int = 3) -> CopyEngineRung | StagedRung | KernelRung:
        if name == "kernel":
            kernels = Kernels(self.driver, b"\x7fELF", self.device.memory)
            return KernelRung(self.plan, self.pool, kernels, self.streams)
        if not name.startswith("staged"):
            return CopyEngineRung(name, self.plan, self.pool, self.streams, self.borders)
        return StagedRung(
            self.plan,
            self.views,
            self.pool,
            self._staging(self.streams.stores, staging_pages),
            self._staging(self.streams.loads, staging_pages),
            submit_runs if name.endswith("runs") else submit_batches,
            self.borders,
        )

    def _staging(self, stream: CopyStream, pages: int) -> Staging:
        memory = self.device.memory(pages * self.plan.page_bytes + 1)
        return Staging(memory, self.device.lane(stream))

    def forward(self, work: Callable[[], None]) -> None:
        """Something the engine has begun on its own stream."""
        self.fake.streams.enqueue(self.compute, work)

    def fill(self, value: int) -> None:
        for view in self.views:
            view.fill_(value)

    def block(self, block_id: int) -> bytes:
        """The page of a block, layer after layer, by the slowest way there is."""
        return b"".join(bytes(view[block_id].flatten().tolist()) for view in self.views)

    def slot(self, slot: int) -> bytes:
        return self.pages[divmod(slot, SLOTS_PER_EXTENT)].tobytes()

    def finish(self) -> None:
        """Let everything run, and have the fake say if it broke."""
        self.fake.streams.run_all()
        assert self.fake.broken == []


def ids(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


def new_lab(shape: str = "contiguous", **settings: Any) -> Lab:
    """A lab whose layers have one of the ``SHAPES``."""
    return Lab(SHAPES[shape](BLOCKS, torch.device("cpu")), **settings)


def scattered(pages: int) -> tuple[np.ndarray, np.ndarray]:
    """Blocks and slots of which no two neighbours can be merged."""
    return ids(*range(1, 1 + pages)), ids(*reversed(range(pages)))
