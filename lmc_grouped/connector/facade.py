"""``LMCacheConnectorV1``: the class the engine loads, which only delegates."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorRole,
    SupportsHMA,
)

from lmc_grouped.adapters import engine, hooks
from lmc_grouped.adapters.device_blocks import DeviceBlocks
from lmc_grouped.connector.messages import RankReport, StepMetadata, StepReport
from lmc_grouped.connector.metrics import GroupedPromMetrics, GroupedStats
from lmc_grouped.connector.scheduler import SchedulerHalf
from lmc_grouped.connector.worker import WorkerHalf

if TYPE_CHECKING:
    import torch
    from vllm.config import VllmConfig
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.outputs import KVConnectorOutput
    from vllm.v1.request import Request


class LMCacheConnectorV1(*hooks.bases(), KVConnectorBase_V1, SupportsHMA):  # type: ignore[misc]
    """LMCache's connector, aware of the engine's KV-cache groups.

    The engine makes one for its scheduler and one for each worker; each holds the
    half its role needs. Loads are always asynchronous: a synchronous load would
    restore a stale recurrent state, and could not report its failure.
    """

    _cache_hit_source = engine.host_hit_source()

    def __init__(
        self,
        vllm_config: "VllmConfig",
        role: KVConnectorRole,
        kv_cache_config: "KVCacheConfig",
    ) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        engine.log_like_the_engine()
        self.scheduler_half: SchedulerHalf | None = None
        self.worker_half: WorkerHalf | None = None
        if role is KVConnectorRole.SCHEDULER:
            self.scheduler_half = SchedulerHalf(vllm_config, kv_cache_config)
        else:
            self.worker_half = WorkerHalf(vllm_config, kv_cache_config)

    @property
    def requires_kv_delivery(self) -> bool:
        """A cache: a dropped store is a miss later, not a lost answer."""
        return False

    @property
    def _scheduler(self) -> SchedulerHalf:
        assert self.scheduler_half is not None, "a scheduler hook was called on a worker"
        return self.scheduler_half

    @property
    def _worker(self) -> WorkerHalf:
        assert self.worker_half is not None, "a worker hook was called on the scheduler"
        return self.worker_half

    # Scheduler side.

    def bind_gpu_block_pool(self, gpu_block_pool: Any) -> None:
        """The engine's block pool exists now."""
        self._scheduler.bind_device_blocks(DeviceBlocks(gpu_block_pool))

    def accept_ranks(self, reports: Mapping[tuple[int, int], RankReport]) -> None:
        """All workers have registered: compare their tables, open the pools."""
        self._scheduler.accept_ranks(reports)

    def get_num_new_matched_tokens(
        self, request: "Request", num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        """Tokens that can be restored beyond the engine's own, always loaded between steps.

        ``None`` while they are being read from disk: the engine asks again.
        """
        tokens = self._scheduler.matched_tokens(request, num_computed_tokens)
        return tokens, bool(tokens)

    def update_state_after_alloc(
        self, request: "Request", blocks: "KVCacheBlocks", num_external_tokens: int
    ) -> None:
        """The engine gave blocks to the request."""
        self._scheduler.after_allocation(request, blocks.get_block_ids(), num_external_tokens)

    def build_connector_meta(self, scheduler_output: "SchedulerOutput") -> StepMetadata:
        """The copies of this step."""
        return self._scheduler.build_step(scheduler_output)

    def update_connector_output(self, connector_output: "KVConnectorOutput") -> None:
        """What the workers did."""
        report = connector_output.kv_connector_worker_meta
        if isinstance(report, StepReport):
            self._scheduler.accept_report(report)

    def request_finished_all_groups(
        self, request: "Request", block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        """Nothing is still being read from the blocks: stores end within their step."""
        self._scheduler.request_finished(request)
        return False, None

    def request_finished(
        self, request: "Request", block_ids: list[int]
    ) -> tuple[bool, dict[str, Any] | None]:
        """The same for engines that hand over one group."""
        return self.request_finished_all_groups(request, (block_ids,))

    def reset_cache(self) -> bool | None:
        """Forget everything that is stored."""
        self._scheduler.reset()
        return True

    # Worker side.

    def register_kv_caches(self, kv_caches: "dict[str, torch.Tensor]") -> None:
        """The engine's cache exists now."""
        self._worker.register(kv_caches)

    def get_handshake_metadata(self) -> RankReport | None:
        """This rank's table, for the scheduler."""
        return self._worker.rank_report()

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        """Begin this step's loads and moves, before or after its forward pass."""
        step = self._step()
        self._worker.begin_loads(step)
        self._worker.begin_moves(step)
        if not step.has_forward:
            self._end(step)  # not every engine calls `wait_for_save` then

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Nothing to wait for: a request waits until its load is acknowledged."""

    def save_kv_layer(
        self, layer_name: str, kv_layer: "torch.Tensor", attn_metadata: Any, **kwargs: Any
    ) -> None:
        """Nothing per layer: a page is copied whole, after the forward pass."""

    def wait_for_save(self) -> None:
        """The forward pass has been run."""
        step = self._step()
        if step.has_forward:
            self._end(step)

    def take_receives(self) -> hooks.Receives:
        """Loads that are over."""
        return self._worker.take_receives(self._step())

    def build_connector_worker_meta(self) -> StepReport | None:
        """This rank's acknowledgements."""
        return self._worker.take_report()

    def shutdown(self) -> None:
        """The worker ends: finish what was accepted for the disk."""
        if self.worker_half:
            self.worker_half.close()

    def _end(self, step: StepMetadata) -> None:
        """Carry out the step's stores, and begin what the disk has to do."""
        self._worker.run_stores(step)
        self._worker.run_disk(step)

    def _step(self) -> StepMetadata:
        step = self._get_connector_metadata()
        assert isinstance(step, StepMetadata)
        return step

    # Statistics.

    def get_kv_connector_stats(self) -> GroupedStats | None:
        """Counters of the scheduler half; workers count nothing of their own."""
        return self.scheduler_half.take_stats() if self.scheduler_half else None

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> GroupedStats:
        """Statistics from their wire form."""
        return GroupedStats(data=data) if data else GroupedStats()

    @classmethod
    def build_prom_metrics(
        cls,
        vllm_config: "VllmConfig",
        metric_types: dict[Any, Any],
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> GroupedPromMetrics:
        """Prometheus metrics of this connector."""
        return GroupedPromMetrics(vllm_config, metric_types, labelnames, per_engine_labelvalues)
