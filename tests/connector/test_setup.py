"""What stops start-up, what ranks agree on, what the log says."""

import msgspec
import pytest

from lmc_grouped.adapters.engine import EngineError
from lmc_grouped.adapters.lmcache_config import ConfigError
from lmc_grouped.connector import LMCacheConnectorV1
from lmc_grouped.connector.messages import RankReport
from lmc_grouped.connector.scheduler import SchedulerHalf
from lmc_grouped.connector.setup import agree
from lmc_grouped.connector.worker import WorkerHalf
from lmc_grouped.core.groups import GroupTable, GroupTableError
from lmc_grouped.core.pools import PoolPlan
from lmc_grouped.core.sizing import BudgetError
from tests.connector.scripted import ScriptedEngine
from tests.factories import full, recurrent, table_of
from tests.specs import cache_config, engine_config, full_spec, ring_spec, state_spec, window_spec


def report(table: GroupTable, **slots: int) -> RankReport:
    plan = PoolPlan({int(k[1:]): v for k, v in slots.items()}, 0, 0, 0)
    return RankReport(table.fingerprint(), table.to_json(), plan)


def test_a10_every_rank_uses_the_smallest_pool():
    light, heavy = table_of(full(0, page_bytes=100)), table_of(full(0, page_bytes=130))
    reports = {(0, 0): report(light, g0=130), (1, 0): report(heavy, g0=100)}
    assert agree(light, reports).slots_by_group == {0: 100}


def test_a10_the_minimum_is_taken_group_by_group():
    table = table_of(full(0), recurrent(2), scratch_ids=(1,))
    reports = {(0, 0): report(table, g0=8, g2=3), (0, 1): report(table, g0=5, g2=9)}
    assert agree(table, reports).slots_by_group == {0: 5, 2: 3}


def test_ranks_that_see_other_groups_stop_start_up_with_both_tables():
    mine, theirs = table_of(full(0, 16)), table_of(full(0, 32))
    with pytest.raises(
        GroupTableError, match=r"rank \(0, 1\) and the scheduler see different"
    ) as e:
        agree(mine, {(0, 0): report(mine, g0=1), (0, 1): report(theirs, g0=1)})
    assert '"span_tokens":16' in str(e.value)
    assert '"span_tokens":32' in str(e.value)


def test_a_rank_with_another_table_stops_the_scheduler_half():
    config = cache_config(full_spec())
    half = SchedulerHalf(engine_config(), config)
    other = WorkerHalf(engine_config(block_size=32), cache_config(full_spec(32)))
    import torch

    other.register({"layer.0": torch.zeros(32, 128, dtype=torch.uint8)})
    with pytest.raises(GroupTableError, match="see different KV-cache groups"):
        half.accept_ranks({(0, 0): other.rank_report()})


def test_ranks_that_did_not_report_stop_the_scheduler_half():
    engine = ScriptedEngine(full_spec(), world_size=2)
    with pytest.raises(EngineError, match=r"1 of 2 workers reported .*\[\(0, 0\)\]"):
        engine.half.accept_ranks({(0, 0): engine.workers[0].get_handshake_metadata()})


def test_a_lookup_before_any_rank_has_reported_is_an_error():
    request = ScriptedEngine(full_spec()).request("r", 40)
    config = cache_config(full_spec())
    half = SchedulerHalf(engine_config(), config)
    with pytest.raises(EngineError, match="no worker has reported its KV-cache groups"):
        half.matched_tokens(request, 0)


def test_a_rank_reports_nothing_before_its_caches_are_registered():
    half = WorkerHalf(engine_config(), cache_config(full_spec()))
    assert half.rank_report() is None


def test_a_pipeline_rank_without_layers_of_a_group_takes_part_in_its_operations():
    engine = ScriptedEngine(full_spec(), state_spec())
    config = cache_config(full_spec(), state_spec(), num_blocks=256)
    config.kv_cache_groups[1].layer_names.clear()
    config.kv_cache_tensors = config.kv_cache_tensors[:1]
    rank = LMCacheConnectorV1(engine.vllm_config, engine.workers[0].role, config)
    rank.register_kv_caches(engine.caches[0])
    assert rank.get_handshake_metadata().plan.slots_by_group[1] > 0
    assert rank.worker_half.table.fingerprint() == engine.table.fingerprint()
    engine.workers[0] = rank
    engine.finish(engine.prefill("first", 50))
    assert engine.stats.counter("failed_stores") == 0
    assert engine.ask(engine.request("again", 50)) == 48


def our_lines(log) -> list[str]:
    return [record.getMessage() for record in log.records if record.name.startswith("lmc_")]


def test_start_up_prints_one_line_per_group_and_one_for_the_total(our_log):
    specs = full_spec(32), ring_spec(8), state_spec(32, state_bytes=64)
    ScriptedEngine(*specs, units=5, max_model_tokens=64)
    assert our_lines(our_log) == [
        "lmc_grouped group 0: copied by cpu (the engine's cache is in host memory)",
        "lmc_grouped group 2: copied by cpu (the engine's cache is in host memory)",
        "lmc_grouped group 1: not stored (scratch: not prefix-cacheable)",
        "lmc_grouped group 0: full, 1 layers, page 128 bytes, 5 slots of 32 tokens, 160 tokens",
        "lmc_grouped group 2: recurrent, 1 layers, page 64 bytes, 5 slots of 32 tokens, 160 tokens",
        "lmc_grouped: 960 of 960 bytes per worker, partition static, retention none, "
        "2 contexts of 64 tokens, hits end every 32 tokens",
    ]


def test_a_budget_below_one_context_says_at_start_what_one_takes(our_log):
    specs = full_spec(32), state_spec(32, state_bytes=64)
    ScriptedEngine(*specs, units=5, max_model_tokens=1_024)
    warning = our_lines(our_log)[-1]
    assert "not one context of 1024 tokens fits; set max_local_cpu_size to at least" in warning
    needed = float(warning.split("at least ")[1].split(" GB")[0]) * 2**30
    our_log.clear()
    ScriptedEngine(*specs, budget_bytes=int(needed) + 1, max_model_tokens=1_024)
    assert "1 contexts of 1024 tokens" in our_lines(our_log)[-1]


def test_a_budget_below_one_page_of_every_group_stops_the_worker():
    with pytest.raises(BudgetError, match="max_local_cpu_size to at least"):
        ScriptedEngine(full_spec(), state_spec(), budget_bytes=100)


@pytest.mark.parametrize("value", ["fast", "", 5, None, ["batch"]])
def test_a_way_of_copying_that_does_not_exist_stops_both_halves(value):
    config = engine_config(extra={"lmc_grouped.transfer": value})
    for half in (SchedulerHalf, WorkerHalf):
        with pytest.raises(
            ConfigError, match=r"lmc_grouped\.transfer is .*; allowed are auto and,"
        ):
            half(config, cache_config(full_spec()))


def test_an_unknown_extra_key_stops_both_halves():
    config = engine_config(extra={"cpu_group_partitions": "auto"})
    for half in (SchedulerHalf, WorkerHalf):
        with pytest.raises(ConfigError, match="unknown key 'cpu_group_partitions'"):
            half(config, cache_config(full_spec()))


def test_scratch_groups_are_refused_where_the_user_asked_for_it():
    specs = full_spec(), ring_spec(8), ring_spec(8)
    config = engine_config(extra={"scratch_policy": "reject"})
    for half in (SchedulerHalf, WorkerHalf):
        with pytest.raises(ConfigError, match=r"not stored: 1 \(.*, 2 \(.*use 'skip'"):
            half(config, cache_config(*specs))
    SchedulerHalf(config, cache_config(full_spec()))
    SchedulerHalf(engine_config(extra={"scratch_policy": "skip"}), cache_config(*specs))
    with pytest.raises(ConfigError, match="scratch_policy is 'drop'; allowed are skip, reject"):
        SchedulerHalf(engine_config(extra={"scratch_policy": "drop"}), cache_config(*specs))


def test_a_hybrid_model_with_the_hybrid_manager_off_stops_start_up():
    config = engine_config(hybrid_manager_off=True)
    with pytest.raises(EngineError, match="--disable-hybrid-kv-cache-manager"):
        SchedulerHalf(config, cache_config(full_spec(), window_spec(16, 64)))
    SchedulerHalf(config, cache_config(full_spec()))


def test_a_chunk_that_does_not_fit_the_groups_stops_start_up():
    config = engine_config(extra={"lmcache.chunk_size": 256})
    with pytest.raises(ConfigError, match=r"use 544 .*, or leave chunk_size out"):
        SchedulerHalf(config, cache_config(full_spec(544), state_spec(544)))


def test_a_cache_that_does_not_hold_what_its_spec_says_stops_the_worker():
    import torch

    half = WorkerHalf(engine_config(), cache_config(full_spec()))
    with pytest.raises(GroupTableError, match=r"group 0, layer layer.0.*63 bytes.*says 64"):
        half.register({"layer.0": torch.zeros(32, 63, dtype=torch.uint8)})


def test_a_model_with_one_group_goes_the_same_road_with_one_pool():
    engine = ScriptedEngine(full_spec())
    engine.finish(engine.prefill("first", 100))
    engine.wipe()
    again = engine.request("again", 100)
    assert engine.start(again) == 96
    assert engine.wrong_pages(again, 96) == []


def test_an_engine_that_lost_the_block_size_of_its_states_says_so_once(our_log):
    engine = ScriptedEngine(full_spec(256), state_spec(256), block_size=128)
    engine.step()
    engine.step()
    errors = [r.getMessage() for r in our_log.records if r.levelname == "ERROR"]
    assert len(errors) == 1
    assert "block size is 128 but its recurrent states need 256" in errors[0]
    assert "pass --block-size 256" in errors[0]


def test_the_table_of_the_scheduler_takes_page_bytes_from_a_rank():
    engine = ScriptedEngine(full_spec())
    half = engine.half
    groups = (msgspec.structs.replace(engine.table.groups[0], page_bytes=999),)
    table = msgspec.structs.replace(engine.table, groups=groups)
    half.accept_ranks(
        {(0, 0): RankReport(table.fingerprint(), table.to_json(), PoolPlan({0: 3}, 0, 0, 0))}
    )
    assert half.tier.table.groups[0].page_bytes == 999
    assert half.tier.index.room_slots(0) == 3


def test_a_drafter_that_only_one_rank_sees_counts_for_the_scheduler():
    engine = ScriptedEngine(full_spec(), full_spec())
    unmarked = engine.table
    groups = (unmarked.groups[0], msgspec.structs.replace(unmarked.groups[1], is_drafter=True))
    marked = msgspec.structs.replace(unmarked, groups=groups)
    engine.half.accept_ranks(
        {(0, 0): report(unmarked, g0=9, g1=9), (1, 0): report(marked, g0=9, g1=9)}
    )
    assert [group.is_drafter for group in engine.half.tier.table.groups] == [False, True]


def test_the_connector_is_a_cache_that_loads_between_steps():
    engine = ScriptedEngine(full_spec(), state_spec())
    assert engine.connector.requires_kv_delivery is False
    assert engine.connector.supports_divergent_local_hybrid_hits is False
    request = engine.prefill("r", 40)
    assert engine.connector.request_finished(request, [1]) == (False, None)
    assert engine.connector.get_num_new_matched_tokens(engine.request("s", 40), 0) == (32, True)
    assert engine.connector.get_num_new_matched_tokens(engine.request("t", 10), 0) == (0, False)
