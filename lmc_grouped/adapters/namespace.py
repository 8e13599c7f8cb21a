"""What vLLM says about everything that changes the meaning of stored bytes."""

import hashlib
import json
import os
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lmc_grouped.adapters import engine
from lmc_grouped.core.groups import GroupTable, Kind
from lmc_grouped.core.keys import (
    Namespace,
    RankLayout,
    check_hash_seed,
    layout_of,
    stored_groups,
)

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig

_SEED_VARIABLE = "PYTHONHASHSEED"
_MODEL_FILES = ("*.safetensors", "*.bin", "*.pt", "*.gguf", "*.json")


def check_hashes(vllm_config: "VllmConfig") -> None:
    """Refuse block hashes that the next process would not compute again.

    Raises:
        NamespaceError: ``PYTHONHASHSEED`` is not set and the hash in use needs it.
    """
    algorithm = vllm_config.cache_config.prefix_caching_hash_algo
    check_hash_seed(
        algorithm,
        os.environ.get(_SEED_VARIABLE),
        default_is_fixed=_default_seed(_hash_function(algorithm)) is not None,
    )


def build_namespace(
    vllm_config: "VllmConfig",
    kv_cache_config: "KVCacheConfig",
    table: GroupTable,
    *,
    shared_rows: bool,
) -> Namespace:
    """The namespace of one rank's pages; ``check_hashes`` has passed.

    Args:
        table: with the page bytes and layers of this rank.
        shared_rows: whether all groups take rows of one size.
    """
    algorithm = vllm_config.cache_config.prefix_caching_hash_algo
    return Namespace(
        layout=layout_of(table, shared_rows=shared_rows),
        model=vllm_config.model_config.model,
        model_revision=_model_revision(vllm_config.model_config),
        dtype=_cache_dtype(vllm_config, table),
        groups=stored_groups(table),
        alignment_tokens=table.alignment_tokens,
        hash_block_tokens=table.hash_block_tokens,
        attention_backend=_backends(vllm_config, table),
        kv_layout=engine.surface().kv_layout(kv_cache_config),
        vllm_version=engine.installed_version(),
        lmcache_version=metadata.version("lmcache"),
        ranks=_rank_layout(vllm_config.parallel_config),
        hash_algorithm=algorithm,
        root_hash=_root_hash(algorithm),
    )


def store_rank(vllm_config: "VllmConfig") -> int:
    """The number of this worker's store: data-parallel engines keep stores of their own."""
    parallel = vllm_config.parallel_config
    return parallel.data_parallel_rank * parallel.world_size + parallel.rank


def _hash_function(algorithm: str) -> Callable[[Any], bytes]:
    from vllm.utils.hashing import get_hash_fn_by_name

    return get_hash_fn_by_name(algorithm)


def _default_seed(hash_function: Callable[[Any], bytes]) -> str | None:
    """What the chain starts from when the variable is unset; ``None``: random bytes.

    vLLM 0.32 has a constant for its cryptographic hashes; a version without that name
    is taken to have none.
    """
    from vllm.v1.core import kv_cache_utils

    seed = getattr(kv_cache_utils, "DEFAULT_NONE_HASH_SEED", None)
    random_ones: Any = getattr(kv_cache_utils, "_NON_CRYPTO_HASH_FUNCTIONS", frozenset())
    return None if hash_function in random_ones else seed


def _root_hash(algorithm: str) -> str:
    """vLLM's ``NONE_HASH``: only the engine's own process has it, so it is computed again."""
    hash_function = _hash_function(algorithm)
    seed = os.environ.get(_SEED_VARIABLE, _default_seed(hash_function))
    return hash_function(seed).hex()


def _model_revision(model_config: Any) -> str:
    """The revision as far as it is known, and a digest of the model's configuration.

    A directory has no revision: the names, sizes and times of its files stand for it,
    so that weights that were trained on in place are another model.
    """
    hf_config = model_config.hf_config
    revision = model_config.revision or getattr(hf_config, "_commit_hash", None)
    directory = Path(model_config.model)
    if directory.is_dir():
        files = sorted(path for pattern in _MODEL_FILES for path in directory.glob(pattern))
        stats = [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in files]
        revision = f"files {_digest(stats)}"
    configuration = [hf_config.to_json_string(), model_config.quantization, str(model_config.dtype)]
    return f"{revision or 'unknown revision'}, configuration {_digest(configuration)}"


def _cache_dtype(vllm_config: "VllmConfig", table: GroupTable) -> str:
    cache = vllm_config.cache_config
    attention = str(vllm_config.model_config.dtype).removeprefix("torch.")
    dtype = attention if cache.cache_dtype == "auto" else cache.cache_dtype
    if not any(group.kind is Kind.RECURRENT for group in table.groups):
        return dtype
    return f"{dtype}, states {cache.mamba_cache_dtype} and {cache.mamba_ssm_cache_dtype}"


def _backends(vllm_config: "VllmConfig", table: GroupTable) -> str:
    """Names of the layers' backends; which layer has which follows from the model."""
    layers = vllm_config.compilation_config.static_forward_context
    used = (layers[name] for group in table.groups for name in group.layers if name in layers)
    return ",".join(sorted({layer.get_attn_backend().get_name() for layer in used}))


def _rank_layout(parallel: Any) -> RankLayout:
    return RankLayout(
        world_size=parallel.world_size,
        tensor_parallel=parallel.tensor_parallel_size,
        pipeline_parallel=parallel.pipeline_parallel_size,
        decode_context_parallel=parallel.decode_context_parallel_size,
        prefill_context_parallel=getattr(parallel, "prefill_context_parallel_size", 1),
    )


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:16]


def engine_root_hash() -> str | None:
    """vLLM's ``NONE_HASH`` in this process; ``None`` where it has none (yet)."""
    from vllm.v1.core import kv_cache_utils

    root = getattr(kv_cache_utils, "NONE_HASH", None)
    return None if root is None else root.hex()
