"""Ask the engine that is imported where it keeps what a connector needs.

``python -m compat.engine_surface`` prints the answers as JSON; with another
engine first on the path it is that one which answers.
"""

import dataclasses
import importlib
import inspect
import json
import os
import sys
from typing import Any

QUESTIONS = {
    "block tables": "where a step's whole block tables are",
    "boundary states": "where recurrent states are handed off",
    "cacheable": "what says which groups are prefix-cacheable",
    "failed loads": "how a failed load is reported",
    "tensors": "how the place of a layer's cache is described",
    "transfer flag": "whether a group says that it is not to be transferred",
    "compressed pages": "what says how many tokens one state covers",
    "context parallel": "what scales spans under context parallel",
    "alignment": "where the alignment of hits comes from",
    "junction": "the field that ends a chunk at a shared prefix",
    "registration": "what is checked of a connector beyond group support",
    "stock connector": "whether the stock LMCacheConnectorV1 takes groups",
}
"""What is asked, in words."""


def surface() -> dict[str, str]:
    """One short answer per question."""
    interface = importlib.import_module("vllm.v1.kv_cache_interface")
    base = importlib.import_module("vllm.distributed.kv_transfer.kv_connector.v1.base")
    utils = importlib.import_module("vllm.v1.core.kv_cache_utils")
    output = _fields(importlib.import_module("vllm.v1.core.sched.output").SchedulerOutput)
    config = interface.KVCacheConfig
    has_state = "kv_connector_block_state" in output
    return {
        "block tables": "kv_connector_block_state" if has_state else "nowhere",
        "boundary states": _boundary_states(output),
        "cacheable": _cacheable(interface),
        "failed loads": "requests" if _has(base, "get_transfer_results") else "blocks",
        "tensors": _tensors(_fields(interface.KVCacheTensor)),
        "transfer flag": _first(_fields(interface.KVCacheGroupSpec), "enable_kv_transfer"),
        "compressed pages": _first(
            _fields(interface.MLAAttentionSpec), "tokens_per_state", "compress_ratio"
        ),
        "context parallel": _first(
            dir(utils) + sorted(_fields(interface.FullAttentionSpec)),
            "resolve_dcp_kv_block_size",
            "dcp_sharded",
        ),
        "alignment": _first(
            sorted(_fields(config)) + dir(utils),
            "cache_hit_alignment_tokens",
            "resolve_kv_cache_block_sizes",
        ),
        "junction": _junction(),
        "registration": _first(dir(base), "SupportsVmmSafeTransfers"),
        "stock connector": _stock_connector(base),
    }


def _fields(kind: Any) -> set[str]:
    return {item.name for item in dataclasses.fields(kind)}


def _first(known: Any, *names: str) -> str:
    return next((name for name in names if name in known), "nothing")


def _has(base: Any, hook: str) -> bool:
    return hasattr(base.KVConnectorBase_V1, hook)


def _boundary_states(output: set[str]) -> str:
    if "boundary_state_offloads" in output:
        return "SchedulerOutput"
    return "kv_connector_block_state" if "kv_connector_block_state" in output else "nowhere"


def _cacheable(interface: Any) -> str:
    if hasattr(interface.KVCacheConfig, "prefix_cacheable_group_ids"):
        return "KVCacheConfig.prefix_cacheable_group_ids"
    return "spec.prefix_cacheable" if hasattr(interface.KVCacheSpec, "prefix_cacheable") else "no"


def _tensors(fields: set[str]) -> str:
    return "layers and strides" if "layer_stride" in fields else "size and shared_by"


def _junction() -> str:
    request = importlib.import_module("vllm.v1.request").Request
    name = "shared_prefix_boundary"
    return f"Request.{name}" if name in inspect.getsource(request) else "nothing"


def _stock_connector(base: Any) -> str:
    module = "vllm.distributed.kv_transfer.kv_connector.v1.lmcache_connector"
    stock = importlib.import_module(module).LMCacheConnectorV1
    return "yes" if issubclass(stock, base.SupportsHMA) else "no"


def main() -> int:
    """Answers on standard output; what the engine prints goes to standard error."""
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as report:
        os.dup2(2, 1)
        import vllm

        found = {"vllm": str(vllm.__file__), "surface": surface()}
        report.write(json.dumps(found) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
