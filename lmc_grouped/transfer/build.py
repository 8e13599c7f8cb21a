"""The way of copying of each group of a worker: chosen once, when the cache is registered."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import numpy.typing as npt
import torch

from lmc_grouped.transfer.copies import Rung
from lmc_grouped.transfer.cpu import CpuRung
from lmc_grouped.transfer.cuda.device import CudaDevice, open_device
from lmc_grouped.transfer.cuda.direct import SUBMIT, DirectRung
from lmc_grouped.transfer.cuda.kernel import KernelRung
from lmc_grouped.transfer.cuda.kernel_lmcache import BlockOperation, LMCacheRung, OpenOperation
from lmc_grouped.transfer.cuda.kernel_module import Kernels, load_kernels
from lmc_grouped.transfer.cuda.registrar import CudaRegistrar
from lmc_grouped.transfer.cuda.staged import STAGING_BYTES, StagedRung, Staging
from lmc_grouped.transfer.cuda.stream import CudaStreams
from lmc_grouped.transfer.cuda.submit import Submit
from lmc_grouped.transfer.ladder import (
    BATCH,
    CPU,
    KERNEL,
    LMCACHE,
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
        open_lmcache: gives LMCache's block operation for a compute capability, or says why not.

    Raises:
        LadderError: ``forced`` cannot be had on this device.
        TransferError: streams or staging memory cannot be had.
    """

    def __init__(
        self,
        views: Views,
        forced: str | None,
        device: CudaDevice | DeviceFacts,
        open_lmcache: Callable[[tuple[int, int]], BlockOperation | str] | None = None,
    ) -> None:
        self._views = views
        self._device = device
        facts, self._kernels, self._operation = _asked_for(device, forced, open_lmcache)
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
    def of(
        cls, views: Views, forced: str | None, open_lmcache: OpenOperation | None = None
    ) -> "Transfers":
        """Ask the device that holds the cache.

        Raises:
            LadderError, TransferError: as the class does.
        """
        tensors = [layer for layers in views.values() for layer in layers]
        device = tensors[0].device if tensors else torch.device("cpu")
        is_cuda = device.type == "cuda"
        known = open_device(device) if is_cuda else DeviceFacts(device.type)
        opening = None if open_lmcache is None else partial(open_lmcache, device=device)
        return cls(views, forced, known, opening)

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
            return CpuRung(plan, pool)
        if name == TORCH:
            return TorchRung(group_id, views, torch.from_numpy(memory))
        assert self.stream is not None, f"{name} was chosen without a CUDA device"
        if name == KERNEL:
            assert self._kernels is not None, "the kernel is chosen where it was loaded"
            return KernelRung(plan, pool, self._kernels, self.stream)
        if name == LMCACHE:
            assert self._operation is not None
            assert isinstance(self._device, CudaDevice)
            on_device = self._device.memory, self.stream, self._device.work
            return LMCacheRung(plan, pool, self._operation, *on_device)
        if name != STAGED:
            return DirectRung(name, plan, pool, self.stream, borders)
        assert self._staging is not None, "groups that stage are known at the start"
        return StagedRung(plan, views, pool, *self._staging, borders)

    def _new_staging(
        self, device: CudaDevice, streams: CudaStreams
    ) -> tuple[Staging, Staging, Submit]:
        staged = [i for i, choice in self.choices.items() if choice.rung == STAGED]
        size_bytes = max(STAGING_BYTES, *(self._plans[i].page_bytes for i in staged))
        stores, loads = (
            Staging(device.memory(size_bytes), stream, device.work(stream))
            for stream in (streams.stores, streams.loads)
        )
        has_batches = refusal(BATCH, device.facts) is None
        return stores, loads, SUBMIT[BATCH if has_batches else RUNS]


def _asked_for(
    device: CudaDevice | DeviceFacts,
    forced: str | None,
    open_lmcache: Callable[[tuple[int, int]], BlockOperation | str] | None,
) -> tuple[DeviceFacts, Kernels | None, BlockOperation | None]:
    """What is known of the device, and what is compiled or loaded only where it is asked for."""
    if isinstance(device, DeviceFacts):
        return device, None, None
    facts = device.facts
    if forced == KERNEL and facts.capability is not None:
        kernels = load_kernels(device.driver, facts.capability, device.memory)
        if isinstance(kernels, str):
            return replace(facts, kernel_missing=kernels), None, None
        return replace(facts, kernel_missing=None), kernels, None
    if forced == LMCACHE and facts.capability is not None and open_lmcache is not None:
        operation = open_lmcache(facts.capability)
        if isinstance(operation, str):
            return replace(facts, lmcache_missing=operation), None, None
        return replace(facts, lmcache_missing=None), None, operation
    return facts, None, None
