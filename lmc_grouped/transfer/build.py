"""The way of copying of each group of a worker: chosen once, when the cache is registered."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import torch

from lmc_grouped.transfer.copies import Rung
from lmc_grouped.transfer.cpu import cpu_rung
from lmc_grouped.transfer.cuda.device import CudaDevice, open_device
from lmc_grouped.transfer.cuda.direct import SUBMIT, CopyEngineRung
from lmc_grouped.transfer.cuda.kernel import KernelRung
from lmc_grouped.transfer.cuda.kernel_module import Kernels, load_kernels
from lmc_grouped.transfer.cuda.registrar import CudaRegistrar
from lmc_grouped.transfer.cuda.staged import STAGING_BYTES, StagedRung, Staging
from lmc_grouped.transfer.cuda.stream import CudaStreams
from lmc_grouped.transfer.cuda.submit import Submit
from lmc_grouped.transfer.ladder import (
    BATCH,
    CPU,
    KERNEL,
    RUNS,
    STAGED,
    TORCH,
    Choice,
    DeviceFacts,
    choose,
    refusal,
)
from lmc_grouped.transfer.plan import HostPool, PagePlan
from lmc_grouped.transfer.synchronous import TorchRung

logger = logging.getLogger(__name__)

Views = Mapping[int, Sequence[torch.Tensor]]
"""group_id -> per layer ``uint8`` ``[num_blocks, *outer, run_bytes]``."""


class Transfers:
    """How each group of a worker is copied; the pools come later, for they may need pinning.

    Args:
        views: the engine's cache, all of it on one device.
        forced: the user's word, ``lmc_grouped.transfer``.
        device: the CUDA device whose driver answers, or what is known of another one.

    Raises:
        LadderError: ``forced`` cannot be had on this device.
        TransferError: streams or staging memory cannot be had.
    """

    def __init__(self, views: Views, forced: str | None, device: CudaDevice | DeviceFacts) -> None:
        self._views = views
        facts, self._kernels = _facts_and_kernels(device, forced)
        self._plans = {
            group_id: PagePlan.of(group_id, layers) for group_id, layers in views.items()
        }
        self.choices = {
            group_id: choose(plan.mean_run_bytes, facts, forced)
            if plan.page_bytes
            else Choice(CPU, "this rank holds no layer of the group")
            for group_id, plan in self._plans.items()
        }
        self.stream: CudaStreams | None = None
        """The order of the copies with the engine's work, where they run beside it."""
        self.registrar: CudaRegistrar | None = None
        """With what the pools have to be page-locked before ``rungs``; ``None``: need not be."""
        self._staging: tuple[Staging, Staging, Submit] | None = None
        taken = {choice.rung for choice in self.choices.values()}
        if isinstance(device, CudaDevice) and taken - {CPU, TORCH}:
            self.stream = CudaStreams(device.driver, device.compute)
            self.registrar = CudaRegistrar(device.driver)
            if STAGED in taken:
                self._staging = self._new_staging(device, self.stream)
        for group_id, choice in self.choices.items():
            logger.info(
                "lmc_grouped group %d: copied by %s (%s)", group_id, choice.rung, choice.reason
            )

    @classmethod
    def of(cls, views: Views, forced: str | None) -> "Transfers":
        """Ask the device that holds the cache.

        Raises:
            LadderError, TransferError: as the class does.
        """
        tensors = [layer for layers in views.values() for layer in layers]
        device = tensors[0].device if tensors else torch.device("cpu")
        is_cuda = device.type == "cuda"
        return cls(views, forced, open_device(device) if is_cuda else DeviceFacts(device.type))

    def rungs(
        self, pools: Mapping[int, npt.NDArray[np.uint8]], borders: Sequence[int] = ()
    ) -> dict[int, Rung]:
        """The ways, ready to copy.

        Args:
            pools: group_id -> ``[extents, slots per extent, page_bytes]``.
            borders: addresses at which separately page-locked pieces of them begin.

        Raises:
            TransferError: a pool is not page-locked where it has to be.
        """
        return {
            group_id: self._rung(group_id, choice.rung, pools[group_id], borders)
            for group_id, choice in self.choices.items()
        }

    def _rung(
        self, group_id: int, name: str, memory: npt.NDArray[np.uint8], borders: Sequence[int]
    ) -> Rung:
        plan, views, pool = self._plans[group_id], self._views[group_id], HostPool.of(memory)
        if name == CPU:
            return cpu_rung(plan, pool)
        if name == TORCH:
            return TorchRung(group_id, views, torch.from_numpy(memory))
        assert self.stream is not None, f"{name} was chosen without a CUDA device"
        if name == KERNEL:
            assert self._kernels is not None, "the kernel is chosen where it was loaded"
            return KernelRung(plan, pool, self._kernels, self.stream)
        if name != STAGED:
            return CopyEngineRung(name, plan, pool, self.stream, borders)
        assert self._staging is not None, "groups that stage are known at the start"
        return StagedRung(plan, views, pool, *self._staging, borders)

    def _new_staging(
        self, device: CudaDevice, streams: CudaStreams
    ) -> tuple[Staging, Staging, Submit]:
        staged = [i for i, choice in self.choices.items() if choice.rung == STAGED]
        size_bytes = max(STAGING_BYTES, *(self._plans[i].page_bytes for i in staged))
        stores, loads = (
            device.staging(stream, size_bytes) for stream in (streams.stores, streams.loads)
        )
        has_batches = refusal(BATCH, device.facts) is None
        return stores, loads, SUBMIT[BATCH if has_batches else RUNS]


def _facts_and_kernels(
    device: CudaDevice | DeviceFacts, forced: str | None
) -> tuple[DeviceFacts, Kernels | None]:
    """What is known of the device, and the gather kernel: compiled only where it is asked for."""
    if isinstance(device, DeviceFacts):
        return device, None
    facts = device.facts
    if forced != KERNEL or facts.capability is None:
        return facts, None
    loaded = load_kernels(device.driver, facts.capability, device.memory)
    if isinstance(loaded, str):
        return replace(facts, kernel_missing=loaded), None
    return replace(facts, kernel_missing=None), loaded
