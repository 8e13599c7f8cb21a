"""The converter, fed with vLLM's own specs and tensors."""

import pytest
import torch
from vllm.v1.core.kv_cache_utils import resolve_kv_cache_block_sizes
from vllm.v1.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    CrossAttentionSpec,
    KVCacheGroupSpec,
    RSWASpec,
    SlidingWindowMLASpec,
    UniformTypeKVCacheSpecs,
)

from lmc_grouped.adapters import detection
from lmc_grouped.adapters.surface_revolta import RevoltaSurface
from lmc_grouped.adapters.surface_vllm import VllmSurface
from lmc_grouped.adapters.vllm_groups import build_group_table, layer_byte_views
from lmc_grouped.core.groups import GroupTable, GroupTableError, Kind
from lmc_grouped.core.hits import needed_pages
from lmc_grouped.core.plan import StoreCursor
from tests.factories import EVERY_PAGE, nothing_known
from tests.specs import (
    cache_config,
    engine_config,
    full_spec,
    ring_spec,
    state_spec,
    window_spec,
    wrapped,
)


def convert(config, **more) -> GroupTable:
    alignment, hash_block = resolve_kv_cache_block_sizes(config, engine_config())
    return build_group_table(
        config, alignment_tokens=alignment, hash_block_tokens=hash_block, **more
    )


def table_of_specs(*specs, **more) -> GroupTable:
    return convert(cache_config(*specs), **more)


def pages_of(table: GroupTable, tokens: int) -> dict[int, int]:
    return {
        group.group_id: len(needed_pages(group, 0, tokens))
        for group in table.groups
        if group.kind is not Kind.RECURRENT
    }


RINGS = {
    "bare": ring_spec(8),
    "wrapped": wrapped(ring_spec(8), "ring.0"),
    "wrapped, two layers": wrapped(ring_spec(8), "ring.0", "ring.1"),
    "another class that is not cacheable": SlidingWindowMLASpec(
        block_size=8,
        num_kv_heads=1,
        head_size=1,
        dtype=torch.float16,
        sliding_window=8,
        bounded_replay=True,
    ),
}


@pytest.mark.parametrize("ring", RINGS.values(), ids=RINGS.keys())
def test_a02_a_scratch_group_is_left_out_and_the_ids_keep_their_hole(ring):
    table = table_of_specs(full_spec(), ring, state_spec())
    assert table.group_ids == (0, 2)
    assert [group.kind for group in table.groups] == [Kind.FULL, Kind.RECURRENT]
    assert [(out.group_id, out.reason) for out in table.excluded] == [
        (1, "scratch: not prefix-cacheable")
    ]
    plan = StoreCursor(table).plan([[10, 11], [77], [20, 21]], 32, nothing_known, EVERY_PAGE)
    assert [page.block_id for page in plan.new] == [10, 11]


def test_a02_a_bare_and_a_wrapped_ring_give_the_same_table():
    bare = table_of_specs(full_spec(), RINGS["bare"], state_spec())
    wrap = table_of_specs(full_spec(), RINGS["wrapped"], state_spec())
    assert bare == wrap
    assert bare.fingerprint() == wrap.fingerprint()


def test_a02_a_bare_and_a_wrapped_stored_group_give_the_same_table():
    bare = table_of_specs(full_spec(), window_spec(16, 64), state_spec())
    wrap = table_of_specs(
        wrapped(full_spec(), "layer.0"),
        wrapped(window_spec(16, 64), "layer.1"),
        wrapped(state_spec(), "layer.2"),
    )
    assert bare == wrap


def test_a02_one_scratch_layer_makes_a_wrapped_group_scratch():
    mixed = UniformTypeKVCacheSpecs(
        block_size=8, kv_cache_specs={"layer.a": full_spec(8), "layer.b": ring_spec(8)}
    )
    assert table_of_specs(full_spec(), mixed).group_ids == (0,)


def test_a02_a_group_the_engine_rebuilds_itself_is_left_out():
    replica = KVCacheGroupSpec(["replica"], full_spec(), enable_kv_transfer=False)
    table = table_of_specs(full_spec(), replica, state_spec())
    assert table.group_ids == (0, 2)
    assert "enable_kv_transfer=False" in table.excluded[0].reason


def test_a02_the_shape_of_a_scratch_tensor_cannot_fail_registration():
    config = cache_config(full_spec(), ring_spec(8), state_spec(), num_blocks=4)
    table = convert(config)
    caches = {
        "layer.0": torch.zeros(4, 64, dtype=torch.uint8),
        "layer.1": torch.zeros(3, 5, 7),
        "layer.2": torch.zeros(4, 64, dtype=torch.int8),
    }
    assert all(len(layer_byte_views(config, group, caches)) == 1 for group in table.groups)


def test_a06a_layers_that_alias_another_layer_are_in_no_group():
    config = cache_config(
        window_spec(32, 512), full_spec(16), aliases={0: ("alias.0",), 1: ("alias.1",)}
    )
    table = convert(config)
    assert [group.layers for group in table.groups] == [("layer.0",), ("layer.1",)]
    assert [group.page_bytes for group in table.groups] == [128, 64]
    # A window that covers the whole slice needs all of its blocks, in blocks of 32.
    assert pages_of(table, 256) == {0: 8, 1: 16}


def test_a06b_groups_with_smaller_blocks_than_the_base_are_accepted():
    table = table_of_specs(full_spec(256), full_spec(64), full_spec(4), full_spec(8))
    assert table.alignment_tokens == 256
    assert table.hash_block_tokens == 4
    assert pages_of(table, 256) == {0: 1, 1: 4, 2: 64, 3: 32}


def test_a11a_a_ring_smaller_than_a_hash_unit_passes():
    states = [state_spec(3584) for _ in range(4)]
    table = table_of_specs(full_spec(3584), ring_spec(4), *states, full_spec(64))
    assert table.group_ids == (0, 2, 3, 4, 5, 6)
    assert (table.alignment_tokens, table.hash_block_tokens) == (3584, 64)
    assert table.group(6).span_tokens == 64


@pytest.mark.parametrize("ring", [4, 8])
def test_a11bc_rings_of_any_size_leave_the_hash_unit_alone(ring):
    table = table_of_specs(full_spec(800), ring_spec(ring), state_spec(800))
    assert (table.alignment_tokens, table.hash_block_tokens) == (800, 800)
    table = table_of_specs(full_spec(4480), ring_spec(ring), *[state_spec(4480)] * 3)
    assert (table.alignment_tokens, table.hash_block_tokens) == (4480, 4480)


def test_a11d_a_drafter_keeps_its_own_block_size():
    table = table_of_specs(full_spec(256), full_spec(64), drafter_groups=frozenset({1}))
    assert [group.is_drafter for group in table.groups] == [False, True]
    assert pages_of(table, 256) == {0: 1, 1: 4}


def test_a11e_states_set_the_grid_and_not_the_smallest_block():
    table = table_of_specs(full_spec(1648), full_spec(816), state_spec(1648))
    assert table.alignment_tokens == 84_048
    assert table.hash_block_tokens == 16


def test_a24_the_ring_is_part_of_the_alignment():
    groups = full_spec(32), window_spec(32, 64)
    assert table_of_specs(*groups, ring_spec(256)).alignment_tokens == 256
    assert table_of_specs(*groups, ring_spec(16)).alignment_tokens == 32


def test_a01_a_model_of_rings_only_has_no_groups():
    table = table_of_specs(ring_spec(8), ring_spec(4))
    assert table.groups == ()
    assert [out.group_id for out in table.excluded] == [0, 1]


def test_a_window_keeps_what_the_engine_retains_beyond_it():
    table = table_of_specs(full_spec(), window_spec(16, 64, extra_retained_tokens=3))
    assert table.group(1).window_tokens == 67


def test_context_parallel_scales_sharded_groups_only():
    config = cache_config(full_spec(16), state_spec(32))
    table = build_group_table(config, alignment_tokens=32, hash_block_tokens=32, context_parallel=2)
    assert [group.span_tokens for group in table.groups] == [32, 32]


def test_padding_is_no_part_of_a_page():
    table = table_of_specs(full_spec(16, page_size_padded=100), state_spec(page_size_padded=512))
    assert [group.page_bytes for group in table.groups] == [64, 64]


def test_a_page_holds_every_layer_of_its_group():
    small, large = full_spec(16, heads=1), full_spec(16, heads=3)
    both = UniformTypeKVCacheSpecs(block_size=16, kv_cache_specs={"a": small, "b": large})
    assert table_of_specs(both).group(0).page_bytes == 64 + 192


# Refusals.


@pytest.mark.parametrize("mode", ["none", "all"])
def test_recurrent_states_in_another_cache_mode_are_refused_with_the_flag(mode):
    config = cache_config(full_spec(), state_spec(mode=mode))
    with pytest.raises(GroupTableError, match=f"group 1: .* '{mode}'; .*--mamba-cache-mode align"):
        build_group_table(config, alignment_tokens=16, hash_block_tokens=16)


UNKNOWN = {
    "ChunkedLocalAttentionSpec": ChunkedLocalAttentionSpec(
        block_size=16, num_kv_heads=1, head_size=1, dtype=torch.float16, attention_chunk_size=32
    ),
    "CrossAttentionSpec": CrossAttentionSpec(
        block_size=16, num_kv_heads=1, head_size=1, dtype=torch.float16
    ),
    # Full attention by its class, but blocks of generated tokens are let go.
    "RSWASpec": RSWASpec(
        block_size=16, num_kv_heads=1, head_size=1, dtype=torch.float16, rswa_window=64
    ),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_a_cache_of_an_unknown_kind_is_refused_with_its_group_and_type(name):
    with pytest.raises(GroupTableError, match=f"group 1: a cache of type {name} cannot be stored"):
        table_of_specs(full_spec(), UNKNOWN[name])


def test_a_group_that_mixes_kinds_is_refused():
    mixed = UniformTypeKVCacheSpecs(
        block_size=16, kv_cache_specs={"a": full_spec(), "b": window_spec(16, 32)}
    )
    with pytest.raises(GroupTableError, match=r"group 0 mixes .*'full'.*'window'"):
        table_of_specs(mixed)


# Tensors.


def test_a_tensor_of_another_page_size_is_refused_with_both_numbers():
    config = cache_config(full_spec(), num_blocks=4)
    group = convert(config).group(0)
    with pytest.raises(GroupTableError, match=r"group 0, layer layer.0: .*60 bytes .*says 64"):
        layer_byte_views(config, group, {"layer.0": torch.zeros(4, 60, dtype=torch.uint8)})


def test_a_layer_without_a_tensor_is_refused():
    config = cache_config(full_spec(), num_blocks=4)
    group = convert(config).group(0)
    with pytest.raises(GroupTableError, match=r"layer layer\.0: no cache tensor was registered"):
        layer_byte_views(config, group, {})


def test_a_list_is_refused_from_an_engine_that_registers_tensors():
    config = cache_config(state_spec(), num_blocks=4)
    group = convert(config).group(0)
    both = [torch.zeros(4, 32), torch.zeros(4, 32)]
    with pytest.raises(GroupTableError, match=r"layer\.0: registered as list, which is no tensor"):
        layer_byte_views(config, group, {"layer.0": both})


@pytest.fixture
def revolta(monkeypatch):
    """The engine in use has ReVolta's words, on the way from registered tensors to bytes."""

    class Words(VllmSurface):
        page_parts = RevoltaSurface.page_parts

    monkeypatch.setattr(detection, "detect", Words)


@pytest.mark.usefixtures("revolta")
def test_a_list_is_the_parts_of_a_page_where_the_engine_registers_lists():
    config = cache_config(full_spec(), state_spec(state_bytes=60), num_blocks=4)
    table = convert(config)
    raw = torch.zeros(4, 64, dtype=torch.uint8)
    caches = {"layer.0": raw, "layer.1": [raw[:, :20].view(torch.float16), raw[:, 20:60]]}
    (attention,), (state,) = (layer_byte_views(config, g, caches) for g in table.groups)
    assert (tuple(attention.shape), tuple(state.shape)) == ((4, 64), (4, 60))
    assert state.data_ptr() == raw.data_ptr()


@pytest.mark.usefixtures("revolta")
def test_parts_that_are_not_the_page_of_the_spec_are_refused_with_both_numbers():
    config = cache_config(state_spec(), num_blocks=4)
    group = convert(config).group(0)
    raw = torch.zeros(4, 64, dtype=torch.uint8)
    caches = {"layer.0": [raw[:, :20], raw[:, 20:60]]}
    with pytest.raises(
        GroupTableError, match=r"layer\.0: .*\(4, 20\), \(4, 40\), holds 60 bytes .*says 64"
    ):
        layer_byte_views(config, group, caches)
