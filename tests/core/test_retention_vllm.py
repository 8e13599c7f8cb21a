"""Our masks against vLLM's own, on generated inputs."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from vllm.v1.core import kv_cache_coordinator
from vllm.v1.core.single_type_kv_cache_manager import MambaManager, SlidingWindowManager

from lmc_grouped.core.groups import Kind
from lmc_grouped.core.retention import (
    page_mask,
    prompt_mask,
    replay_boundaries,
    resume_points,
    tail_pages,
)
from tests.factories import full, recurrent, table_of, window
from tests.specs import state_spec, window_spec

THOUSANDS = settings(max_examples=1_000)
SPANS = st.sampled_from([1, 2, 3, 8, 16, 64, 784])
INTERVALS = st.one_of(st.none(), st.just(0), st.integers(1, 20))


def vllm_window_mask(group, alignment, pages, retention, boundaries) -> list[int]:
    mask = SlidingWindowManager.reachable_block_mask(
        0,
        pages,
        alignment,
        window_spec(group.span_tokens, group.window_tokens),
        group.is_drafter,
        retention,
        boundaries,
    )
    return [page for page in range(pages) if mask is None or mask[page]]


def vllm_state_mask(group, alignment, pages, retention, boundaries) -> list[int]:
    mask = MambaManager.reachable_block_mask(
        0, pages, alignment, state_spec(group.span_tokens), False, retention, boundaries
    )
    return [page for page in range(pages) if mask is None or mask[page]]


@st.composite
def masks(draw):
    """span, alignment, pages, retention, boundaries."""
    span = draw(SPANS)
    alignment = span * draw(st.integers(1, 12))
    pages = draw(st.integers(0, 150))
    interval = draw(INTERVALS)
    retention = None if interval is None else interval * alignment
    boundaries = draw(st.lists(st.integers(0, (pages + 5) * span), max_size=4))
    return span, alignment, pages, retention, boundaries


@THOUSANDS
@given(masks())
def test_states_are_kept_where_vllm_keeps_them(case):
    span, alignment, pages, retention, boundaries = case
    group = recurrent(0, span)
    ours = page_mask(group, alignment, pages, retention, boundaries)
    assert ours.indices() == vllm_state_mask(group, alignment, pages, retention, boundaries)


@THOUSANDS
@given(masks(), st.integers(1, 2_000), st.booleans())
def test_window_tails_are_kept_where_vllm_keeps_them(case, window_tokens, drafts):
    span, alignment, pages, retention, boundaries = case
    group = replace(window(0, window_tokens, span), is_drafter=drafts)
    ours = set(page_mask(group, alignment, pages, retention, boundaries).indices())
    theirs = set(vllm_window_mask(group, alignment, pages, retention, boundaries))
    # With a drafter vLLM keeps page 0 for a boundary at token 0, where nothing is
    # resumed. We keep nothing for it.
    at_zero = drafts and retention is not None and any(b < alignment for b in boundaries)
    assert ours - theirs == set()
    assert theirs - ours <= ({0} if at_zero else set())


@given(st.integers(1, 300), SPANS, st.integers(1, 20_000))
def test_a_tail_is_as_long_as_vllm_wants_it(window_tokens, span, factor):
    for drafts in (False, True):
        group = replace(window(0, window_tokens * factor, span), is_drafter=drafts)
        assert tail_pages(group) == SlidingWindowManager._contiguous_blocks_for_hit(
            group.window_tokens, span, drafts
        )


@THOUSANDS
@given(st.integers(1, 100_000), st.integers(1, 5_000))
def test_with_a_drafter_a_prompt_is_replayed_where_vllm_replays_it(prompt, grid):
    theirs = kv_cache_coordinator.replay_boundaries(prompt, grid, use_eagle=True)
    # vLLM lists token 0, where nothing is resumed.
    assert replay_boundaries(prompt, grid, grid) == tuple(b for b in theirs if b > 0)


@THOUSANDS
@given(st.integers(1, 100_000), st.integers(1, 5_000))
def test_without_a_drafter_the_longer_siblings_point_is_kept_as_well(prompt, grid):
    (theirs,) = kv_cache_coordinator.replay_boundaries(prompt, grid, use_eagle=False)
    expected = {theirs // grid * grid}
    # vLLM keeps only the repeat's point. The next turn of a chat is a longer
    # prompt, and it can resume one step higher when this one ended on the grid.
    if prompt % grid == 0:
        expected.add(prompt)
    assert set(replay_boundaries(prompt, grid)) == expected - {0}


@st.composite
def models(draw):
    span = draw(SPANS)
    alignment = span * draw(st.integers(1, 12))
    drafter_span = draw(st.sampled_from([None, alignment, span]))
    groups = [full(0, alignment), recurrent(1, span), window(2, draw(st.integers(1, 900)), span)]
    if drafter_span:
        groups.append(full(3, drafter_span, drafter=True))
    table = table_of(*groups, alignment=alignment, hash_block=1)
    interval = draw(INTERVALS)
    retention = None if interval is None else interval * alignment
    return table, draw(st.integers(1, 100 * alignment)), retention, drafter_span


@THOUSANDS
@given(models())
def test_of_a_whole_prompt_we_keep_all_that_vllm_keeps(case):
    table, prompt, retention, drafter_span = case
    align = table.alignment_tokens
    boundaries = kv_cache_coordinator.replay_boundaries(prompt, align, drafter_span is not None)
    # More is kept for the sibling of a prompt that ends on the grid, and for a
    # drafter whose blocks are smaller than the grid: its checkpoint of a partial
    # tail lies one such block below the end (get_mamba_prefill_checkpoint_position).
    extra = set(resume_points(table, prompt)) - {b // align * align for b in boundaries}
    assert not extra or prompt % align == 0 or drafter_span not in {None, align}
    for group in table.groups[1:3]:
        oracle = vllm_state_mask if group.kind is Kind.RECURRENT else vllm_window_mask
        pages = prompt // group.span_tokens
        ours = prompt_mask(group, table, prompt, retention).indices()
        assert ours == oracle(group, align, pages, retention, [*boundaries, *extra])


@pytest.mark.parametrize("retention", [None, 0, 128])
def test_a_part_of_vllms_mask_is_that_part_of_the_whole(retention):
    # vLLM asks for blocks [start, end) as they fill; ours is one mask.
    group = window(0, 40, 16)
    whole = page_mask(group, 64, 40, retention, [300, 470])
    for start in range(0, 40, 3):
        part = SlidingWindowManager.reachable_block_mask(
            start, 40, 64, window_spec(16, 40), False, retention, [300, 470]
        )
        kept = range(start, 40) if part is None else [start + i for i, k in enumerate(part) if k]
        assert list(kept) == [page for page in whole.indices() if page >= start]
