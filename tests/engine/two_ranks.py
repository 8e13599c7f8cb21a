"""Run two tensor-parallel workers and write what they answered, as JSON.

A program of its own: tensor-parallel workers are processes. It ends its engine by
killing one worker in the middle of a move, and starts another engine after it, which
finds on disk what the first has written there.
"""

import json
import os
import random
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from lmc_grouped.core import extent_plan
from lmc_grouped.core.groups import GroupSpec

PAGES_PER_EXTENT = 4
PROMPT = [1 + (i * i * 7 + i) % 199 for i in range(1500)]
SHORT_TOKENS, LONG_TOKENS = 200, 1_500
SHORT_PROMPTS, LONG_PROMPTS = 40, 12
"""Either fills the budget of the test."""


def large(groups: tuple[GroupSpec, ...], budget_bytes: int) -> Iterator[int]:
    """Extents of several pages, so that they have to be emptied by moving pages."""
    return iter([PAGES_PER_EXTENT * max(group.page_bytes for group in groups)])


if __name__ in ("__main__", "__mp_main__"):
    # vLLM spawns its processes, and each of them runs this module first.
    extent_plan._candidates = large


def halves(worker: Any) -> Any:
    """The connector's half of one rank; for functions that run in every worker."""
    from vllm.distributed.kv_transfer import get_kv_transfer_group

    return get_kv_transfer_group().worker_half


def group_table(worker: Any) -> str:
    """What one rank made of the engine's groups."""
    return halves(worker).table.to_json().decode()


def pages_per_extent(worker: Any) -> list[int]:
    """By group, as one rank has mapped them."""
    half = halves(worker)
    return [half.region.pool(group_id).shape[1] for group_id in half.table.group_ids]


def watch_loads(worker: Any) -> None:
    """Remember which slots are read: only the scheduler knows where pages lie."""
    half = halves(worker)
    original = half.begin_loads

    def begin_loads(step: Any) -> None:
        for operation in step.loads:
            half.last_read = {pages.group_id: pages.slots[-1] for pages in operation.pages}
        original(step)

    half.begin_loads = begin_loads


def damage(worker: Any, rank: int) -> int:
    """Zero in one rank the last page of every group that the last load has read."""
    if worker.rank != rank:
        return 0
    half = halves(worker)
    for group_id, slot in half.last_read.items():
        half.region.page(group_id, slot)[:] = 0
    return len(half.last_read)


def die_in_a_move(worker: Any, rank: int) -> None:
    """Have one rank killed when it has done a part of its moves."""
    if worker.rank != rank:
        return
    half = halves(worker)

    def begin_moves(step: Any) -> None:
        for operation in step.moves:
            for moves in operation.moves:
                copier = half.copiers[moves.group_id]
                copier.move(moves.source_slots[:1], moves.target_slots[:1])
                os.kill(os.getpid(), signal.SIGKILL)

    half.begin_moves = begin_moves


class Ranks:
    """One engine."""

    def __init__(self, model_dir: str, workers: int) -> None:
        from vllm import LLM
        from vllm.config import KVTransferConfig

        self.llm = LLM(
            model_dir,
            block_size=32,
            dtype="float32",
            max_model_len=4096,
            max_num_seqs=4,
            enforce_eager=True,
            tensor_parallel_size=workers,
            disable_log_stats=False,
            kv_transfer_config=KVTransferConfig(
                kv_connector="LMCacheConnectorV1",
                kv_connector_module_path="lmc_grouped.connector",
                kv_role="kv_both",
            ),
        )
        self._prompts = random.Random(0)

    def run(self, prompts: Sequence[list[int]]) -> list[dict[str, Any]]:
        """Greedy answers."""
        from vllm import SamplingParams

        sampling = SamplingParams(temperature=0, max_tokens=6, logprobs=0, ignore_eos=True)
        inputs = [{"prompt_token_ids": prompt} for prompt in prompts]
        answers = []
        for output in self.llm.generate(inputs, sampling, use_tqdm=False):
            completion = output.outputs[0]
            steps = zip(completion.logprobs, completion.token_ids, strict=True)
            answers.append(
                {
                    "ids": list(completion.token_ids),
                    "logprobs": [step[token].logprob for step, token in steps],
                    "cached_tokens": output.num_cached_tokens,
                }
            )
        return answers

    def restore(self, prompt: list[int]) -> dict[str, Any]:
        """The answer when only host memory knows the prompt."""
        assert self.llm.reset_prefix_cache()
        return self.run([prompt])[0]

    def prompts(self, tokens: int, count: int) -> list[list[int]]:
        """Prompts that were not seen before."""
        return [[self._prompts.randrange(1, 200) for _ in range(tokens)] for _ in range(count)]

    def phase(self, tokens: int, count: int) -> dict[str, Any]:
        """Serve ``count`` new prompts; what came of the last two, and of the balance."""
        prompts = self.prompts(tokens, count)
        self.run(prompts)
        local = [self.run([prompt])[0] for prompt in prompts[-2:]]
        restored = [self.restore(prompt) for prompt in prompts[-2:]]
        return {"local": local, "restored": restored, "metrics": self.metrics()}

    def metrics(self) -> dict[str, dict[str, float]]:
        """Our metrics so far: name -> group, or "" -> value."""
        found: dict[str, dict[str, float]] = {}
        for metric in self.llm.get_metrics():
            if metric.name.startswith("vllm:lmc_grouped_"):
                values = found.setdefault(metric.name.removeprefix("vllm:lmc_grouped_"), {})
                values[metric.labels.get("group", "")] = metric.value
        return found


def check_damage(ranks: Ranks) -> dict[str, Any]:
    """One prompt: computed, restored, and restored after one rank has lost pages of it."""
    llm = ranks.llm
    answers: dict[str, Any] = {}
    llm.collective_rpc(watch_loads)
    for rank in (0, 1):
        cold, local = ranks.run([PROMPT])[0], ranks.run([PROMPT])[0]
        assert cold["cached_tokens"] == 0
        restored = ranks.restore(PROMPT)
        damaged = llm.collective_rpc(damage, args=(rank,))
        assert sorted(damaged) == [0, 3], damaged
        answers[f"rank_{rank}"] = {
            "cold": cold,
            "local": local,
            "restored": restored,
            "damaged": ranks.restore(PROMPT),
        }
        llm.reset_prefix_cache(reset_connector=True)
    return answers


def kill_a_worker_that_moves(ranks: Ranks) -> str:
    """Name of the error that the engine ends with."""
    from vllm.v1.engine.exceptions import EngineDeadError

    ranks.llm.collective_rpc(die_in_a_move, args=(1,))
    try:
        for tokens, count in ((LONG_TOKENS, LONG_PROMPTS), (SHORT_TOKENS, SHORT_PROMPTS)):
            ranks.run(ranks.prompts(tokens, count))
    except EngineDeadError as error:
        return type(error).__name__
    return "no page was moved"


def main(model_dir: str, answer_path: Path) -> None:
    """Run all of it."""
    ranks = Ranks(model_dir, workers=2)
    answers: dict[str, Any] = {
        "tables": ranks.llm.collective_rpc(group_table),
        "pages_per_extent": ranks.llm.collective_rpc(pages_per_extent),
        "damage": check_damage(ranks),
    }
    answers["phases"] = [
        ranks.phase(SHORT_TOKENS, SHORT_PROMPTS),
        ranks.phase(LONG_TOKENS, LONG_PROMPTS),
        ranks.phase(SHORT_TOKENS, SHORT_PROMPTS),
    ]
    answers["before"] = {"cold": ranks.run([PROMPT])[0], "local": ranks.run([PROMPT])[0]}
    answers["killed"] = kill_a_worker_that_moves(ranks)
    del ranks
    again = Ranks(model_dir, workers=2)
    answers["next_start"] = {
        "from_disk": again.run([PROMPT])[0],
        "read_tokens": again.metrics()["read_tokens"],
        "local": again.run([PROMPT])[0],
        "restored": again.restore(PROMPT),
    }
    answer_path.write_text(json.dumps(answers))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
