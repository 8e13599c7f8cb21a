"""Run as a program: ask vLLM for the groups of one model.

A process of its own, because vLLM sets up process-wide state and writes to stdout,
and because a model may bring it down. The request is JSON on stdin; the reply goes
to the file named on the command line.
"""

import json
import sys
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec

from lmc_grouped.tools.inspect.messages import Device, Found, Refused, Reply, Request


def find(request: Request) -> Found:
    """Ask vLLM. Raises whatever vLLM raises for a model or settings it does not take."""
    from lmc_grouped.adapters import engine, vllm_groups

    engine.check_version()
    import vllm
    from vllm.engine.arg_utils import EngineArgs
    from vllm.platforms import current_platform
    from vllm.plugins import load_general_plugins

    from lmc_grouped.tools.inspect.rank import BareRank

    load_general_plugins()
    overrides = plain_weights(json.loads((Path(request.model_dir) / "config.json").read_bytes()))
    vllm_config = EngineArgs(
        model=request.model_dir,
        skip_tokenizer_init=True,
        dtype=request.dtype,
        mamba_ssm_cache_dtype=request.state_dtype,
        max_model_len=request.max_model_tokens,
        block_size=request.block_tokens,
        tensor_parallel_size=request.workers,
        distributed_executor_backend="mp",
        enable_prefix_caching=True,
        enforce_eager=True,
        hf_overrides=overrides,
    ).create_engine_config()
    kv_cache_config = BareRank(vllm_config, request.device).find_groups()
    engine.check_hybrid_manager(kv_cache_config, vllm_config)
    alignment_tokens, hash_block_tokens = engine.block_sizes(kv_cache_config, vllm_config)
    table = vllm_groups.build_group_table(
        kv_cache_config, alignment_tokens=alignment_tokens, hash_block_tokens=hash_block_tokens
    )
    asked = f"vLLM {vllm.__version__} on {current_platform.device_name}"
    if overrides:
        asked += ", weights taken as not quantised"
    if table.has_recurrent:
        asked += f", recurrent states as {vllm_config.cache_config.mamba_ssm_cache_dtype}"
    return Found(table=table, max_model_tokens=vllm_config.model_config.max_model_len, engine=asked)


def plain_weights(settings: dict[str, Any]) -> dict[str, Any]:
    """What to override in a model's config.json so that its weights are not quantised.

    The cache does not depend on them, and vLLM builds quantised layers only where it
    has kernels for them, which a CPU often lacks. A checkpoint that quantises its
    cache too is left alone.
    """
    quantisation = settings.get("quantization_config")
    if quantisation is None or _quantises_cache(quantisation):
        return {}
    return {"quantization_config": None}


def _quantises_cache(settings: Any) -> bool:
    """Whether a setting about the KV cache has a value, at any depth."""
    if isinstance(settings, list):
        return any(map(_quantises_cache, settings))
    if not isinstance(settings, dict):
        return False
    return any(
        ("kv_cache" in key and value not in (None, {}, [])) or _quantises_cache(value)
        for key, value in settings.items()
    )


def describe(error: BaseException) -> str:
    """An error as one or two sentences, without what only a traceback's reader needs."""
    from pydantic import ValidationError

    if isinstance(error, ValidationError):
        return "; ".join(str(item["msg"]).removeprefix("Value error, ") for item in error.errors())
    return str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"


def main(reply_path: Path) -> None:
    """Answer one request; an uncaught error is answered too, and still traced."""
    request = msgspec.json.decode(sys.stdin.buffer.read(), type=Request)

    def write(reply: Reply) -> None:
        reply_path.write_bytes(msgspec.json.encode(reply))

    def refuse(
        kind: type[BaseException], error: BaseException, traceback: TracebackType | None
    ) -> None:
        reason = describe(error)
        needs_memory = request.device is Device.META and "meta tensor" in reason
        write(Refused(reason=reason, needs_memory=needs_memory))
        sys.__excepthook__(kind, error, traceback)

    sys.excepthook = refuse
    write(find(request))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
