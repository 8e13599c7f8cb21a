"""Run as a program: one engine, whose requests alternate between short and long.

A process of its own, because vLLM sets up process-wide state. The task is JSON on
stdin; the result goes to the file named on the command line.
"""

import os
import random
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from lmc_grouped.core import extent_plan
from lmc_grouped.core.groups import GroupSpec
from lmc_grouped.tools.bench_balance.figures import Phase, Result, Round, Side, Task
from lmc_grouped.tools.bench_balance.meter import Meter
from lmc_grouped.tools.tiny_models import find_recipe

VOCABULARY = range(1, 200)
CONCURRENT_REQUESTS = 4
STEP_TOKENS = 512
OUTPUT_TOKENS = 4


def force_extents(pages: int) -> None:
    """From here on extents are as large as that many of the largest page.

    No setting does this, on purpose: the plan knows better.
    """

    def one_size(groups: tuple[GroupSpec, ...], budget_bytes: int) -> Iterator[int]:
        return iter([pages * max(group.page_bytes for group in groups)])

    extent_plan._candidates = one_size


def start(task: Task) -> Any:
    """vLLM's engine, all of it in this process."""
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    from vllm import LLM
    from vllm.config import KVTransferConfig

    recipe = find_recipe(task.model)
    return LLM(
        task.model_dir,
        block_size=recipe.block_size_tokens,
        dtype=recipe.dtype,
        mamba_ssm_cache_dtype=recipe.state_dtype,
        max_model_len=8192,
        max_num_seqs=CONCURRENT_REQUESTS,
        max_num_batched_tokens=STEP_TOKENS,
        enforce_eager=True,
        enable_prefix_caching=True,
        kv_transfer_config=KVTransferConfig(
            kv_connector="LMCacheConnectorV1",
            kv_connector_module_path="lmc_grouped.connector",
            kv_role="kv_both",
            kv_connector_extra_config={
                "lmcache.max_local_cpu_size": task.budget_bytes / 2**30,
                "cpu_group_partition": task.side.partition,
                "mamba_state_slots_reference_tokens": task.reference_tokens,
                "lmc_grouped.retention": 0,
            },
        ),
    )


class Bench:
    """An engine that is being measured."""

    def __init__(self, task: Task) -> None:
        from vllm.distributed.kv_transfer import get_kv_transfer_group

        self.task = task
        self._llm = start(task)
        core = self._llm.llm_engine.engine_core.engine_core
        self._half = core.scheduler.connector.scheduler_half
        self._meter = Meter(core, self._half, get_kv_transfer_group().worker_half)
        # The same prompts for every partition.
        self._prompts = random.Random(0)

    def run(self) -> Result:
        """All rounds; the first fills the pools and is left out."""
        rounds = [self._round() for _ in range(1 + self.task.rounds)][1:]
        arena = self._half.tier.index.arena
        if arena is None:
            return Result(self.task, tuple(rounds), 0, 0, ())
        plan = arena.plan
        pages = tuple(plan.slots_per_extent[g.group_id] for g in self._half.tier.table.groups)
        return Result(self.task, tuple(rounds), plan.extents, plan.extent_bytes, pages)

    def _round(self) -> Round:
        self._meter.start()
        restorable_tokens = restored_tokens = 0
        for phase in (self.task.short, self.task.long):
            restored_tokens += self._phase(phase)
            restorable_tokens += phase.prompts * self._boundary(phase.tokens)
        return self._meter.read(
            restorable_tokens=restorable_tokens, restored_tokens=restored_tokens
        )

    def _phase(self, phase: Phase) -> int:
        """Serve new prompts, then the same from host memory, the latest first.

        Returns:
            Tokens that were restored.
        """
        prompts = [self._prompts.choices(VOCABULARY, k=phase.tokens) for _ in range(phase.prompts)]
        self._serve(prompts)
        if not self._llm.reset_prefix_cache():
            raise RuntimeError("the engine's prefix cache did not reset")
        restored_tokens = self._serve(prompts[::-1])
        if not self._llm.reset_prefix_cache():
            raise RuntimeError("the engine's prefix cache did not reset")
        return restored_tokens

    def _serve(self, prompts: Sequence[list[int]]) -> int:
        """Tokens that were not computed."""
        from vllm import SamplingParams

        sampling = SamplingParams(temperature=0, max_tokens=OUTPUT_TOKENS, ignore_eos=True)
        inputs = [{"prompt_token_ids": prompt} for prompt in prompts]
        outputs = self._llm.generate(inputs, sampling, use_tqdm=False)
        return sum(output.num_cached_tokens or 0 for output in outputs)

    def _boundary(self, tokens: int) -> int:
        align = self._half.tier.table.alignment_tokens
        return (tokens - 1) // align * align


def main(result_path: Path) -> None:
    """Carry out one task."""
    task = msgspec.json.decode(sys.stdin.buffer.read(), type=Task)
    if task.side is Side.FORCED:
        force_extents(task.forced_pages)
    result_path.write_bytes(msgspec.json.encode(Bench(task).run()))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
