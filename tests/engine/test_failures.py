"""Things that go wrong while serving: nothing wrong is answered, nothing stays held."""

from dataclasses import replace

import pytest

from lmc_grouped.core.extents import ExtentPlan
from lmc_grouped.core.hits import needed_pages
from lmc_grouped.core.pools import PoolPlan
from lmc_grouped.transfer.copies import TransferError
from lmc_grouped.transfer.pages import PageCopier
from tests.engine.lab import Answer, Lab


def nothing_is_held(lab: Lab) -> bool:
    """Whether every resident page is idle: no lease, no reservation is left."""
    has_pages = all(pool.resident_pages for pool in lab.residency().values())
    return has_pages and not any(lab.held_slots().values())


@pytest.fixture
def broken_loads(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A driver that refuses every load; the list says how often it was asked."""
    asked: list[int] = []

    def refuse(self: PageCopier, *_: object) -> None:
        asked.append(self.group_id)
        raise TransferError(f"group {self.group_id}: the driver said no")

    monkeypatch.setattr(PageCopier, "load", refuse)
    return asked


def test_a_failed_load_is_recomputed_and_ends(
    lab: Lab, broken_loads: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt = lab.prompt(1100)
    cold = lab.run(prompt)
    lab.reset()
    with lab.counted() as counters:
        again = lab.run(prompt)
    assert broken_loads, "the load was never tried"
    assert len(broken_loads) == 1
    assert again.ids == cold.ids
    assert again.cached_tokens == 0
    assert counters["failed_loads"] == {"": 1}
    assert nothing_is_held(lab)
    monkeypatch.undo()
    lab.reset()
    assert lab.run(prompt).cached_tokens > 0, "the recomputed pages were not stored again"


def test_a_failed_load_fails_the_request_where_the_user_asked_for_it(
    lab: Lab, broken_loads: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lab.scheduler, "recompute_kv_load_failures", False)
    prompt, other = lab.prompt(1100), lab.prompt(300)
    lab.run(prompt)
    lab.reset()
    failed = lab.run(prompt)
    assert broken_loads
    assert failed.finish_reason == "error"
    assert failed.ids == ()
    assert lab.run(other).finish_reason == "length"
    assert nothing_is_held(lab)


def test_a_store_that_fails_is_counted_and_never_restored(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab.forget()
    prompt = lab.prompt(600)

    def refuse(self: PageCopier, *_: object) -> None:
        raise TransferError(f"group {self.group_id}: the driver said no")

    monkeypatch.setattr(PageCopier, "store", refuse)
    with lab.counted() as counters:
        cold = lab.run(prompt)
    monkeypatch.undo()
    assert counters["failed_stores"][""] > 0
    assert counters["not_stored_pages"]["store_failed"] > 0
    assert all(pool.resident_pages == 0 for pool in lab.residency().values())
    lab.reset()
    again = lab.run(prompt)
    assert again.cached_tokens == 0
    assert again.ids == cold.ids


def test_requests_aborted_midway_leave_nothing_held(lab: Lab) -> None:
    from vllm import SamplingParams

    engine = lab.llm.llm_engine
    prompt = lab.prompt(2000)
    lab.run(prompt)
    lab.reset()
    for steps in range(4):
        request_id = f"abort-{steps}"
        sampling = SamplingParams(temperature=0, max_tokens=50, ignore_eos=True)
        engine.add_request(request_id, {"prompt_token_ids": prompt + lab.prompt(900)}, sampling)
        for _ in range(steps):
            engine.step()
        engine.abort_request([request_id])
        while engine.has_unfinished_requests():
            engine.step()
        lab.run(lab.prompt(40))
        assert nothing_is_held(lab), f"after {steps} steps"
        lab.reset()


def test_a_prompt_longer_than_the_pools_keeps_its_head(lab: Lab) -> None:
    """No room is a reason with a name, and a prefix never loses its start to its own end."""
    lab.forget()
    table, arena = lab.half.tier.table, lab.half.tier.index.arena
    tokens = 8 * table.alignment_tokens
    needed = sum(
        -(-len(needed_pages(group, 0, tokens)) // arena.plan.slots_per_extent[group.group_id])
        for group in table.groups
    )
    few = replace(
        arena.plan,
        extents=max(len(table.groups), needed // 2),
        floor_extents=dict.fromkeys(table.group_ids, 1),
    )
    lab.half.open_pools(table, elastic(few))
    try:
        prompt = lab.prompt(tokens + 10)
        with lab.counted() as counters:
            cold: Answer = lab.run(prompt)
        assert counters["not_stored_pages"]["no_room"] > 0
        assert not any(lab.held_slots().values())
        lab.reset()
        again = lab.run(prompt)
        assert again.ids == cold.ids
        lab.reset()
        lab.run(prompt[: tokens // 2 + 1], max_tokens=1)
        assert not any(lab.held_slots().values())
    finally:
        lab.half.open_pools(table, elastic(arena.plan))


def elastic(extents: ExtentPlan) -> PoolPlan:
    """Pools over those extents."""
    slots = {g: extents.extents * count for g, count in extents.slots_per_extent.items()}
    return PoolPlan(slots, 0, 0, 0, extents=extents)
