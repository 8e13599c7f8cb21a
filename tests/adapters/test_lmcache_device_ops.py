"""Block copies for LMCache: the bytes of its own torch operations, or a refusal."""

from typing import Any

import pytest
import torch
from lmcache.lmcache_native import EngineKVFormat, TransferDirection
from lmcache.v1.multiprocess.transfer_context import base as transfer_context

from lmc_grouped.adapters.lmcache_blocks import LAYOUTS
from lmc_grouped.adapters.lmcache_device_ops import CudaSm70Ops
from tests.adapters import device_layouts as layouts

D2H, H2D = TransferDirection.D2H, TransferDirection.H2D
REFUSED = sorted(set(EngineKVFormat.__members__) - set(LAYOUTS))


@pytest.fixture
def ops() -> CudaSm70Ops:
    ops = CudaSm70Ops()
    ops.ensure_native()
    return ops


@pytest.mark.parametrize("padded", [False, True], ids=["tight", "padded"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.uint8, torch.float32], ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_stores_and_loads_leave_the_bytes_that_lmcache_leaves(
    layout: str, dtype: torch.dtype, padded: bool, ops: CudaSm70Ops
) -> None:
    for seed in range(4):
        ours = layouts.outcome(
            ops.multi_layer_block_kv_transfer, layout, dtype, seed, padded=padded
        )
        assert ours == layouts.outcome(layouts.baseline, layout, dtype, seed, padded=padded)


def test_every_layout_is_either_served_or_refused_by_name() -> None:
    assert len(LAYOUTS) == 16
    assert REFUSED == ["NL_X_NB_BSV_BSS", "NL_X_NP_X_NB_BS_ONE_HS", "NL_X_TWO_NB_NH_ONE_BS_HS"]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    ("layout", "taken_for"),
    [
        ("NL_X_TWO_NB_BS_NH_HS", "NL_X_TWO_NB_NH_BS_HS"),
        ("NB_NL_TWO_NH_BS_HS", "NB_NL_TWO_BS_NH_HS"),
        ("NL_X_NB_NH_BS_CS", "NL_X_NB_BS_NH_CS"),
    ],
)
def test_a_layout_taken_for_another_is_noticed_by_the_comparison(
    layout: str, taken_for: str, seed: int, ops: CudaSm70Ops
) -> None:
    def mistaken(*args: Any) -> None:
        ops.multi_layer_block_kv_transfer(
            *args[:7], EngineKVFormat.__members__[taken_for], *args[8:]
        )

    ours = layouts.outcome(mistaken, layout, torch.bfloat16, seed, padded=False)
    assert ours != layouts.outcome(layouts.baseline, layout, torch.bfloat16, seed, padded=False)


def test_one_block_that_is_not_copied_is_noticed_by_the_comparison(ops: CudaSm70Ops) -> None:
    def lossy(*args: Any) -> None:
        ids = list(args[2])
        ops.multi_layer_block_kv_transfer(*args[:2], ids[:-1], *args[3:])

    assert len(layouts.disagreements(lossy, seeds=1)) == 6 * len(LAYOUTS)


def call(ops: CudaSm70Ops, layout: str = "NL_X_NB_TWO_BS_NH_HS", **changes: Any) -> torch.Tensor:
    """One call on fresh memory; what it left in its first object."""
    torch.manual_seed(1)
    cache = layouts.cache_of("NL_X_NB_TWO_BS_NH_HS", torch.bfloat16, padded=False)
    objects = layouts.objects_of(cache, 1, torch.bfloat16)
    args = layouts.arguments("NL_X_NB_TWO_BS_NH_HS", cache, D2H, [1, 2], objects, 0)
    args[7] = EngineKVFormat.__members__[layout]
    for place, value in changes.items():
        args[int(place[1:])] = value
    ops.multi_layer_block_kv_transfer(*args)
    return objects[0]


@pytest.mark.parametrize("layout", REFUSED)
def test_a_layout_that_is_not_served_is_refused_with_those_that_are(
    layout: str, ops: CudaSm70Ops
) -> None:
    with pytest.raises(ValueError, match=rf"layout {layout} is not served; served are NB_NL_TWO"):
        call(ops, layout)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"_0": torch.zeros(3, dtype=torch.int64)}, "must be given as tensors, not as a tensor of"),
        ({"_0": [140000, 150000]}, "must be given as tensors, not as a list"),
        ({"_0": []}, "must be given as tensors"),
        ({"_1": [140000]}, "objects must be given as tensors, not as addresses"),
        ({"_1": [torch.zeros(2, 3, 8, 24)]}, "elements of 2 bytes are needed, got torch.float32"),
        ({"_1": [torch.zeros(2, 3, 24, 8).bfloat16().transpose(2, 3)]}, "contiguous elements"),
        ({"_1": [torch.zeros(2, 3, 4, 24).bfloat16()]}, "has no room for 2 blocks of 4 tokens"),
        ({"_2": [1, 9]}, r"block ids 1\.\.9 are outside 0\.\.8"),
        ({"_2": [-1, 2]}, r"block ids -1\.\.2 are outside 0\.\.8"),
        ({"_4": 7}, "direction 7"),
        ({"_6": 6}, "objects of 6 tokens are no multiple of blocks of 4"),
        ({"_6": 0}, "objects of 0 tokens"),
        ({"_8": -1}, "-1 blocks skipped"),
        (
            {"_0": [torch.zeros(9, 2, 8, 4, 6).bfloat16()] * 3},
            "layers of one shape with 4 tokens per block are needed",
        ),
    ],
)
def test_what_does_not_fit_is_refused(
    changes: dict[str, Any], words: str, ops: CudaSm70Ops
) -> None:
    with pytest.raises(ValueError, match=words):
        call(ops, **changes)


def test_a_load_with_a_wrong_id_writes_nothing(ops: CudaSm70Ops) -> None:
    cache = layouts.cache_of("NL_X_NB_BS_NH_CS", torch.bfloat16, padded=False)
    before = [memory.clone() for memory in cache.memory]
    objects = layouts.objects_of(cache, 1, torch.bfloat16)
    args = layouts.arguments("NL_X_NB_BS_NH_CS", cache, H2D, [1, 99], objects, 0)
    with pytest.raises(ValueError, match="block ids"):
        ops.multi_layer_block_kv_transfer(*args)
    assert all(map(torch.equal, cache.memory, before))


@pytest.mark.parametrize(
    "name",
    [
        "multi_layer_kv_transfer",
        "multi_layer_kv_transfer_unilateral",
        "single_layer_kv_transfer",
        "single_layer_kv_transfer_sgl",
        "lmcache_memcpy_async",
    ],
)
def test_operations_that_are_not_ours_are_refused(name: str, ops: CudaSm70Ops) -> None:
    with pytest.raises(NotImplementedError, match=f"cuda-sm70 has no {name}.*lmc_grouped"):
        getattr(ops, name)(1, key=2)


def test_what_lmcache_would_hand_whole_plans_to_is_not_there(ops: CudaSm70Ops) -> None:
    assert not hasattr(ops, "execute_object_group_transfer")
    assert not hasattr(ops, "execute_direct_copy_transfer")


@pytest.mark.parametrize("layout", ["NL_X_NB_NH_BS_CS", "NL_X_NB_BS_NH_CS"])
def test_lmcache_gathers_and_scatters_a_workers_cache_through_it(
    layout: str, ops: CudaSm70Ops, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = layouts.cache_of(layout, torch.bfloat16, padded=False)
    kv_caches = {f"layers.{i}.attn": each for i, each in enumerate(cache.caches)}
    hints = {"kv_layout": "HND" if "NH_BS" in layout else "NHD"}
    ids = [5, 0, 8, 3]

    def gather() -> list[torch.Tensor]:
        return transfer_context.gather_paged_kv_to_cpu(
            kv_caches,
            ids,
            2,
            layout_hints=hints,
            engine_kv_format=EngineKVFormat.__members__[layout],
        )

    theirs = gather()
    monkeypatch.setattr(transfer_context, "resolve_device_ops", lambda _: ops)
    ours = gather()
    assert len(ours) == 2
    assert all(
        map(torch.equal, [o.view(torch.int16) for o in ours], [t.view(torch.int16) for t in theirs])
    )
    before = [memory.clone() for memory in cache.memory]
    for memory in cache.memory:
        memory.zero_()
    transfer_context.scatter_cpu_to_paged_kv(
        kv_caches,
        ids,
        ours,
        2,
        layout_hints=hints,
        engine_kv_format=EngineKVFormat.__members__[layout],
    )
    for memory, old in zip(cache.memory, before, strict=True):
        assert torch.equal(memory[ids], old[ids])
        assert not memory[[1, 2, 4, 6, 7]].any()
