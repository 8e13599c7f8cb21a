"""The CUDA device of this machine, and groups of pages on it."""

import mmap
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache

import torch

from lmc_grouped.transfer.build import Transfers
from lmc_grouped.transfer.copies import Ids, Rung, Ticket
from lmc_grouped.transfer.cuda.device import CudaDevice, open_device
from lmc_grouped.transfer.cuda.kernel_module import load_kernels
from lmc_grouped.transfer.cuda.registrar import CudaRegistrar
from lmc_grouped.transfer.cuda.stream import CudaStreams
from lmc_grouped.transfer.ladder import CPU, LMCACHE, RUNGS, TORCH, DeviceFacts, refusal
from lmc_grouped.transfer.pages import PageCopier

DEVICE = torch.device("cuda", 0)
BESIDE_THE_ENGINE = tuple(rung for rung in RUNGS if rung not in (CPU, LMCACHE, TORCH))
"""The rungs that need a CUDA device and nothing of LMCache."""

report: list[str] = []
"""Lines that are printed at the end."""


@cache
def why_no_device() -> str | None:
    """Why there is nothing to test; ``None`` where there is a device."""
    if not torch.cuda.is_available():
        return f"no CUDA device (torch {torch.__version__} sees none)"
    torch.cuda.set_device(DEVICE)
    torch.zeros(1, device=DEVICE)  # torch makes the context that everything shares
    found = open_device(DEVICE)
    return None if isinstance(found, CudaDevice) else found.driver_missing


@cache
def device() -> CudaDevice:
    """The device."""
    found = open_device(DEVICE)
    assert isinstance(found, CudaDevice), "without a device all tests are skipped"
    return found


@cache
def facts() -> DeviceFacts:
    """What is known of the device, the gather kernel included: it is compiled for it here."""
    found = device()
    assert found.facts.capability is not None
    loaded = load_kernels(found.driver, found.facts.capability, found.memory)
    return replace(found.facts, kernel_missing=loaded if isinstance(loaded, str) else None)


def rungs_here() -> list[str]:
    """The rungs that this device can take; all, to be skipped, where there is none."""
    if why_no_device() is not None:
        return list(BESIDE_THE_ENGINE)
    return [rung for rung in BESIDE_THE_ENGINE if refusal(rung, facts()) is None]


class Ordered:
    """A rung whose copies follow and precede the engine's work, as a worker sees to."""

    copies_inline = False

    def __init__(self, rung: Rung, streams: CudaStreams) -> None:
        self.name = rung.name
        self._rung, self._streams = rung, streams

    def store(self, block_ids: Ids, slots: Ids) -> Ticket:
        self._streams.after_compute()
        ticket = self._rung.store(block_ids, slots)
        self._streams.before_compute()
        return ticket

    def load(self, block_ids: Ids, slots: Ids) -> Ticket:
        self._streams.after_compute()
        return self._rung.load(block_ids, slots)


class Worker:
    """The copies of one worker; registers host memory and lets it go again.

    Args:
        rung: what ``lmc_grouped.transfer`` says.
    """

    def __init__(self, rung: str) -> None:
        self.rung = rung
        self.registrar = CudaRegistrar(device().driver)
        self._pinned: list[tuple[int, torch.Tensor]] = []

    def pinned(self, size_bytes: int) -> torch.Tensor:
        """``uint8`` ``[bytes]`` of page-locked host memory, registered as a region is."""
        # A mapping of its own: no two registrations share a page of memory.
        memory = torch.frombuffer(mmap.mmap(-1, size_bytes), dtype=torch.uint8)
        code = self.registrar.register(memory.data_ptr(), size_bytes)
        assert code == 0, f"cuMemHostRegister of {size_bytes} bytes answered {code}"
        self._pinned.append((memory.data_ptr(), memory))
        return memory

    def transfers(self, views: Sequence[torch.Tensor]) -> Transfers:
        """The streams and rung of one group."""
        return Transfers({3: views}, self.rung, device())

    def copier(self, group_id: int, views: list[torch.Tensor], pool: torch.Tensor) -> PageCopier:
        """A copier of the group whose operations are ordered with torch's current stream."""
        transfers = Transfers({group_id: views}, self.rung, device())
        rung = transfers.rungs({group_id: pool.numpy()})[group_id]
        assert transfers.stream is not None
        return PageCopier(group_id, views, pool, Ordered(rung, transfers.stream))

    def close(self) -> None:
        """Wait for the device and unregister everything."""
        torch.cuda.synchronize(DEVICE)
        codes = [self.registrar.unregister(address) for address, _ in self._pinned]
        assert not any(codes), f"cuMemHostUnregister answered {codes}"
        self._pinned.clear()


def busy(milliseconds: int = 100) -> None:
    """Keep torch's current stream busy about so long, so that a missing wait shows."""
    torch.cuda._sleep(milliseconds * 1_500_000)


def seconds_of(work: Callable[[], None]) -> float:
    """Wall time until the device has done everything."""
    torch.cuda.synchronize(DEVICE)
    start = time.perf_counter()
    work()
    torch.cuda.synchronize(DEVICE)
    return time.perf_counter() - start
