"""An engine with LMCache's multi-process connector, in a process of its own: ``python -m``.

Reads what to run as JSON from standard input, prints the answers as one line of
JSON. A process of its own, because another LMCache release comes first on its
path than the one the tests have.
"""

import json
import os
import sys
import time
from importlib import metadata
from typing import Any

STORED_SECONDS = 10.0


def main() -> int:
    """Cold, local hit, restored after a reset with every cache tensor overwritten, damaged."""
    wanted = json.load(sys.stdin)
    report = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    llm = _engine(wanted)
    import lmcache

    prompt = wanted["prompt"]
    cold = _run(llm, prompt)
    local = _run(llm, prompt)
    restored = _restored(llm, prompt, wanted["expected_tokens"])
    connector = llm.llm_engine.engine_core.engine_core.scheduler.connector
    answers = {
        "lmcache": [metadata.version("lmcache"), lmcache.__file__],
        "spans": list(connector._group_tokens_per_block),
        "alignment": connector._hit_alignment_tokens,
        "cold": cold,
        "local": local,
        "restored": restored,
        "damaged": _damaged(llm, prompt),
    }
    report.write(json.dumps(answers) + "\n")
    report.flush()
    llm.llm_engine.engine_core.shutdown()
    return 0


def _engine(wanted: dict[str, Any]) -> Any:
    from vllm import LLM
    from vllm.config import KVTransferConfig
    from vllm.platforms import current_platform

    # Now, and not once LMCache is imported: vLLM 0.32's search for kernels to
    # replace stumbles over a module that LMCache loads.
    current_platform.register_triton_kernel_overrides()
    type(current_platform).register_triton_kernel_overrides = lambda *_: None
    return LLM(
        wanted["model"],
        dtype="float32",
        block_size=wanted["block_tokens"],
        max_model_len=4096,
        enforce_eager=True,
        enable_prefix_caching=True,
        disable_log_stats=False,
        kv_transfer_config=KVTransferConfig(
            kv_connector="LMCacheMPConnector",
            kv_role="kv_both",
            kv_connector_extra_config={"lmcache.mp.port": wanted["port"]},
        ),
    )


def _run(llm: Any, prompt: list[int]) -> dict[str, Any]:
    from vllm import SamplingParams

    sampling = SamplingParams(temperature=0, max_tokens=6, logprobs=0, ignore_eos=True)
    (output,) = llm.generate([{"prompt_token_ids": prompt}], sampling, use_tqdm=False)
    completion = output.outputs[0]
    steps = zip(completion.logprobs, completion.token_ids, strict=True)
    return {
        "ids": list(completion.token_ids),
        "logprobs": [step[token].logprob for step, token in steps],
        "cached_tokens": output.num_cached_tokens or 0,
    }


def _restored(llm: Any, prompt: list[int], expected_tokens: int) -> dict[str, Any]:
    """Stores settle in later steps; asked again until the expected hit or for some seconds."""
    deadline = time.monotonic() + STORED_SECONDS
    while True:
        _reset(llm)
        answer = _run(llm, prompt)
        if answer["cached_tokens"] >= expected_tokens > 0 or time.monotonic() > deadline:
            return answer
        time.sleep(0.5)


def _damaged(llm: Any, prompt: list[int]) -> dict[int, dict[str, Any]]:
    """group_id -> local hit whose last page of the group was zeroed, of groups with pages."""
    core = llm.llm_engine.engine_core.engine_core
    config = core.scheduler.kv_cache_config
    answers = {}
    for group_id, group in enumerate(config.kv_cache_groups):
        _reset(llm)
        _run(llm, prompt)
        blocks = _hit_blocks(core, prompt)[group_id]
        if not blocks or blocks[-1].is_null:
            continue
        for name in group.layer_names:
            pages = _layers(llm)[name].kv_cache.unflatten(0, (config.num_blocks, -1))
            pages[blocks[-1].block_id] = 0
        answers[group_id] = _run(llm, prompt)
    return answers


def _hit_blocks(core: Any, prompt: list[int]) -> Any:
    """Per group, the cached blocks that the prompt would resume from."""
    from vllm import SamplingParams
    from vllm.v1.request import Request

    sampling = SamplingParams(max_tokens=1)
    request = Request("hit", prompt, sampling, None, block_hasher=core.request_block_hasher)
    return core.scheduler.kv_cache_manager.get_computed_blocks(request)[0].blocks


def _reset(llm: Any) -> None:
    """Empty the engine's own cache and overwrite its bytes."""
    deadline = time.monotonic() + 2 * STORED_SECONDS
    while not llm.reset_prefix_cache():
        # A block is held until a later step hears that it was stored.
        assert time.monotonic() < deadline
        _run(llm, [7, 8, 9])
        llm.llm_engine.step()  # the small request itself is heard of one step later
    _overwrite_caches(llm)


def _overwrite_caches(llm: Any) -> None:
    """So that what is right afterwards was restored or computed."""
    for layer in _layers(llm).values():
        layer.kv_cache.fill_(3.0)


def _layers(llm: Any) -> dict[str, Any]:
    return llm.llm_engine.vllm_config.compilation_config.static_forward_context


if __name__ == "__main__":
    sys.exit(main())
