"""The inputs of the conversion cases; each is built when its case is asked."""

from collections.abc import Callable
from typing import Any


def scratch(layout: str) -> Callable[[], Any]:
    def build() -> Any:
        from compat.cases import geometry as g

        specs = [g.full(), g.ring(8, row=64), g.recurrent(state_bytes=1024)]
        return g.register(specs, g.KVCacheLayout[layout])

    return build


def scratch_rank5() -> Any:
    from compat.cases import geometry as g

    state = g.recurrent(state_bytes=1024)
    return g.register_tensors(
        {"layer.0": g.full(), "layer.1": g.ring(16, row=32), "layer.2": state},
        {"layer.0": g.rank5(), "layer.1": g.rank5(), "layer.2": g.state_pair(state)},
        {"kv_layout": "NHD"},
    )


def scratch_first() -> Any:
    from compat.cases import geometry as g

    return g.register([g.ring(8, row=64), g.full(), g.window(16, 64)])


def scratch_wrapped() -> Any:
    from compat.cases import geometry as g

    rings = g.wrapped(8, ring_a=g.ring(8, row=64), ring_b=g.ring(8, row=64))
    return g.register([g.full(), rings, g.window(16, 64)])


def scratch_mixed() -> Any:
    from compat.cases import geometry as g

    leaves = {"leaf_a": g.full(8, head_size=16), "leaf_b": g.ring(8, row=64)}
    return g.register([g.full(), g.wrapped(8, **leaves), g.window(16, 64)])


def scratch_rank2() -> Any:
    from dataclasses import replace

    from compat.cases import geometry as g

    made = g.register([g.full(), g.ring(8, row=64), g.window(16, 64)])
    flat = made.caches["layer.1"].view(g.NUM_BLOCKS, -1)
    return replace(made, caches={**made.caches, "layer.1": flat})


def scratch_padded() -> Any:
    from compat.cases import geometry as g

    return g.register([g.full(), g.ring(8, row=32), g.window(16, 64)])


def not_transferred() -> Any:
    from compat.cases import geometry as g

    replica = g.KVCacheGroupSpec(["replica"], g.full(), enable_kv_transfer=False)
    return g.register([g.full(), replica, g.window(16, 64)])


def full_window(layout: str) -> Callable[[], Any]:
    def build() -> Any:
        from compat.cases import geometry as g

        return g.register([g.full(), g.window(16, 64)], g.KVCacheLayout[layout])

    return build


def spans_both_ways() -> Any:
    from compat.cases import geometry as g

    return g.register([g.full(16), g.window(32, 1024, heads=1)])


def spans_deepseek() -> Any:
    from compat.cases import geometry as g

    return g.register(
        [
            g.full(256, heads=1),
            g.window(64, 128, heads=4),
            g.window(4, 8, heads=8, head_size=64),
            g.window(8, 8, heads=8, head_size=32),
        ]
    )


def aliased() -> Any:
    from compat.cases import geometry as g

    return g.register(
        [g.full(), g.window(32, 64, heads=1)],
        aliases={"shared.a": "layer.0", "shared.b": "layer.1"},
    )


def context_parallel(sharded: bool) -> Callable[[], Any]:
    def build() -> Any:
        from compat.cases import geometry as g

        return g.register([g.full(dcp_sharded=sharded), g.recurrent(state_bytes=1024)])

    return build


def recurrent(mode: str) -> Callable[[], Any]:
    def build() -> Any:
        from compat.cases import geometry as g

        return g.register([g.full(), g.recurrent(state_bytes=1024, mode=mode)])

    return build


def differing_heads() -> Any:
    from compat.cases import geometry as g

    leaves = {"wide": g.full(heads=2, head_size=8), "narrow": g.full(heads=2, head_size=4)}
    return g.register([g.wrapped(16, **leaves), g.window(16, 64)])


def two_leaves() -> Any:
    from compat.cases import geometry as g

    leaves = {
        "latent": g.compressed(1152, ratio=1, width=16),
        "indexer": g.compressed(1152, ratio=4, width=64),
    }
    return g.register([g.wrapped(1152, **leaves), g.window(1152, 1152, heads=1, head_size=8)])


def compressed(order: str, padding: str, hint: str | None) -> Callable[[], Any]:
    """Case A03's page of 196 states: ``[124, 1, 196, 128]`` or ``[124, 196, 1, 128]``."""

    def build() -> Any:
        import torch

        from compat.cases import geometry as g

        blocks, states, width, step = 124, 196, 128, 200 * 128
        shape = (blocks, 1, states, width) if order == "HND" else (blocks, states, 1, width)
        if padding == "contiguous":
            cache = torch.zeros(shape, dtype=torch.float16)
        else:
            row = width if padding == "tied" or order == "NHD" else states * width
            strides = (step, row, width, 1) if order == "HND" else (step, width, width, 1)
            cache = torch.zeros(blocks * step, dtype=torch.float16).as_strided(shape, strides)
        hints = {} if hint is None else {"kv_layout": hint}
        return g.register_tensors({"layer.0": g.compressed()}, {"layer.0": cache}, hints)

    return build
