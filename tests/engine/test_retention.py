"""The budget that `plan` asks for is enough with the default, and not without retention."""

from collections.abc import Iterator
from typing import Any

import pytest
from vllm.config import KVTransferConfig

from lmc_grouped.core.groups import GroupTable
from lmc_grouped.core.pools import Partition
from lmc_grouped.tools.errors import ToolError
from lmc_grouped.tools.plan.answer import Answer as PlanAnswer
from lmc_grouped.tools.plan.answer import Question, answer
from lmc_grouped.tools.plan.layout import Layout
from tests.engine.conftest import model_dir
from tests.engine.lab import Answer, Lab, open_lab
from tests.engine.test_exactness import boundary

CONTEXT_TOKENS = 2_000
CONTEXTS = {"qwen3_next": 4, "gemma3": 1}


@pytest.fixture(scope="module", params=sorted(CONTEXTS))
def name(request: pytest.FixtureRequest) -> str:
    return request.param


def open_with(name: str, budget_bytes: int | None = None, **extra: Any) -> Any:
    """A lab whose pools are sized for contexts of `CONTEXT_TOKENS`."""
    config = {"mamba_state_slots_reference_tokens": CONTEXT_TOKENS, **extra}
    if budget_bytes is not None:
        config["lmcache.max_local_cpu_size"] = budget_bytes / 2**30
    connector = KVTransferConfig(
        kv_connector="LMCacheConnectorV1",
        kv_connector_module_path="lmc_grouped.connector",
        kv_role="kv_both",
        kv_connector_extra_config=config,
    )
    return open_lab(model_dir(name), name, max_num_batched_tokens=512, kv_transfer_config=connector)


def planned(table: GroupTable, budget_bytes: int) -> PlanAnswer | None:
    """What `lmc-grouped plan` says of the budget; nothing where it refuses it."""
    layout = Layout(
        name="tiny",
        table=table,
        max_model_tokens=CONTEXT_TOKENS,
        workers=1,
        budget_bytes=None,
        shared_row_bytes=None,
    )
    try:
        return answer(
            Question(
                layout=layout,
                workers=1,
                budget_bytes_per_worker=budget_bytes,
                retention_tokens=0,
                reference_tokens=CONTEXT_TOKENS,
                partition=Partition.AUTO,
            )
        )
    except ToolError:
        return None


@pytest.fixture(scope="module")
def budget_bytes(name: str) -> Iterator[int]:
    """The least budget that `plan` says holds so many contexts, to 4 KiB."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LMCACHE_MAX_LOCAL_CPU_SIZE", "0.05")
        with open_with(name) as lab:
            table = lab.half.tier.table
    too_little, enough = 0, 2**28
    while enough - too_little > 4096:
        middle = (enough + too_little) // 2
        found = planned(table, middle)
        if found is not None and found.contexts >= CONTEXTS[name]:
            enough = middle
        else:
            too_little = middle
    return enough


def serve_contexts(lab: Lab, count: int) -> tuple[list[list[int]], list[Answer], dict[str, Any]]:
    """Run contexts one after the other: prompts, the engine's own local hits, counters."""
    prompts = [lab.prompt(CONTEXT_TOKENS) for _ in range(count)]
    with lab.counted() as counters:
        for prompt in prompts:
            lab.run(prompt)
        local = [lab.run(prompt) for prompt in prompts]
    return prompts, local, counters


def test_the_planned_budget_holds_its_contexts_exactly(name: str, budget_bytes: int) -> None:
    with open_with(name, budget_bytes) as lab:
        prompts, local, counters = serve_contexts(lab, CONTEXTS[name])
        lab.reset()
        for prompt, reference in zip(prompts, local, strict=True):
            restored = lab.run(prompt)
            assert restored.cached_tokens == boundary(lab, CONTEXT_TOKENS)
            assert restored.difference(reference) == 0.0
        for group in lab.groups:
            lab.forget()
            lab.run(prompts[0])
            lab.check_damage_is_noticed(prompts[0], local[0], group.group_id)
        assert "evicted_pages" not in counters
        assert "no_room" not in counters.get("not_stored_pages", {})


def test_without_retention_the_same_budget_does_not(name: str, budget_bytes: int) -> None:
    """Control: dense pools spend it on states and window pages that nobody resumes from."""
    with open_with(name, budget_bytes, **{"lmc_grouped.retention": "none"}) as lab:
        prompts, _, counters = serve_contexts(lab, CONTEXTS[name])
        lab.reset()
        whole = 0
        for prompt in prompts:
            whole += lab.run(prompt).cached_tokens == boundary(lab, CONTEXT_TOKENS)
            lab.reset()
        assert whole < min(2, CONTEXTS[name])
        left = sum(counters.get("evicted_pages", {}).values())
        assert left + counters.get("not_stored_pages", {}).get("no_room", 0) > 0
