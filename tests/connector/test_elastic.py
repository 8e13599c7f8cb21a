"""Elastic pools through the connector: moves reach every rank, and the bytes stay right."""

from dataclasses import replace

import pytest

from lmc_grouped.connector.setup import agree
from lmc_grouped.core import extent_plan
from lmc_grouped.core.extents import ExtentPlan
from lmc_grouped.core.groups import GroupTableError
from lmc_grouped.core.pools import Partition
from tests.connector.scripted import ScriptedEngine
from tests.connector.test_retention import a08_setup
from tests.specs import full_spec, state_spec, window_spec

SPECS = full_spec(16), window_spec(16, 40), state_spec(16, state_bytes=40)


@pytest.fixture
def large_extents(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several pages to an extent, however small the budget, and one kept empty."""
    monkeypatch.setattr(extent_plan, "_candidates", lambda groups, budget_bytes: iter([256]))
    monkeypatch.setattr(ExtentPlan, "reserve_extents", 1)


def elastic(**more) -> ScriptedEngine:
    engine = ScriptedEngine(
        *SPECS,
        retention=0,
        partition="auto",
        budget_bytes=256 * 14,
        num_blocks=1024,
        extra={"mamba_state_slots_reference_tokens": 64},
        **more,
    )
    assert engine.index.arena is not None
    return engine


def serve(engine: ScriptedEngine, tokens: int, *names: str) -> list[str]:
    """Requests one after the other; those whose prompt is then restored right."""
    for name in names:
        engine.finish(engine.prefill(name, tokens, prompt=name, chunk=64))
    engine.step()
    engine.wipe()
    restored = []
    for name in names:
        again = engine.request(f"{name} again", tokens, prompt=name)
        boundary = engine.start(again)
        assert boundary == 0 or engine.wrong_pages(again, boundary) == []
        engine.finish(again)
        restored += [name] if boundary == (tokens - 1) // 16 * 16 else []
    return restored


def alternate(engine: ScriptedEngine) -> None:
    for turn in range(4):
        short = [f"s{turn}{i}" for i in range(9)]
        assert serve(engine, 40, *short)[-1:] == short[-1:]
        long = [f"l{turn}{i}" for i in range(3)]
        assert serve(engine, 200, *long)[-1:] == long[-1:]


@pytest.mark.usefixtures("large_extents")
@pytest.mark.parametrize("world_size", [1, 2])
def test_alternating_requests_move_pages_and_every_restore_is_right(world_size):
    engine = elastic(world_size=world_size)
    alternate(engine)
    assert sum(engine.stats.counter("moved_pages", g) for g in (0, 1, 2)) > 0
    assert engine.stats.counter("moved_bytes", 2) == 40 * engine.stats.counter("moved_pages", 2)
    assert not any(engine.held_slots().values())
    arena = engine.index.arena
    assert sum(engine.half.balance.extents().values()) + len(arena.empty) == 14


@pytest.mark.usefixtures("large_extents")
def test_a_move_that_one_rank_cannot_make_happens_on_none(our_log):
    engine = elastic(world_size=2)
    for group_id in (0, 1, 2):
        engine.workers[1].worker_half.copiers[group_id].move = _refuse
    alternate(engine)
    assert engine.stats.counter("failed_moves") > 0
    assert all(engine.stats.counter("moved_pages", group_id) == 0 for group_id in (0, 1, 2))
    assert "moving" in our_log.text
    assert "the driver said no" in our_log.text


def _refuse(source_slots, target_slots):
    from lmc_grouped.transfer.pages import TransferError

    raise TransferError("the driver said no")


@pytest.mark.usefixtures("large_extents")
def test_a_new_balance_is_logged_and_a_small_change_is_not(our_log):
    engine = elastic()
    serve(engine, 40, *"abcdefghi")
    engine.step()
    lines = [r.getMessage() for r in our_log.records if "balance" in r.getMessage()]
    assert lines
    assert "of 14 extents" in lines[-1]
    engine.step()
    assert [r.getMessage() for r in our_log.records if "balance" in r.getMessage()] == lines


def test_fixed_pools_plan_no_moves_and_own_no_extents():
    engine = ScriptedEngine(*SPECS)
    assert engine.step().metadata.moves == []
    assert engine.half.balance.extents() == {}


def test_start_up_says_how_the_budget_is_cut_into_extents(our_log):
    from lmc_grouped.connector.setup import log_pools

    setup = a08_setup(cpu_group_partition="auto")
    log_pools(setup, setup.cut())
    text = our_log.text
    assert "page 10235904 bytes, 1 to an extent, 83 to 419 extents, spans of 784 tokens" in text
    assert "page 802816 bytes, 12 to an extent, 1 to 419 extents" in text
    assert "4288843776 of 4294967296 bytes per worker, partition auto, retention 0" in text
    assert "4 contexts of 65536 tokens" in text


def test_ranks_that_cut_their_budgets_differently_stop_start_up():
    engine = elastic()
    report = engine.workers[0].get_handshake_metadata()
    assert report.plan.partition is Partition.AUTO
    smaller = replace(report.plan.extents, extents=report.plan.extents.extents - 1)
    fewer = replace(report, plan=replace(report.plan, extents=smaller))
    agreed = agree(engine.table, {(0, 0): report, (0, 1): fewer})
    assert agreed.extents == smaller
    other = replace(smaller, slots_per_extent={0: 9, 1: 9, 2: 9})
    for plan in (
        replace(report.plan, extents=other),
        replace(report.plan, extents=None),
    ):
        with pytest.raises(GroupTableError, match="set cpu_group_partition: static"):
            agree(engine.table, {(0, 0): report, (0, 1): replace(report, plan=plan)})


def test_pipeline_stages_get_static_pools_and_a_line_that_says_why(our_log):
    from lmc_grouped.connector.setup import prepare
    from tests.specs import cache_config, engine_config

    config = engine_config()
    config.parallel_config.pipeline_parallel_size = 2
    assert prepare(config, cache_config(*SPECS)).partition is Partition.STATIC
    assert "pipeline stages hold different layers" in our_log.text
