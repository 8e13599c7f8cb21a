"""Retention: the numbers of the field cases, and slow models of masks and resume points."""

from math import lcm

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from lmc_grouped.core.groups import GroupTable, Kind
from lmc_grouped.core.hits import longest_hit
from lmc_grouped.core.retention import (
    RetentionError,
    check_retention,
    context_count,
    kept_count,
    kept_pages,
    prompt_mask,
    replay_boundaries,
    resume_points,
)
from tests.factories import A13_REPEATS, full, probe_of, recurrent, table_of, window


def states(table: GroupTable, prompt: int, retention: int | None = 0, junctions=()) -> list[int]:
    """Tokens at which the kept states of the first recurrent group end."""
    group = next(group for group in table.groups if group.kind is Kind.RECURRENT)
    pages = kept_pages(group, table, prompt, retention, junctions)
    return [(page + 1) * group.span_tokens for page in pages]


@pytest.mark.parametrize(
    ("block", "prompt", "resend"),
    A13_REPEATS,
)
def test_a13_the_first_repeat_hits_the_state_that_retention_kept(block, prompt, resend):
    table = table_of(full(0, block, drafter=True), recurrent(1, block))
    assert resend in states(table, prompt)
    pages = {g.group_id: kept_pages(g, table, prompt, 0) for g in table.groups}
    found = longest_hit(table, probe_of(pages), local_tokens=0, limit_tokens=prompt - 1)
    assert found.boundary_tokens == resend


def test_a13_a_prompt_that_ends_on_the_grid_keeps_the_siblings_point_and_the_repeats():
    table = table_of(full(0, 32, drafter=True), recurrent(1, 32))
    assert states(table, 128) == [64, 96]
    without_drafter = table_of(full(0, 32), recurrent(1, 32))
    assert states(without_drafter, 128) == [96, 128]


def test_a13_a_prompt_that_ends_between_two_boundaries_has_one_point():
    table = table_of(full(0, 32, drafter=True), recurrent(1, 32))
    assert states(table, 100) == [64]
    assert states(table_of(full(0, 32), recurrent(1, 32)), 100) == [96]


def test_a13_a_drafter_of_small_blocks_proves_a_point_that_a_whole_grid_step_would_lose():
    assert replay_boundaries(95, grid_tokens=64, drop_tokens=64) == ()
    table = table_of(full(0, 64), full(2, 16, drafter=True), recurrent(1, 64), hash_block=16)
    assert resume_points(table, 95) == (64,)
    assert states(table, 95) == [64]


@pytest.mark.parametrize(
    ("shared", "expected"), [(300, []), (620, []), (950, []), (970, [480]), (1440, [480, 960])]
)
def test_a13_a_short_prompt_keeps_no_state_that_a_drafter_could_not_prove(shared, expected):
    table = table_of(full(0, 480, drafter=True), recurrent(1, 480))
    assert states(table, shared) == expected


def test_a16_a_junction_keeps_one_more_state():
    table = table_of(full(0, 784), *(recurrent(i, 784) for i in (1, 2, 3, 4)))
    assert states(table, 60_000) == [76 * 784]
    assert states(table, 60_000, junctions=(39_200,)) == [50 * 784, 76 * 784]
    assert states(table, 60_000, junctions=(39_999,)) == [51 * 784, 76 * 784]


def test_a08_the_reference_request_keeps_one_state_or_one_per_interval():
    table = table_of(full(0, 784), recurrent(1, 784))
    assert states(table, 65_536) == [83 * 784]
    assert states(table, 65_536, 6_272) == [*range(6_272, 65_536, 6_272), 83 * 784]
    assert len(states(table, 65_536, None)) == 83


def test_full_groups_keep_every_page_under_every_rule():
    table = table_of(full(0, 16), recurrent(1, 32))
    for retention in (None, 0, 64):
        assert kept_pages(table.groups[0], table, 100, retention) == [0, 1, 2, 3, 4, 5]


def test_a_window_keeps_the_tail_below_each_point():
    table = table_of(full(0, 128), window(1, 40, 16))
    group = table.groups[1]
    assert kept_pages(group, table, 300, 0) == [13, 14, 15]
    assert kept_pages(group, table, 300, 0, (128,)) == [5, 6, 7, 13, 14, 15]
    # On the grid there are two points, whatever the window.
    assert kept_pages(group, table, 256, 0) == [5, 6, 7, 13, 14, 15]


def test_a_drafting_window_keeps_the_page_above_the_boundary_as_well():
    table = table_of(full(0, 64), replace(window(1, 33, 16), is_drafter=True))
    assert resume_points(table, 300) == (192, 256)
    assert kept_pages(table.groups[1], table, 300, 0) == [10, 11, 12, 14, 15, 16]


def test_dense_retention_keeps_of_a_window_what_can_serve_some_boundary():
    table = table_of(full(0, 64), window(1, 17, 16))
    assert kept_pages(table.groups[1], table, 200, None) == [3, 7, 11]
    # A window as long as the grid is wide leaves nothing out.
    wide = table_of(full(0, 64), window(1, 65, 16))
    assert kept_pages(wide.groups[1], wide, 200, None) == list(range(12))


def test_a_context_is_charged_for_its_last_point_only():
    table = table_of(full(0, 64), window(1, 128, 32), recurrent(2, 64))
    assert [kept_count(g, table, 640, 0) for g in table.groups] == [10, 6, 2]
    assert [context_count(g, table, 640, 0) for g in table.groups] == [10, 4, 1]


def test_an_interval_that_does_not_end_where_hits_end_is_refused():
    table = table_of(full(0, 784), recurrent(1, 784))
    for fine in (None, 0, 784, 6_272):
        check_retention(table, fine)
    with pytest.raises(RetentionError, match=r"6000 tokens .* multiple of 784 .* example 6272"):
        check_retention(table, 6_000)
    with pytest.raises(RetentionError, match="interval of -784 tokens"):
        check_retention(table, -784)
    with pytest.raises(RetentionError, match="for example 784"):
        check_retention(table, 10)


def test_counting_a_very_long_prompt_takes_no_longer():
    table = table_of(full(0, 16), window(1, 1_024, 16), recurrent(2, 16))
    for retention in (None, 0, 16, 4_096):
        for group in table.groups:
            assert kept_count(group, table, 2**50, retention) > 0


@st.composite
def prompts(draw):
    """A table, a prompt, a rule and junctions."""
    groups = []
    for group_id in range(draw(st.integers(1, 3))):
        span = draw(st.sampled_from([1, 2, 3, 4, 6]))
        kind = draw(st.sampled_from([full, recurrent, window]))
        drafter = draw(st.booleans())
        if kind is recurrent:
            groups.append(recurrent(group_id, span))
        elif kind is full:
            groups.append(full(group_id, span, drafter=drafter))
        else:
            groups.append(
                replace(window(group_id, draw(st.integers(1, 30)), span), is_drafter=drafter)
            )
    grid = lcm(*(group.span_tokens for group in groups))
    table = table_of(*groups, alignment=grid * draw(st.integers(1, 4)), hash_block=1)
    prompt = draw(st.integers(0, 12 * table.alignment_tokens))
    interval = draw(st.sampled_from([None, 0, 1, 2, 5]))
    retention = None if interval is None else interval * table.alignment_tokens
    junctions = draw(st.lists(st.integers(0, prompt), max_size=3))
    return table, prompt, retention, tuple(junctions)


@settings(max_examples=500)
@given(prompts())
def test_the_count_is_the_number_of_pages_kept(case):
    table, prompt, retention, junctions = case
    for group in table.groups:
        pages = kept_pages(group, table, prompt, retention, junctions)
        assert kept_count(group, table, prompt, retention, junctions) == len(pages)
        assert pages == sorted(set(pages))
        assert all(0 <= page < prompt // group.span_tokens for page in pages)
        mask = prompt_mask(group, table, prompt, retention, junctions)
        assert not mask.keeps(-1)
        assert not mask.keeps(prompt // group.span_tokens)


@settings(max_examples=500)
@given(prompts(), st.integers(1, 200))
def test_every_point_that_retention_promises_is_a_hit(case, more_tokens):
    table, prompt, retention, junctions = case
    points = resume_points(table, prompt)
    pages = {g.group_id: kept_pages(g, table, prompt, retention, junctions) for g in table.groups}
    has = probe_of(pages)
    drop = table.alignment_tokens if any(g.is_drafter for g in table.groups) else 0
    by_whole_steps = [p for p in points if p + drop <= prompt]
    if not by_whole_steps:
        return
    sibling = longest_hit(table, has, local_tokens=0, limit_tokens=prompt + more_tokens)
    assert sibling.boundary_tokens >= max(by_whole_steps)
    again = [p for p in by_whole_steps if p + drop <= prompt - 1]
    same = longest_hit(table, has, local_tokens=0, limit_tokens=prompt - 1)
    assert same.boundary_tokens >= max(again, default=0)
