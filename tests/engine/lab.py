"""A laboratory around one in-process vLLM engine with our connector.

In process, a test reaches both halves: it can scribble over the device cache
between two runs, so that a restored prefix can only come from host memory, and
it can corrupt one page in the host pool to show that a comparison would notice.
"""

import math
import os
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lmc_grouped.core.groups import GroupSpec
from lmc_grouped.core.hits import needed_pages
from lmc_grouped.tools.tiny_models import find_recipe

VOCABULARY = range(1, 200)


@dataclass(frozen=True, slots=True)
class Answer:
    """What one request came back with."""

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    cached_tokens: int
    """Prompt tokens that were not computed, from wherever they came."""
    finish_reason: str | None

    def difference(self, other: "Answer") -> float:
        """Largest log-probability difference; infinite when ids differ or a number is none."""
        if self.ids != other.ids:
            return float("inf")
        worst = max(
            (abs(a - b) for a, b in zip(self.logprobs, other.logprobs, strict=True)), default=0.0
        )
        return float("inf") if math.isnan(worst) else worst


class Lab:
    """One engine and the two halves of its connector."""

    def __init__(self, llm: Any, block_tokens: int) -> None:
        from vllm.distributed.kv_transfer import get_kv_transfer_group

        self.llm = llm
        self.block_tokens = block_tokens
        self.core = llm.llm_engine.engine_core.engine_core
        self.scheduler = self.core.scheduler
        self.half = self.scheduler.connector.scheduler_half
        self.worker = get_kv_transfer_group().worker_half
        self._prompts = random.Random(0)

    @property
    def groups(self) -> tuple[GroupSpec, ...]:
        return self.half.tier.table.groups

    def prompt(self, tokens: int) -> list[int]:
        """A prompt no other test has seen."""
        return [self._prompts.choice(VOCABULARY) for _ in range(tokens)]

    def run(self, prompt: Sequence[int], max_tokens: int = 6, salt: str | None = None) -> Answer:
        """Greedy answer; a salt keeps every cached page out of it."""
        return self.run_all([prompt], max_tokens, salt)[0]

    def run_all(
        self, prompts: Sequence[Sequence[int]], max_tokens: int = 6, salt: str | None = None
    ) -> list[Answer]:
        from vllm import SamplingParams

        sampling = SamplingParams(temperature=0, max_tokens=max_tokens, logprobs=0, ignore_eos=True)
        extra = {} if salt is None else {"cache_salt": salt}
        inputs = [{"prompt_token_ids": list(prompt), **extra} for prompt in prompts]
        return [answer_of(out) for out in self.llm.generate(inputs, sampling, use_tqdm=False)]

    def reset(self) -> None:
        """Empty the engine's own cache and overwrite its bytes."""
        assert self.llm.reset_prefix_cache()
        for copier in self.worker.copiers.values():
            for view in copier.layer_views:
                view.fill_(0x3C)

    def forget(self) -> None:
        """Empty both caches."""
        self.reset()
        self.half.reset()
        assert all(pool.free_slots == pool.capacity_slots for pool in self.residency().values())

    def residency(self) -> dict[int, Any]:
        return self.half.tier.index.residency()

    def held_slots(self) -> dict[int, int]:
        """group_id -> slots that something holds: leases and operations under way."""
        return {group_id: pool.held_slots for group_id, pool in self.residency().items()}

    def slot_bytes(self, group_id: int, slot: int) -> np.ndarray:
        """The page in a slot, ``uint8`` of shape ``[page_bytes]``: a view."""
        return self.worker.region.page(group_id, slot)

    def device_bytes(self, group_id: int, block_id: int) -> np.ndarray:
        """The page in a device block, in the order of the host's page."""
        views = self.worker.copiers[group_id].layer_views
        return torch.cat([view[block_id].reshape(-1) for view in views]).numpy()

    def hashes(self, prompt: Sequence[int]) -> list[bytes]:
        """The prompt's block hashes, as the engine computes them."""
        from vllm import SamplingParams
        from vllm.v1.request import Request

        request = Request(
            "hashes",
            list(prompt),
            SamplingParams(max_tokens=1),
            None,
            block_hasher=self.core.request_block_hasher,
        )
        return request.block_hashes

    def stored_slots(self, prompt: Sequence[int], boundary: int) -> dict[int, dict[int, int]]:
        """group_id -> page index -> slot, of the pages needed to resume at ``boundary``."""
        hashes, table = self.hashes(prompt), self.half.tier.table
        found: dict[int, dict[int, int]] = {}
        for group in table.groups:
            per_page = group.span_tokens // table.hash_block_tokens
            pages = list(needed_pages(group, 0, boundary))
            refs = [(group.group_id, hashes[(page + 1) * per_page - 1]) for page in pages]
            slots = self.half.tier.index.slots(refs)
            found[group.group_id] = dict(zip(pages, slots, strict=True))
        return found

    def holds(self, prompt: Sequence[int], boundary: int) -> bool:
        """Whether host memory has every page needed to resume at ``boundary``."""
        try:
            self.stored_slots(prompt, boundary)
        except KeyError:
            return False
        return True

    def damage(self, prompt: Sequence[int], boundary: int, group_id: int) -> None:
        """Zero the group's last page of those needed to resume at ``boundary``."""
        slots = self.stored_slots(prompt, boundary)[group_id]
        self.slot_bytes(group_id, slots[max(slots)])[:] = 0

    def check_damage_is_noticed(self, prompt: Sequence[int], local: Answer, group_id: int) -> None:
        """Control of a comparison with ``local``: it fails on one zeroed page of the group."""
        self.damage(prompt, local.cached_tokens, group_id)
        self.reset()
        damaged = self.run(prompt)
        assert damaged.cached_tokens == local.cached_tokens
        assert damaged.difference(local) > 0.0, f"group {group_id}: nothing noticed"

    def device_block(self, prompt: Sequence[int], group: GroupSpec, page: int) -> int:
        """The device block the engine has cached for a page."""
        from vllm.v1.core.kv_cache_utils import BlockHashListWithBlockSize

        hash_tokens = self.half.tier.table.hash_block_tokens
        hashes = self.hashes(prompt)
        if group.span_tokens != hash_tokens:
            hashes = BlockHashListWithBlockSize(hashes, hash_tokens, group.span_tokens)
        pool = self.scheduler.kv_cache_manager.block_pool
        blocks = pool.get_cached_block(hashes[page], [group.group_id])
        assert blocks, f"group {group.group_id}: page {page} is not in the engine's cache"
        return blocks[0].block_id

    @contextmanager
    def counted(self) -> Iterator[dict[str, dict[str, int]]]:
        """Collects the connector's counters of what happens inside."""
        self.half.take_stats()
        counters: dict[str, dict[str, int]] = {}
        original = self.half.take_stats

        def collect() -> Any:
            stats = original()
            for name, values in (stats.data["counters"] if stats else {}).items():
                for label, amount in values.items():
                    known = counters.setdefault(name, {})
                    known[label] = known.get(label, 0) + amount
            return stats

        self.half.take_stats = collect
        try:
            yield counters
            collect()
        finally:
            self.half.take_stats = original


def answer_of(output: Any) -> Answer:
    """Our form of a vLLM output."""
    completion = output.outputs[0]
    logprobs = [
        step[token].logprob
        for step, token in zip(completion.logprobs or (), completion.token_ids, strict=True)
    ]
    return Answer(
        tuple(completion.token_ids),
        tuple(logprobs),
        output.num_cached_tokens or 0,
        completion.finish_reason,
    )


@contextmanager
def open_lab(model_dir: Path, name: str, **engine_args: Any) -> Iterator[Lab]:
    """Start an engine in this process and take it down completely."""
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    from vllm import LLM
    from vllm.config import KVTransferConfig
    from vllm.distributed import cleanup_dist_env_and_memory
    from vllm.distributed.kv_transfer import ensure_kv_transfer_shutdown
    from vllm.platforms import current_platform

    recipe = find_recipe(name)
    settings = {
        "block_size": recipe.block_size_tokens,
        "dtype": recipe.dtype,
        "mamba_ssm_cache_dtype": recipe.state_dtype,
        "max_model_len": 8192,
        "enforce_eager": True,
        "enable_prefix_caching": True,
        "disable_log_stats": False,
        "kv_transfer_config": KVTransferConfig(
            kv_connector="LMCacheConnectorV1",
            kv_connector_module_path="lmc_grouped.connector",
            kv_role="kv_both",
            kv_load_failure_policy="recompute",
        ),
    }
    try:
        llm = LLM(str(model_dir), **(settings | engine_args))
        yield Lab(llm, recipe.block_size_tokens)
        llm.llm_engine.engine_core.shutdown()
        del llm
    finally:
        # vLLM 0.32 on CPU fails when it registers its kernels twice in one process.
        type(current_platform).register_triton_kernel_overrides = lambda *_: None
        ensure_kv_transfer_shutdown()
        cleanup_dist_env_and_memory()
