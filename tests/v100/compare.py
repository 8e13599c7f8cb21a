"""Size generated layouts with the V100 engine's code and with ours; count the differences.

Runs with the unpacked `revolta` wheel first on the path: `vllm` is that engine here.
"""

import logging
import random
import sys
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
import vllm
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheTensor,
    MambaSpec,
)
from vllm.v1.kv_offload.cpu.spec import CPUOffloadingSpec

from lmc_grouped.core.sizing import BudgetError, solve
from tests.factories import full, recurrent, table_of

MAX_MODEL_TOKENS = 65_536
DEVICE_BLOCKS = 8


@dataclass(frozen=True, slots=True)
class Layout:
    """Groups of one span, and a question about them."""

    token_page_bytes: tuple[int, ...]
    state_page_bytes: tuple[int, ...]
    span_tokens: int
    budget_bytes: int
    """Over all workers."""
    workers: int
    retention_tokens: int | None
    reference_tokens: int | None


def theirs(layout: Layout) -> dict[int, int]:
    """Slots per group from ``CPUOffloadingSpec``."""
    span = layout.span_tokens
    attention = FullAttentionSpec(
        block_size=span, num_kv_heads=1, head_size=16, dtype=torch.float16
    )
    state = MambaSpec(
        block_size=span, shapes=((1,),), dtypes=(torch.int8,), mamba_cache_mode="align"
    )
    specs = [(attention, size) for size in layout.token_page_bytes]
    specs += [(state, size) for size in layout.state_page_bytes]
    cache_config = KVCacheConfig(
        num_blocks=DEVICE_BLOCKS,
        kv_cache_tensors=[
            KVCacheTensor(size=size * DEVICE_BLOCKS, shared_by=[f"layer.{i}"])
            for i, (_, size) in enumerate(specs)
        ],
        kv_cache_groups=[
            KVCacheGroupSpec([f"layer.{i}"], spec) for i, (spec, _) in enumerate(specs)
        ],
    )
    sizing = CPUOffloadingSpec(_engine_config(layout), cache_config)
    assert sizing.partition_by_group
    return dict(sizing.cpu_group_num_blocks)


def _engine_config(layout: Layout) -> Any:
    extra = {"cpu_bytes_to_use": layout.budget_bytes}
    if layout.reference_tokens is not None:
        extra["mamba_state_slots_reference_tokens"] = layout.reference_tokens
    return SimpleNamespace(
        kv_transfer_config=SimpleNamespace(kv_connector_extra_config=extra),
        parallel_config=SimpleNamespace(
            decode_context_parallel_size=1,
            prefill_context_parallel_size=1,
            world_size=layout.workers,
        ),
        cache_config=SimpleNamespace(
            block_size=layout.span_tokens,
            hash_block_size=None,
            prefix_match_unit=None,
            enable_prefix_caching=True,
            mamba_cache_mode="align",
            prefix_cache_retention_interval=layout.retention_tokens,
        ),
        model_config=SimpleNamespace(max_model_len=MAX_MODEL_TOKENS),
        kv_events_config=None,
    )


def ours(layout: Layout) -> dict[int, int]:
    """Slots per group from ``solve``; all 0 where we refuse the budget."""
    tokens = [full(i, layout.span_tokens, p) for i, p in enumerate(layout.token_page_bytes)]
    states = [
        recurrent(len(tokens) + i, layout.span_tokens, p)
        for i, p in enumerate(layout.state_page_bytes)
    ]
    table = table_of(*tokens, *states)
    try:
        return solve(
            table,
            layout.budget_bytes // layout.workers,
            retention_tokens=layout.retention_tokens,
            reference_tokens=layout.reference_tokens or MAX_MODEL_TOKENS,
        ).slots_by_group
    except BudgetError:
        return dict.fromkeys(table.group_ids, 0)


def generated(draw: random.Random) -> Layout:
    """A layout of equal spans, as the V100 engine can size them."""
    span = draw.choice([16, 32, 64, 256, 784, 800, 1600, 1664, 2112, 3584])
    return Layout(
        token_page_bytes=tuple(draw.randint(1, 2 * 10**7) for _ in range(draw.randint(1, 3))),
        state_page_bytes=tuple(draw.randint(1, 2 * 10**7) for _ in range(draw.randint(1, 5))),
        span_tokens=span,
        budget_bytes=int(10 ** draw.uniform(8, 12)),
        workers=draw.choice([1, 2, 4, 8]),
        retention_tokens=draw.choice([None, 0, 0, span * draw.randint(1, 40)]),
        reference_tokens=draw.choice([None, draw.randint(1, 300_000), span * draw.randint(1, 200)]),
    )


def main(count: int, seed: int) -> int:
    """Print what differs; 1 when anything does."""
    logging.disable(logging.CRITICAL)
    draw = random.Random(seed)
    published = Layout((10_235_904,), (9_633_792,) * 3 + (802_816,), 784, 2**34, 4, 0, None)
    layouts = [published, *(generated(draw) for _ in range(count))]
    answers = [(layout, theirs(layout), ours(layout)) for layout in layouts]
    different = [answer for answer in answers if answer[1] != answer[2]]
    for layout, their_slots, our_slots in different[:5]:
        print(f"{layout}: the V100 engine {their_slots}, lmc_grouped {our_slots}")
    empty = sum(not any(their_slots.values()) for _, their_slots, _ in answers)
    print(
        f"{vllm.__file__}: {len(answers) - len(different)} of {len(answers)} layouts sized "
        f"alike ({empty} of them too small for one block)"
    )
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2])))
