"""Elastic pools on real engines: the balance follows the requests, and every restore is exact.

Extents are made large for so small a budget, so that they hold several pages
and have to be emptied by moving pages.
"""

from collections.abc import Iterator
from typing import Any

import pytest
from vllm.config import KVTransferConfig

from lmc_grouped.core import extent_plan
from lmc_grouped.core.extents import ExtentPlan
from lmc_grouped.core.groups import GroupSpec, Kind
from lmc_grouped.transfer.copies import TransferError
from lmc_grouped.transfer.pages import PageCopier
from tests.engine.conftest import model_dir
from tests.engine.lab import Answer, Lab, open_lab
from tests.engine.test_exactness import boundary

BUDGETS = {"qwen3_next": 6 * 2**20, "gemma3": 12 * 2**20}
SHORT_TOKENS, LONG_TOKENS = 300, 2_000


@pytest.fixture(scope="module", params=sorted(BUDGETS))
def name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def lab(name: str) -> Iterator[Lab]:
    connector = KVTransferConfig(
        kv_connector="LMCacheConnectorV1",
        kv_connector_module_path="lmc_grouped.connector",
        kv_role="kv_both",
        kv_connector_extra_config={
            "lmcache.max_local_cpu_size": BUDGETS[name] / 2**30,
            "mamba_state_slots_reference_tokens": 1_024,
        },
    )

    def large(groups: tuple[GroupSpec, ...], budget_bytes: int) -> Iterator[int]:
        return iter([6 * max(group.page_bytes for group in groups)])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(extent_plan, "_candidates", large)
        patch.setattr(ExtentPlan, "reserve_extents", 2)
        with open_lab(
            model_dir(name), name, max_num_batched_tokens=512, kv_transfer_config=connector
        ) as lab:
            arena = lab.half.tier.index.arena
            assert arena is not None, "the pools are not elastic"
            assert min(arena.plan.slots_per_extent.values()) > 1
            yield lab


def serve(lab: Lab, tokens: int, count: int) -> list[tuple[list[int], Answer]]:
    """Run prompts one after the other: each with the engine's own local hit."""
    prompts = [lab.prompt(tokens) for _ in range(count)]
    for prompt in prompts:
        lab.run(prompt)
    return [(prompt, lab.run(prompt)) for prompt in prompts]


def check_restored(lab: Lab, served: list[tuple[list[int], Answer]]) -> None:
    lab.reset()
    for prompt, local in served:
        restored = lab.run(prompt)
        assert restored.cached_tokens == boundary(lab, len(prompt))
        assert restored.difference(local) == 0.0


def share_of_attention(lab: Lab) -> float:
    """Of the extents in use, those of full groups."""
    full = {group.group_id for group in lab.groups if group.kind is Kind.FULL}
    extents = lab.half.balance.extents()
    return sum(count for g, count in extents.items() if g in full) / sum(extents.values())


def counts_add_up(lab: Lab) -> bool:
    arena = lab.half.tier.index.arena
    owned = sum(lab.half.balance.extents().values())
    nothing_held = not any(lab.held_slots().values())
    return nothing_held and owned + len(arena.empty) == arena.plan.extents


def test_the_balance_follows_the_requests_and_every_restore_is_exact(lab: Lab) -> None:
    with lab.counted() as counters:
        short = serve(lab, SHORT_TOKENS, 40)
        check_restored(lab, short[-3:])
        after_short = share_of_attention(lab)
        long = serve(lab, LONG_TOKENS, 6)
        check_restored(lab, long[-2:])
        after_long = share_of_attention(lab)
        again = serve(lab, SHORT_TOKENS, 40)
        check_restored(lab, again[-3:])
        lab.run(lab.prompt(40))
    assert after_long > after_short + 0.05
    assert share_of_attention(lab) < after_long - 0.05
    assert sum(counters["moved_pages"].values()) > 0
    assert sum(counters["evicted_pages"].values()) > 0
    assert counts_add_up(lab)


def test_one_lost_page_of_any_group_is_noticed(lab: Lab) -> None:
    """Control: the comparison of this module fails on a zeroed page among moved ones."""
    with lab.counted() as counters:
        served = serve(lab, LONG_TOKENS, 5) + serve(lab, SHORT_TOKENS, 30)
        lab.run(lab.prompt(40))
    assert sum(counters["moved_pages"].values()) > 0
    kept = served[-len(lab.groups) :]
    check_restored(lab, kept)
    for group, (prompt, local) in zip(lab.groups, kept, strict=True):
        lab.check_damage_is_noticed(prompt, local, group.group_id)
    lab.forget()


def test_moves_that_fail_leave_the_pages_where_they_are(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: PageCopier, *_: Any) -> None:
        raise TransferError(f"group {self.group_id}: the driver said no")

    monkeypatch.setattr(PageCopier, "move", refuse)
    with lab.counted() as counters:
        check_restored(lab, serve(lab, LONG_TOKENS, 5)[-2:])
        check_restored(lab, serve(lab, SHORT_TOKENS, 30)[-3:])
        lab.run(lab.prompt(40))
    assert counters["failed_moves"][""] > 0
    assert counts_add_up(lab)
