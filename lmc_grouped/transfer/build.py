"""The way of copying of each group of a worker: chosen once, when the cache is registered."""

import logging
from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
import numpy.typing as npt
import torch

from lmc_grouped.transfer.copies import Rung
from lmc_grouped.transfer.cpu import cpu_rung
from lmc_grouped.transfer.cuda.device import CudaDevice, open_device
from lmc_grouped.transfer.cuda.kernel_lmcache import OpenOperation
from lmc_grouped.transfer.cuda.registrar import CudaRegistrar
from lmc_grouped.transfer.cuda.stream import CudaStreams
from lmc_grouped.transfer.cuda.ways import CudaWays, OpenLMCache
from lmc_grouped.transfer.ladder import CPU, STAGED, TORCH, Choice, DeviceFacts, choose
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
        TransferError: the copy streams cannot be had.
    """

    def __init__(
        self,
        views: Views,
        forced: str | None,
        device: CudaDevice | DeviceFacts,
        open_lmcache: OpenLMCache | None = None,
    ) -> None:
        self._views = views
        self._ways: CudaWays | None = None
        facts = device
        if isinstance(device, CudaDevice):
            self._ways = CudaWays(device, forced, open_lmcache)
            facts = self._ways.facts
        assert isinstance(facts, DeviceFacts)
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
        taken = {choice.rung for choice in self.choices.values()}
        if self._ways is not None and taken - {CPU, TORCH}:
            self.stream = self._ways.streams
            self.registrar = CudaRegistrar(self._ways.device.driver)
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
            TransferError: a pool is not page-locked where it has to be, or memory cannot be had.
            ValueError: a group's runs do not suit the way that was asked for.
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
        assert self._ways is not None, f"{name} was chosen without a CUDA device"
        staged = [i for i, choice in self.choices.items() if choice.rung == STAGED]
        largest_bytes = max((self._plans[i].page_bytes for i in staged), default=0)
        return self._ways.rung(name, plan, views, pool, borders, largest_bytes)
