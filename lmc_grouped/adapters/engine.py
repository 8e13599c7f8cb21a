"""One surface over the engines: vLLM 0.30 to 0.33 and ReVolta 0.1.4.

The rest of the package asks here and does not know versions. What the two lines
of engines call differently is in ``surface_vllm.py`` and ``surface_revolta.py``.
Hooks by version: ``docs/engines.md``.
"""

import logging
from collections.abc import Iterable
from importlib import metadata
from typing import TYPE_CHECKING, Any

from lmc_grouped.adapters import detection
from lmc_grouped.adapters.surface import BoundaryOffers, StepTables, Surface
from lmc_grouped.core.groups import GroupTable, Kind

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheSpec
    from vllm.v1.request import Request

logger = logging.getLogger(__name__)

OLDEST_VLLM = (0, 30)
SERVED = "vLLM 0.30 to 0.33 or ReVolta 0.1.4"
"""Whose hooks we know."""
_HYBRID_OFF = (
    "the hybrid KV cache manager is off (--disable-hybrid-kv-cache-manager), so this hybrid "
    "model has no groups to store; start without that flag"
)


class EngineError(RuntimeError):
    """The engine found cannot be served: says what was found and what is needed."""


def check_version(found: str | None = None) -> None:
    """Refuse an engine that lacks the hooks we need, before they are imported from it.

    An engine with ReVolta's names passes whatever its version: it counts its own.

    Args:
        found: the version to judge; default: the installed engine's.

    Raises:
        EngineError: the engine is missing, is a vLLM older than 0.30, or has the
            hooks of neither line.
    """
    version = found or installed_version()
    known = detection.detect()
    if known is not None and known.name != "vLLM":
        return
    numbers = version.split("+")[0].split(".")
    if not (len(numbers) >= 2 and numbers[0].isdigit() and numbers[1].isdigit()):
        logger.warning("vLLM version %r is not a release; assuming the newest known hooks", version)
    elif (int(numbers[0]), int(numbers[1])) < OLDEST_VLLM:
        raise EngineError(
            f"vLLM {version} is too old for lmc_grouped: its connectors cannot see KV-cache "
            f"groups; install vLLM {OLDEST_VLLM[0]}.{OLDEST_VLLM[1]} or newer"
        )
    surface()


def surface() -> Surface:
    """The words of the installed engine.

    Raises:
        EngineError: it has the hooks of no engine we know.
    """
    known = detection.detect()
    if known is None:
        raise EngineError(
            f"the installed engine calls itself vLLM {installed_version()} but hands its "
            "connectors neither vLLM's kv_connector_block_state and get_transfer_results() nor "
            f"ReVolta's boundary_state_offloads and prefix_cacheable; install {SERVED}"
        )
    return known


def installed_version() -> str:
    """Of vLLM.

    Raises:
        EngineError: vLLM cannot be imported.
    """
    try:
        import vllm
    except ImportError as error:
        raise EngineError(
            f"vLLM cannot be imported ({error}); install vLLM 0.30 or newer"
        ) from error
    version = getattr(vllm, "__version__", None)
    return version if isinstance(version, str) else metadata.version("vllm")


def log_like_the_engine() -> None:
    """Send our log lines where vLLM's go, once."""
    ours, engines = logging.getLogger("lmc_grouped"), logging.getLogger("vllm")
    if not ours.handlers and engines.handlers:
        ours.handlers = list(engines.handlers)
        ours.setLevel(engines.level)
        ours.propagate = False


def span_tokens(spec: "KVCacheSpec", context_parallel: int) -> int:
    """Tokens behind one block id of the spec's group."""
    return surface().span_tokens(spec, context_parallel)


def page_bytes(spec: "KVCacheSpec") -> int:
    """Bytes of content in one block of one layer, padding left out."""
    return surface().page_bytes(spec)


def block_sizes(kv_cache_config: "KVCacheConfig", vllm_config: "VllmConfig") -> tuple[int, int]:
    """``(alignment_tokens, hash_block_tokens)``: vLLM's own answer, scratch rings included."""
    from vllm.v1.core.kv_cache_utils import resolve_kv_cache_block_sizes

    return resolve_kv_cache_block_sizes(kv_cache_config, vllm_config)


def context_parallel(vllm_config: "VllmConfig") -> int:
    """Decode-context-parallel size."""
    return vllm_config.parallel_config.decode_context_parallel_size


def pipeline_parallel(vllm_config: "VllmConfig") -> int:
    """Pipeline-parallel size: ranks of different stages hold different layers."""
    return vllm_config.parallel_config.pipeline_parallel_size


def max_model_tokens(vllm_config: "VllmConfig") -> int:
    """The longest request the engine serves."""
    return vllm_config.model_config.max_model_len


def check_hybrid_manager(kv_cache_config: "KVCacheConfig", vllm_config: "VllmConfig") -> None:
    """Refuse a hybrid model whose groups vLLM has been told to melt into one.

    Raises:
        EngineError: the hybrid manager is off and a layer is not full attention.
    """
    if not vllm_config.scheduler_config.disable_hybrid_kv_cache_manager:
        return
    for group in kv_cache_config.kv_cache_groups:
        for leaf in surface().leaves(group.kv_cache_spec):
            if getattr(leaf, "sliding_window", None) or hasattr(leaf, "mamba_cache_mode"):
                raise EngineError(_HYBRID_OFF)


def drafter_groups(kv_cache_config: "KVCacheConfig", vllm_config: "VllmConfig") -> frozenset[int]:
    """Groups that must prove one page more than they load (draft layers).

    Where a drafter is on and no group carries vLLM's mark, its layers share the
    full-attention groups, and those prove the extra page.
    """
    speculative = vllm_config.speculative_config
    if speculative is None or not surface().drops_volatile_block(speculative):
        return frozenset()
    groups = kv_cache_config.kv_cache_groups
    marked = frozenset(i for i, group in enumerate(groups) if group.is_eagle_group)
    if marked:
        return marked
    from vllm.v1.kv_cache_interface import FullAttentionSpec

    leaves = [surface().leaves(group.kv_cache_spec) for group in groups]
    shared = frozenset(
        i for i, specs in enumerate(leaves) if all(isinstance(s, FullAttentionSpec) for s in specs)
    )
    logger.info(
        "a drafter is on and no group is marked as its own: groups %s hold its layers",
        sorted(shared),
    )
    return shared


def retention_tokens(kv_cache_config: "KVCacheConfig", vllm_config: "VllmConfig") -> int | None:
    """The engine's own ``prefix_cache_retention_interval``."""
    return surface().retention_tokens(kv_cache_config, vllm_config)


def step_tables(table: GroupTable) -> StepTables:
    """Where block tables are read from, step by step."""
    return surface().step_tables(table)


def boundary_offers(scheduler_output: "SchedulerOutput") -> BoundaryOffers:
    """Per request: ``(group_id, block_id, boundary_tokens)`` of states written this step."""
    return surface().boundary_offers(scheduler_output)


def preempted(scheduler_output: "SchedulerOutput") -> Iterable[str]:
    """Requests that lost their blocks since the last step."""
    return scheduler_output.preempted_req_ids or ()


def record_junction(request: "Request", junction_tokens: int) -> bool:
    """Ask the scheduler to end a chunk at a boundary the host tier proved.

    ``shared_prefix_boundary`` is a field vLLM does not document for connectors.

    Returns:
        Whether this engine has the field.
    """
    if not hasattr(request, "shared_prefix_boundary"):
        return False
    request.shared_prefix_boundary = max(request.shared_prefix_boundary or 0, junction_tokens)
    return True


def junction(request: "Request") -> int:
    """The junction recorded on the request, by the engine or by us; 0 where there is none."""
    return getattr(request, "shared_prefix_boundary", None) or 0


def host_hit_source() -> Any:
    """vLLM's label for tokens that came from host memory; ``None`` where it has none."""
    try:
        from vllm.v1.metrics.cache_hit_source import CacheHitSource
    except ImportError:
        return None
    return CacheHitSource.HOST


def resized_block_size(table: GroupTable, vllm_config: "VllmConfig") -> tuple[int, int] | None:
    """``(configured, needed)`` when the engine lost the block size its states need.

    vLLM 0.32 on CPU resets ``cache_config.block_size`` after it was resolved;
    recurrent boundary states then never materialise, in its own prefix cache
    either. Passing ``--block-size`` avoids it.
    """
    needed = {g.span_tokens for g in table.groups if g.kind is Kind.RECURRENT}
    configured = vllm_config.cache_config.block_size
    if needed and configured not in needed:
        return configured, min(needed)
    return None
