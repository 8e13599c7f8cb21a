"""Run two tensor-parallel workers and print what they answered, as JSON.

A program of its own: tensor-parallel workers are processes.
"""

import json
import sys
from typing import Any


def damage(worker: Any, slots: dict[int, list[int]], rank: int) -> int:
    """Zero pages in one rank's pools; runs in every worker."""
    from vllm.distributed.kv_transfer import get_kv_transfer_group

    if worker.rank != rank:
        return 0
    half = get_kv_transfer_group().worker_half
    for group_id, pages in slots.items():
        for slot in pages:
            half.region.page(group_id, slot)[:] = 0
    return len(slots)


def group_table(worker: Any) -> str:
    """What one rank made of the engine's groups; runs in every worker."""
    from vllm.distributed.kv_transfer import get_kv_transfer_group

    return get_kv_transfer_group().worker_half.table.to_json().decode()


def main(model_dir: str) -> None:
    from vllm import LLM, SamplingParams
    from vllm.config import KVTransferConfig

    llm = LLM(
        model_dir,
        block_size=32,
        dtype="float32",
        max_model_len=4096,
        enforce_eager=True,
        tensor_parallel_size=2,
        kv_transfer_config=KVTransferConfig(
            kv_connector="LMCacheConnectorV1",
            kv_connector_module_path="lmc_grouped.connector",
            kv_role="kv_both",
        ),
    )
    sampling = SamplingParams(temperature=0, max_tokens=6, logprobs=0, ignore_eos=True)
    prompt = [1 + (i * i * 7 + i) % 199 for i in range(1500)]

    def run() -> dict[str, Any]:
        output = llm.generate([{"prompt_token_ids": prompt}], sampling, use_tqdm=False)[0]
        completion = output.outputs[0]
        steps = zip(completion.logprobs, completion.token_ids, strict=True)
        return {
            "ids": list(completion.token_ids),
            "logprobs": [step[token].logprob for step, token in steps],
            "cached_tokens": output.num_cached_tokens,
        }

    answers: dict[str, Any] = {
        "tables": llm.collective_rpc(group_table),
        "cold": run(),
        "local": run(),
    }
    llm.reset_prefix_cache()
    answers["restored"] = run()
    for rank in (0, 1):
        llm.reset_prefix_cache()
        # The first prompt got the first slots, of the windows for their tail of 8 pages.
        last = {0: [7], 1: [7], 2: [1500 // 32 - 1]}
        damaged = llm.collective_rpc(damage, args=(last, rank))
        assert sorted(damaged) == [0, 3]
        answers[f"damaged_{rank}"] = run()
        llm.reset_prefix_cache(reset_connector=True)
        assert run()["cached_tokens"] == 0
    sys.stdout.write(json.dumps(answers) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
