"""Questions to the scheduler half: slices, store plans, start-up, where hits end."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from compat.cases.model import Answer, Case

NOTHING = "nothing is stored"
REFUSES = "raises ValueError"


def _slice(
    blocks: Mapping[int, Sequence[int]], spans: Sequence[int], end: int
) -> Callable[[], Answer]:
    def ask() -> Answer:
        from compat.cases import surface

        return surface.slice_blocks(blocks, spans, 0, end)

    return ask


def _numbers_of_ids() -> Answer:
    from compat.cases import surface

    blocks = {0: range(1), 1: range(4), 2: range(64), 3: range(32)}
    return [len(ids) for ids in surface.slice_blocks(blocks, [256, 64, 4, 8], 0, 256)]


def _plan(spans: list[int]) -> Callable[[], Answer]:
    """Two blocks in the normal groups and one in the ring, 32 tokens computed."""

    def ask() -> Answer:
        from compat.cases import surface

        plan = surface.store_plan(
            spans=spans,
            blocks={0: [10, 11], 1: [77], 2: [20, 21]},
            chunk_tokens=16,
            prompt_tokens=32,
            computed_tokens=32,
        )
        return _written(plan)

    return ask


def _written(plan: dict[str, Any] | None) -> Answer:
    if plan is None:
        return NOTHING
    start, end = plan["range"]
    return [f"tokens {start} to {end}", *map(str, plan["block_ids"])]


def _field_plan(
    block: int, groups: int, blocks: Mapping[int, int], prompt: int, computed: int
) -> Callable[[], Answer]:
    """Case A01: the connector's own spans, then the plan; only the range is told."""

    def ask() -> Answer:
        from compat.cases import geometry as g
        from compat.cases import surface

        specs = [g.full(block), g.ring(8), *(g.recurrent(block) for _ in range(groups - 2))]
        half = surface.scheduler_half(
            g.groups_only(specs), chunk_tokens=block, batched_tokens=block
        )
        plan = surface.store_plan(
            spans=list(half._group_tokens_per_block),
            blocks={group: range(1, count + 1) for group, count in blocks.items()},
            chunk_tokens=block,
            prompt_tokens=prompt,
            computed_tokens=computed,
        )
        if plan is None:
            return NOTHING
        ring_ids = plan["block_ids"][1]
        return f"{plan['chunks']} chunks from {plan['range'][0]}, ring blocks {ring_ids}"

    return ask


def _starts(block_sizes: Sequence[int], chunk: int) -> Callable[[], Answer]:
    def ask() -> Answer:
        from compat.cases import geometry as g
        from compat.cases import surface

        first, *others = block_sizes
        specs = [g.full(first), *(g.window(size, 1024) for size in others)]
        half = surface.scheduler_half(g.groups_only(specs), chunk_tokens=chunk)
        return f"starts, spans {list(half._group_tokens_per_block)}"

    return ask


def _unusable_chunk() -> Answer:
    from compat.cases import geometry as g
    from compat.cases import surface

    config = g.groups_only([g.full(544), g.recurrent(544)])
    surface.scheduler_half(config, chunk_tokens=256, batched_tokens=544)
    return "starts"


def _ring_256() -> Any:
    from compat.cases import geometry as g

    return g.groups_only([g.full(32), g.window(32, 64), g.ring(256, row=16)])


def _alignment() -> Answer:
    from compat.cases import surface

    half = surface.scheduler_half(_ring_256(), chunk_tokens=256)
    return f"hits are aligned to {half._hit_alignment_tokens}"


def _where_a_hit_ends(prompt: int, stored: int, chunk: int) -> Callable[[], Answer]:
    def ask() -> Answer:
        from compat.cases import surface

        half = surface.scheduler_half(_ring_256(), chunk_tokens=chunk)
        promised = surface.tokens_to_load(half, prompt_tokens=prompt, stored_tokens=stored)
        return f"{promised} tokens"

    return ask


def _layout_hint() -> Answer:
    from compat.cases import surface

    return surface.layout_hint("LBHNC")


def _refuses_mode_none() -> Answer:
    from compat.cases import geometry as g
    from compat.cases import surface

    found = surface.convert(g.register([g.full(), g.recurrent(state_bytes=1024, mode="none")]))
    return f"{len(found.infos)} groups"


def _recurrent_flag() -> Answer:
    from compat.cases import inputs, surface

    found = surface.convert(inputs.scratch_rank5())
    flags = {info.engine_group_id: getattr(info, "recurrent_state", None) for info in found.infos}
    return f"attention {flags[0]}, state {flags[2]}"


SCHEDULING: tuple[Case, ...] = (
    Case(
        name="recurrent-flag",
        title="a recurrent group says so (`recurrent_state`)",
        right="attention False, state True",
        ask=_recurrent_flag,
    ),
    Case(
        name="recurrent-window/none",
        title="a recurrent group without reusable states is refused: mode none",
        right=REFUSES,
        ask=_refuses_mode_none,
    ),
    Case(
        name="layout-hint",
        title="the layout that vLLM 0.32 resolved (LBHNC) reaches the release",
        right="HND",
        ask=_layout_hint,
    ),
    Case(
        name="slices/zero-span",
        title="block ids of 32 tokens, the ring with span 0",
        right=[[10, 11], [], [20, 21]],
        ask=_slice({0: [10, 11], 1: [77], 2: [20, 21]}, [16, 0, 16], 32),
        field_cases=("A01", "A02"),
    ),
    Case(
        name="slices/256-64-4-8",
        title="numbers of block ids of 256 tokens, spans 256, 64, 4 and 8",
        right=[1, 4, 64, 32],
        ask=_numbers_of_ids,
        field_cases=("A06",),
    ),
    Case(
        name="store-plan/16-4-16",
        title="store plan of 32 tokens, spans [16, 4, 16]: the middle group holds 4 tokens",
        right=NOTHING,
        ask=_plan([16, 4, 16]),
    ),
    Case(
        name="store-plan/16-0-16",
        title="store plan of 32 tokens, spans [16, 0, 16]",
        right=["tokens 0 to 32", "[10, 11]", "[]", "[20, 21]"],
        ask=_plan([16, 0, 16]),
        field_cases=("A01",),
    ),
    Case(
        name="field-plan/a",
        title="field geometry of 1600 with a ring of 8: 3,200 tokens computed",
        right="2 chunks from 0, ring blocks []",
        ask=_field_plan(1600, 6, {0: 2, 1: 1, 2: 2, 3: 2, 4: 2, 5: 2}, 3200, 3200),
        field_cases=("A01",),
    ),
    Case(
        name="field-plan/b",
        title="field geometry of 816 with a ring of 8: 883 of 9,025 tokens computed",
        right="1 chunks from 0, ring blocks []",
        ask=_field_plan(816, 6, {0: 12, 1: 1, 2: 16, 3: 16, 4: 16, 5: 16}, 9025, 883),
        field_cases=("A01",),
    ),
    Case(
        name="starts/256-64-4-8",
        title="start with spans 256, 64, 4 and 8 and chunk 256",
        right="starts, spans [256, 64, 4, 8]",
        ask=_starts([256, 64, 4, 8], 256),
        field_cases=("A06",),
    ),
    Case(
        name="starts/544",
        title="start with spans of 544 and chunk 256",
        right=REFUSES,
        ask=_unusable_chunk,
        field_cases=("A06",),
    ),
    Case(
        name="alignment/ring-256",
        title="alignment of hits with blocks of 32 and a ring of 256, chunk 256",
        right="hits are aligned to 256",
        ask=_alignment,
        field_cases=("A24",),
    ),
    Case(
        name="alignment/hit",
        title="a ring of 256, 992 of 1,000 tokens stored in chunks of 32: tokens to load",
        right="768 tokens",
        ask=_where_a_hit_ends(prompt=1000, stored=992, chunk=32),
        field_cases=("A24",),
    ),
    Case(
        name="alignment/partial-hit",
        title="the same with 544 tokens stored",
        right="512 tokens",
        ask=_where_a_hit_ends(prompt=1000, stored=544, chunk=32),
        field_cases=("A24",),
    ),
    Case(
        name="alignment/last-token",
        title="a ring of 256, all of 768 tokens stored in chunks of 256: tokens to load",
        right="512 tokens",
        ask=_where_a_hit_ends(prompt=768, stored=768, chunk=256),
        field_cases=("A12", "A24"),
    ),
)
