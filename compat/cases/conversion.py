"""Conversions: which groups come out, with which spans, slots and windows."""

from compat.cases import inputs
from compat.cases.model import Conversion, Row, conversion

LAYOUTS = ("LBNHC", "LBHNC", "BLNHC", "BLHNC")
"""vLLM's layouts whose pages are not split by head; LMCache refuses the others."""


def _compressed_cases() -> list[Conversion]:
    variants = (
        ("NHD", "contiguous", "NHD"),
        ("NHD", "padded", "NHD"),
        ("HND", "contiguous", "HND"),
        ("HND", "padded", "HND"),
        ("HND", "contiguous", None),
        ("HND", "padded", None),
        ("HND", "tied", "BLNHC"),
    )
    shapes = {"NHD": "(124,196,1,128)", "HND": "(124,1,196,128)"}
    paddings = {"tied": "padded, head and token strides tied"}
    return [
        conversion(
            f"compressed/{order}-{padding}-{hint or 'no'}-hint",
            f"one state for four tokens, {shapes[order]}, {paddings.get(padding, padding)}, "
            f"{'hint ' + hint if hint else 'no hint'}",
            inputs.compressed(order, padding, hint),
            [Row(0, (0,), 784, 196)],
            field_cases=("A03",),
        )
        for order, padding, hint in variants
    ]


_ATTENTION_AND_STATE = (Row(0, (0,), 16, 16), Row(2, (2,), 16, 16, window=16))
_ATTENTION_AND_WINDOW = (Row(0, (0,), 16, 16), Row(2, (2,), 16, 16, window=64))

CONVERSIONS: tuple[Conversion, ...] = (
    *(
        conversion(
            f"scratch/{layout}",
            f"attention, scratch ring, recurrent state; vLLM 0.32 tensors, {layout}",
            inputs.scratch(layout),
            _ATTENTION_AND_STATE,
            field_cases=("A02",),
        )
        for layout in LAYOUTS
    ),
    conversion(
        "scratch/rank5",
        "the same; tensors of vLLM before 0.26 (rank 5, states in two parts)",
        inputs.scratch_rank5,
        _ATTENTION_AND_STATE,
        field_cases=("A02",),
    ),
    conversion(
        "scratch/first",
        "the scratch ring is group 0",
        inputs.scratch_first,
        [Row(1, (1,), 16, 16), Row(2, (2,), 16, 16, window=64)],
        field_cases=("A02",),
    ),
    conversion(
        "scratch/wrapped",
        "two rings inside a uniform-type wrapper",
        inputs.scratch_wrapped,
        [Row(0, (0,), 16, 16), Row(2, (3,), 16, 16, window=64)],
        field_cases=("A02",),
    ),
    conversion(
        "scratch/mixed",
        "a wrapper of one attention layer and one ring, the ring second",
        inputs.scratch_mixed,
        [Row(0, (0,), 16, 16), Row(2, (3,), 16, 16, window=64)],
        field_cases=("A02",),
    ),
    conversion(
        "scratch/rank2",
        "a ring registered as a tensor of rank 2",
        inputs.scratch_rank2,
        _ATTENTION_AND_WINDOW,
        field_cases=("A02",),
    ),
    conversion(
        "scratch/padded",
        "a ring smaller than its page",
        inputs.scratch_padded,
        _ATTENTION_AND_WINDOW,
        field_cases=("A02",),
    ),
    conversion(
        "scratch/not-transferred",
        "a group the engine rebuilds itself (enable_kv_transfer=False)",
        inputs.not_transferred,
        _ATTENTION_AND_WINDOW,
        field_cases=("A02",),
    ),
    *(
        conversion(
            f"full-window/{layout}",
            f"full attention and a window of two heads, {layout}",
            inputs.full_window(layout),
            [Row(0, (0,), 16, 16), Row(1, (1,), 16, 16, window=64)],
            field_cases=("A05",),
        )
        for layout in LAYOUTS
    ),
    conversion(
        "spans/16-32",
        "spans 16 and 32",
        inputs.spans_both_ways,
        [Row(0, (0,), 16, 16), Row(1, (1,), 32, 32, window=1024)],
        field_cases=("A06",),
    ),
    conversion(
        "spans/256-64-4-8",
        "spans 256, 64, 4 and 8",
        inputs.spans_deepseek,
        [
            Row(0, (0,), 256, 256),
            Row(1, (1,), 64, 64, window=128),
            Row(2, (2,), 4, 4, window=8),
            Row(3, (3,), 8, 8, window=8),
        ],
        field_cases=("A06",),
    ),
    conversion(
        "aliased",
        "layers that share another layer's cache and are in no group",
        inputs.aliased,
        [Row(0, (0,), 16, 16), Row(1, (1,), 32, 32, window=64)],
        field_cases=("A06",),
    ),
    conversion(
        "context-parallel/1",
        "attention and state, context parallel 1",
        inputs.context_parallel(sharded=True),
        [Row(0, (0,), 16, 16), Row(1, (1,), 16, 16, window=16)],
    ),
    conversion(
        "context-parallel/2-sharded",
        "the same, context parallel 2",
        inputs.context_parallel(sharded=True),
        [Row(0, (0,), 32, 16), Row(1, (1,), 16, 16, window=16)],
        context_parallel=2,
    ),
    conversion(
        "context-parallel/2-replicated",
        "attention that every rank holds whole, context parallel 2",
        inputs.context_parallel(sharded=False),
        [Row(0, (0,), 16, 16), Row(1, (1,), 16, 16, window=16)],
        context_parallel=2,
    ),
    conversion(
        "recurrent-window/align",
        "a recurrent group is restored from one block: mode align",
        inputs.recurrent("align"),
        [Row(0, (0,), 16, 16), Row(1, (1,), 16, 16, window=16)],
        windows=True,
    ),
    conversion(
        "recurrent-window/all",
        "the same, mode all",
        inputs.recurrent("all"),
        [Row(0, (0,), 16, 16), Row(1, (1,), 16, 16, window=16)],
        windows=True,
        ours=False,
    ),
    conversion(
        "window",
        "a sliding window keeps its size",
        inputs.full_window("LBHNC"),
        [Row(0, (0,), 16, 16), Row(1, (1,), 16, 16, window=64)],
        windows=True,
    ),
    conversion(
        "wrapped/head-sizes",
        "two head sizes inside one wrapper: two transfer groups, one engine id",
        inputs.differing_heads,
        [
            Row(0, (0,), 16, 16),
            Row(0, (1,), 16, 16),
            Row(1, (2,), 16, 16, window=64),
        ],
        field_cases=("A04",),
    ),
    conversion(
        "wrapped/latent-indexer",
        "a latent cache and an indexer of one state for four tokens in one wrapper",
        inputs.two_leaves,
        [
            Row(0, (0,), 1152, 1152),
            Row(0, (1,), 1152, 288),
            Row(1, (2,), 1152, 1152, window=1152),
        ],
        field_cases=("A04",),
    ),
    *_compressed_cases(),
)
