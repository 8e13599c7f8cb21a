"""The ways of copying of one CUDA device, and what the groups of a worker share there."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property

import torch

from lmc_grouped.transfer.copies import Rung
from lmc_grouped.transfer.cuda.device import CudaDevice
from lmc_grouped.transfer.cuda.direct import SUBMIT, CopyEngineRung
from lmc_grouped.transfer.cuda.kernel import KernelRung
from lmc_grouped.transfer.cuda.kernel_lmcache import BlockOperation, LMCacheRung
from lmc_grouped.transfer.cuda.kernel_module import Kernels, load_kernels
from lmc_grouped.transfer.cuda.staged import STAGING_BYTES, StagedRung, Staging
from lmc_grouped.transfer.cuda.stream import CudaStreams
from lmc_grouped.transfer.cuda.torch_work import TorchLane
from lmc_grouped.transfer.ladder import BATCH, KERNEL, LMCACHE, RUNS, STAGED, DeviceFacts, refusal
from lmc_grouped.transfer.plan import HostPool, PagePlan

OpenLMCache = Callable[[tuple[int, int]], BlockOperation | str]
"""Gives LMCache's block operation for a compute capability, or says why there is none."""


class CudaWays:
    """Makes rungs; what is compiled or loaded is so only where the user asked for it.

    Args:
        device: whose driver answers.
        forced: the user's word, ``lmc_grouped.transfer``.
        open_lmcache: where LMCache's operation comes from.
    """

    def __init__(
        self, device: CudaDevice, forced: str | None, open_lmcache: OpenLMCache | None
    ) -> None:
        self.device = device
        self.facts: DeviceFacts = device.facts
        """With what was found out about the kernel and the operation."""
        self._kernels: Kernels | None = None
        self._operation: BlockOperation | None = None
        self._stagings: tuple[Staging, Staging] | None = None
        capability = device.facts.capability
        if forced == KERNEL and capability is not None:
            kernels = load_kernels(device.driver, capability, device.memory)
            self._kernels = None if isinstance(kernels, str) else kernels
            missing = kernels if isinstance(kernels, str) else None
            self.facts = replace(device.facts, kernel_missing=missing)
        if forced == LMCACHE and capability is not None and open_lmcache is not None:
            operation = open_lmcache(capability)
            self._operation = None if isinstance(operation, str) else operation
            missing = operation if isinstance(operation, str) else None
            self.facts = replace(device.facts, lmcache_missing=missing)

    @cached_property
    def streams(self) -> CudaStreams:
        """Of this worker's copies.

        Raises:
            TransferError: they cannot be made.
        """
        return CudaStreams(self.device.driver, self.device.compute)

    def rung(
        self,
        name: str,
        plan: PagePlan,
        layer_views: Sequence[torch.Tensor],
        pool: HostPool,
        borders: Sequence[int],
        staged_page_bytes: int,
    ) -> Rung:
        """The way with this name, which was found possible, for one group.

        Args:
            name: of the ladder.
            plan: of the group's pages.
            layer_views: those of the plan.
            pool: page-locked.
            borders: host addresses at which separately pinned pieces begin.
            staged_page_bytes: the largest page of all groups that stage.

        Raises:
            TransferError: the pool is not page-locked, or memory cannot be had.
            ValueError: the group's runs do not suit the way.
        """
        if name == KERNEL:
            assert self._kernels is not None, "the kernel is chosen where it was loaded"
            return KernelRung(plan, pool, self._kernels, self.streams)
        if name == LMCACHE:
            assert self._operation is not None, "the operation is chosen where it was loaded"
            return LMCacheRung(plan, pool, self._operation, self.device.memory, *self._lanes)
        if name != STAGED:
            return CopyEngineRung(name, plan, pool, self.streams, borders)
        submit = SUBMIT[BATCH if refusal(BATCH, self.facts) is None else RUNS]
        return StagedRung(
            plan, layer_views, pool, *self._staging(staged_page_bytes), submit, borders
        )

    @cached_property
    def _lanes(self) -> tuple[TorchLane, TorchLane]:
        """For stores and for loads."""
        return self.device.lane(self.streams.stores), self.device.lane(self.streams.loads)

    def _staging(self, page_bytes: int) -> tuple[Staging, Staging]:
        """For stores and for loads; made with the first group."""
        if self._stagings is None:
            size_bytes = max(STAGING_BYTES, page_bytes)
            stores, loads = (Staging(self.device.memory(size_bytes), lane) for lane in self._lanes)
            self._stagings = stores, loads
        return self._stagings
