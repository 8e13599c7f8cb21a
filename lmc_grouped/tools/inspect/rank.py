"""One rank of a vLLM engine that has layers and no weights.

vLLM's start-up asks its executor for the cache specs of the layers, for the
memory there is, and hands back the groups. `BareRank` gives the specs, and a
stand-in for engine and executor answers the rest.
"""

import tempfile
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheSpec

    from lmc_grouped.tools.inspect.messages import Device

MEMORY_BYTES = 2**50
"""What the rank claims to have: no model's longest context is refused for want of it."""


class BareRank:
    """Rank 0 of the engine that `vllm_config` describes.

    It stands for all ranks of a tensor-parallel engine: their specs are equal,
    or vLLM does not start.
    """

    def __init__(self, vllm_config: "VllmConfig", device: "Device") -> None:
        """Build the model's layers. Raises whatever vLLM raises for the model."""
        self.vllm_config = vllm_config
        self._join_parallel_groups()
        self._build_layers(device)

    def find_groups(self) -> "KVCacheConfig":
        """Let the engine's own start-up group the layers: worker side, nothing unwrapped."""
        from vllm.v1.engine.core import EngineCore

        core = _EngineStandIn(self)
        EngineCore._initialize_kv_caches(core, self.vllm_config)
        return core.kv_cache_config

    def specs(self) -> "dict[str, KVCacheSpec]":
        """The cache spec of each layer that needs one."""
        from vllm.config import set_current_vllm_config
        from vllm.v1.worker.gpu.attn_utils import get_kv_cache_spec

        with set_current_vllm_config(self.vllm_config):
            return get_kv_cache_spec(self.vllm_config)

    def _join_parallel_groups(self) -> None:
        """Make layers divide their heads as on one of several ranks.

        Groups of one process, so that nobody waits for the other ranks; layers only
        ask for the size while they are built, and send nothing.
        """
        from vllm.config import set_current_vllm_config
        from vllm.distributed import parallel_state

        with tempfile.TemporaryDirectory() as directory, set_current_vllm_config(self.vllm_config):
            parallel_state.init_distributed_environment(
                1, 0, f"file://{directory}/store", 0, backend="gloo"
            )
            parallel_state.initialize_model_parallel()
        size = self.vllm_config.parallel_config.tensor_parallel_size
        parallel_state.get_tp_group().world_size = size

    def _build_layers(self, device: "Device") -> None:
        import torch
        from vllm.model_executor.model_loader.utils import initialize_model
        from vllm.platforms import current_platform
        from vllm.utils.torch_utils import set_default_torch_dtype

        dtype = self.vllm_config.model_config.dtype
        with set_default_torch_dtype(dtype), torch.device(device):
            self.model = initialize_model(self.vllm_config)
        # What vLLM's executors do once the layers exist.
        current_platform.update_block_size_for_backend(self.vllm_config)


class _EngineStandIn:
    """What the engine's start-up needs of an engine and its executor."""

    kv_cache_config: "KVCacheConfig"

    def __init__(self, rank: BareRank) -> None:
        self.rank = rank
        self.vllm_config = rank.vllm_config
        self.model_executor = self

    def get_kv_cache_specs(self) -> "list[dict[str, KVCacheSpec]]":
        """Per rank."""
        return [self.rank.specs()]

    def get_supported_kv_cache_layouts(self) -> list[list[str]]:
        """Per rank."""
        from vllm.v1.worker.worker_base import WorkerBase

        return [WorkerBase.get_supported_kv_cache_layouts(self)]

    def set_kv_cache_layout(self, name: str) -> None:
        """Nothing to do: the rank shares the engine's configuration."""

    def determine_available_memory(self) -> list[int]:
        """Per rank, in bytes."""
        return [MEMORY_BYTES]

    def initialize_from_config(self, kv_cache_configs: "list[KVCacheConfig]") -> None:
        """The groups are known; nothing is allocated."""
        self.kv_cache_config = kv_cache_configs[0]

    def compile_or_warm_up_model(self) -> None:
        """Nothing will run."""

    def collective_rpc(self, method: str, args: tuple[Any, ...] = ()) -> None:
        """The engine tells its workers a shorter context length; they share its own."""
