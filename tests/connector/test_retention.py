"""What is stored, shared and lost under sparse retention; the partitions of the budget."""

import pytest

from lmc_grouped.adapters.lmcache_config import ConfigError
from lmc_grouped.connector.scheduler import SchedulerHalf
from lmc_grouped.connector.setup import log_pools, prepare
from lmc_grouped.core.groups import GroupTableError
from tests.connector.scripted import ScriptedEngine
from tests.core.test_sizing import A08_BUDGET_BYTES
from tests.specs import cache_config, engine_config, full_spec, ring_spec, state_spec, window_spec

SHORT = {"mamba_state_slots_reference_tokens": 128}


def sparse(*specs, retention: int | str = 0, extra=None, **more) -> ScriptedEngine:
    return ScriptedEngine(*specs, retention=retention, extra=SHORT | (extra or {}), **more)


def stored_pages(engine: ScriptedEngine, request) -> dict[int, list[int]]:
    """group_id -> page indices of the request that are in the host tier."""
    prefix = engine.half.tier.state(request).prefix
    return {
        group.group_id: [
            page
            for page in range(prefix.hashed_tokens // group.span_tokens)
            if engine.index.has(*prefix.ref(group.group_id, page))
        ]
        for group in engine.table.groups
    }


def test_only_the_tail_of_a_window_and_the_states_at_resume_points_are_stored():
    engine = sparse(full_spec(), window_spec(16, 33), state_spec())
    request = engine.request("r", 160)
    engine.start(request)
    engine.compute(request, 64, 144, 160)
    # The repeat of the prompt resumes at 144, a longer sibling at 160.
    assert stored_pages(engine, request) == {0: list(range(10)), 1: [7, 8, 9], 2: [8, 9]}
    assert engine.not_stored("not_retained") == 1
    engine.finish(request)
    engine.wipe()
    for name, tokens, expected in (("again", 160, 144), ("longer", 200, 160)):
        later = engine.request(name, tokens)
        assert engine.start(later) == expected
        assert engine.wrong_pages(later, expected) == []


def test_an_interval_keeps_a_boundary_at_each_of_its_ends():
    engine = sparse(full_spec(), window_spec(16, 17), state_spec(), retention=48)
    request = engine.request("r", 140)
    engine.start(request)
    engine.compute(request, 48, 96, 128, 140)
    assert stored_pages(engine, request) == {0: list(range(8)), 1: [2, 5, 7], 2: [2, 5, 7]}


def test_a16_siblings_of_a_window_model_meet_at_the_junction_the_second_one_proved():
    engine = sparse(full_spec(), window_spec(16, 33), units=64)
    hits = []
    for name in "abcd":
        request = engine.request(name, 200, prompt=name, shared=96)
        hits.append(engine.start(request))
        engine.compute(request, 200)
        engine.finish(request)
    assert hits == [0, 0, 96, 96]


def test_a16_the_tail_at_a_junction_is_kept_though_the_engine_lacks_the_field():
    engine = sparse(full_spec(), window_spec(16, 33), units=64)
    engine.finish(engine.prefill("a", 200, prompt="a", shared=96))
    second = engine.request("b", 200, prompt="b", shared=96)
    engine.start(second)
    second.shared_prefix_boundary = None
    engine.compute(second, 200)
    assert stored_pages(engine, second)[1][:2] == [4, 5]


def test_generated_tokens_are_stored_as_attention_only():
    engine = sparse(full_spec(), window_spec(16, 33))
    request = engine.prefill("r", 64)
    longer = engine.request("r", 200)
    request.num_tokens = 200
    request.block_hashes += longer.block_hashes[len(request.block_hashes) :]
    for end in range(80, 193, 16):
        engine.slide(request)
        engine.compute(request, end)
    assert stored_pages(engine, request) == {0: list(range(12)), 1: [1, 2, 3]}


def test_a_prompt_that_was_forgotten_while_it_ran_is_stored_again():
    engine = sparse(full_spec(), window_spec(16, 33), state_spec())
    request = engine.request("r", 160)
    engine.start(request)
    engine.compute(request, 96)
    engine.connector.reset_cache()
    engine.compute(request, 144, 160)
    assert stored_pages(engine, request)[0] == list(range(10))
    engine.finish(request)
    engine.wipe()
    again = engine.request("again", 160)
    assert engine.start(again) == 144
    assert engine.wrong_pages(again, 144) == []


def test_a_request_whose_store_failed_stores_nothing_more_and_says_so():
    engine = sparse(full_spec(), world_size=2)
    request = engine.request("r", 160)
    engine.start(request)
    engine.failing = {(1, 0)}
    engine.compute(request, 64)
    engine.failing = set()
    assert engine.compute(request, 160).metadata.stores == []
    engine.finish(request)
    assert engine.stats.counter("failed_stores") == 1
    assert engine.not_stored("store_failed") == 4 + 6
    engine.finish(engine.prefill("next", 160))
    assert engine.ask(engine.request("again", 160)) == 144


def test_a_family_leaves_before_a_younger_one_loses_anything():
    # Two contexts of 128 tokens fit; what a third one needs leaves as a whole.
    engine = sparse(full_spec(), window_spec(16, 33), state_spec(), budget_bytes=64 * (16 + 8 + 6))
    for name in "abc":
        engine.finish(engine.prefill(name, 128, prompt=name, chunk=112))
    hits = [engine.ask(engine.request(f"{n} again", 128, prompt=n)) for n in "abc"]
    assert hits == [0, 112, 112]


def test_shared_rows_hold_pages_of_any_group_byte_for_byte():
    engine = sparse(
        full_spec(32),
        window_spec(16, 40),
        state_spec(32, state_bytes=50),
        extra={"cpu_group_partition": "off"},
        budget_bytes=128 * 14,
    )
    assert {pool.capacity_slots for pool in engine.index.residency().values()} == {14}
    for name in "ab":
        engine.finish(engine.prefill(name, 200, prompt=name, chunk=64))
    engine.wipe()
    again = engine.request("again", 200, prompt="b")
    assert engine.start(again) == 192
    assert engine.wrong_pages(again, 192) == []
    assert engine.ask(engine.request("first", 200, prompt="a")) == 0


# Start-up.


def a08_setup(**extra):
    """The geometry of case A08 in vLLM's own specs, 4 GiB for the worker."""
    states = [state_spec(784, state_bytes=9_633_792) for _ in range(3)]
    specs = [
        full_spec(784, head_size=3_264),  # 784 * 3264 * 4 bytes
        ring_spec(),
        *states,
        state_spec(784, state_bytes=802_816),
    ]
    config = engine_config(
        budget_bytes=A08_BUDGET_BYTES,
        block_size=784,
        extra={"cpu_group_partition": "static"} | extra,
        max_model_tokens=65_536,
    )
    return prepare(config, cache_config(*specs, num_blocks=1))


@pytest.mark.parametrize(
    ("extra", "token_slots", "state_slots", "contexts"),
    [
        ({"lmc_grouped.retention": "none"}, 107, 107, "1 contexts of 65536 tokens"),
        ({"lmc_grouped.retention": 6272}, 280, 48, "3 contexts of 65536 tokens"),
        ({}, 390, 10, "4 contexts of 65536 tokens"),
        ({"mamba_state_slots_reference_tokens": 16_384}, 326, 32, "16 contexts of 16384 tokens"),
        ({"cpu_group_partition": "off"}, 419, 419, "4 contexts of 65536 tokens"),
    ],
)
def test_a08_start_up_prints_the_pools_of_the_field_case(
    our_log, extra, token_slots, state_slots, contexts
):
    setup = a08_setup(**extra)
    log_pools(setup, setup.cut())
    lines = [r.getMessage() for r in our_log.records if r.name.startswith("lmc_grouped")]
    assert "group 1: not stored" in lines[0]
    assert f"group 0: full, 1 layers, page 10235904 bytes, {token_slots} slots" in lines[1]
    for line in lines[2:5]:
        assert f"recurrent, 1 layers, page 9633792 bytes, {state_slots} slots" in line
    assert f"page 802816 bytes, {state_slots} slots" in lines[5]
    assert contexts in lines[6]


def test_a09_start_up_says_which_contexts_run_out_of_states_first(our_log):
    setup = a08_setup()
    log_pools(setup, setup.cut())
    assert (
        "contexts of up to about 29,792 tokens run out of states first: 10 slots in group "
        "2, 3, 4, 5"
    ) in our_log.text


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ({"lmc_grouped.retention": 100}, r"lmc_grouped.retention: .* of 100 tokens .* for example"),
        ({"lmc_grouped.retention": -16}, r"lmc_grouped.retention is -16; allowed are 'none'"),
        ({"lmc_grouped.retention": "dense"}, r"lmc_grouped.retention is 'dense'; allowed"),
        ({"lmc_grouped.retention": True}, r"lmc_grouped.retention is True; allowed"),
        (
            {"mamba_state_slots_reference_tokens": 0},
            r"reference_tokens is 0; it must be",
        ),
        ({"mamba_state_slots_reference_tokens": "64K"}, r"reference_tokens is '64K'; it must be"),
        ({"cpu_group_partition": "rows"}, r"cpu_group_partition is 'rows'; allowed are auto, "),
    ],
)
def test_a_setting_out_of_range_stops_start_up_with_what_is_allowed(extra, message):
    with pytest.raises(ConfigError, match=message):
        SchedulerHalf(engine_config(extra=extra), cache_config(full_spec(), state_spec()))


def test_an_interval_of_the_engine_that_does_not_fit_the_chunks_names_its_own_setting():
    config = engine_config(extra={"lmcache.chunk_size": 64})
    with pytest.raises(ConfigError, match=r"prefix_cache_retention_interval: .* of 96 tokens"):
        SchedulerHalf(config, cache_config(full_spec(), window_spec(16, 33), retention_interval=96))


def test_recurrent_groups_that_never_meet_stop_start_up_with_both_named():
    with pytest.raises(GroupTableError, match=r"recurrent groups 1 .*48.* and 2 .*32"):
        SchedulerHalf(
            engine_config(block_size=96),
            cache_config(full_spec(96), state_spec(48), state_spec(32)),
        )


def test_without_an_own_setting_the_engine_decides_what_is_kept():
    config = engine_config()
    for interval in (None, 0, 64):
        kv_config = cache_config(full_spec(), state_spec(), retention_interval=interval)
        assert prepare(config, kv_config).retention_tokens == interval
