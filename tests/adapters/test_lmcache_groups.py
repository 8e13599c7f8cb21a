"""The table as LMCache's transfer groups; every release is asked in tests/compat."""

import msgspec
import pytest
from lmcache.v1.multiprocess import group_view

from lmc_grouped.adapters.lmcache_groups import engine_group_infos
from lmc_grouped.adapters.vllm_groups import build_group_table
from lmc_grouped.core.groups import GroupTableError
from tests.specs import cache_config, full_spec, ring_spec, state_spec, window_spec, wrapped


def infos_of(*specs, registered=None, **more):
    config = cache_config(*specs, **more)
    table = build_group_table(config, alignment_tokens=64, hash_block_tokens=16)
    layers = [name for group in config.kv_cache_groups for name in group.layer_names]
    return engine_group_infos(table, config, registered or layers)


def test_ids_keep_the_hole_of_a_scratch_group_and_layers_their_place():
    infos = infos_of(full_spec(), ring_spec(8), state_spec())
    assert [(i.engine_group_id, i.layer_indices) for i in infos] == [(0, (0,)), (2, (2,))]


def test_spans_windows_and_recurrent_flags():
    infos = infos_of(full_spec(16), window_spec(32, 128), state_spec(64))
    assert [(i.tokens_per_block, i.sw_size_tokens, i.recurrent_state) for i in infos] == [
        (16, -1, False),
        (32, 128, False),
        (64, 64, True),
    ]


def test_pages_of_different_shape_are_groups_of_their_own_in_registration_order():
    wide, narrow = full_spec(heads=2), full_spec(heads=1)
    mixed = wrapped(wide, "wide.0", "wide.1")
    mixed.kv_cache_specs["narrow"] = narrow
    infos = infos_of(
        mixed, window_spec(16, 64), registered=["layer.1", "narrow", "wide.1", "wide.0"]
    )
    assert [(i.engine_group_id, i.layer_indices) for i in infos] == [
        (1, (0,)),
        (0, (1,)),
        (0, (3, 2)),
    ]


def test_layers_that_alias_another_layer_are_not_transferred_twice():
    infos = infos_of(full_spec(), window_spec(16, 64), aliases={0: ("shared",)})
    assert [i.layer_indices for i in infos] == [(0,), (2,)]


def test_a_release_without_a_field_is_not_given_it(monkeypatch: pytest.MonkeyPatch):
    class EngineGroupInfo(msgspec.Struct, frozen=True):
        engine_group_id: int
        layer_indices: tuple[int, ...] = ()
        tokens_per_block: int = 0
        sw_size_tokens: int = -1

    monkeypatch.setattr(group_view, "EngineGroupInfo", EngineGroupInfo)
    (info,) = infos_of(state_spec())
    assert info == EngineGroupInfo(0, (0,), 16, 16)


def test_a_stored_layer_that_is_not_registered_is_named():
    with pytest.raises(GroupTableError) as refused:
        infos_of(full_spec(), window_spec(16, 64), registered=["layer.0"])
    assert "group 1, layer layer.1" in str(refused.value)
    assert "['layer.0']" in str(refused.value)
