"""The retention rule applied to requests: boundaries, masks, families; keys of a prefix."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmc_grouped.core.hits import longest_hit
from lmc_grouped.core.prefix import Prefix
from lmc_grouped.core.retention import RetentionError
from lmc_grouped.core.rule import RetentionRule, family_chains
from tests.factories import block_hash, full, probe_of, recurrent, table_of, window


def boundaries(rule: RetentionRule, prompt: int, *, after: int = 0, upto: int = 1_000, at=()):
    return list(rule.boundaries(prompt, at, after_tokens=after, upto_tokens=upto))


def prefix_of(table, tokens: int) -> Prefix:
    count = tokens // table.hash_block_tokens
    return Prefix(table, [block_hash(number) for number in range(count)])


def test_attention_alone_serves_every_boundary_whatever_the_retention():
    for retention in (None, 0, 32):
        rule = RetentionRule(table_of(full(0)), retention)
        assert boundaries(rule, 100, upto=64) == [16, 32, 48, 64]
        assert not rule.is_sparse


def test_sparse_retention_serves_resume_points_junctions_and_interval_ends():
    table = table_of(full(0), recurrent(1))
    assert boundaries(RetentionRule(table, 0), 160) == [144, 160]
    assert boundaries(RetentionRule(table, 0), 160, at=[70]) == [64, 144, 160]
    assert boundaries(RetentionRule(table, 64), 150, upto=200) == [64, 128, 144, 192]
    assert boundaries(RetentionRule(table, 64), 150, after=64, upto=128) == [128]
    assert boundaries(RetentionRule(table, None), 40, upto=50) == [16, 32, 48]


@given(
    retention=st.sampled_from([None, 0, 16, 48]),
    prompt=st.integers(0, 200),
    junctions=st.lists(st.integers(1, 200), max_size=2),
)
def test_a_boundary_is_one_whose_family_the_masks_keep(retention, prompt, junctions):
    table = table_of(full(0), window(1, 33), recurrent(2))
    rule = RetentionRule(table, retention)
    masks = rule.masks(prompt, junctions)
    kept = boundaries(rule, prompt, upto=240, at=junctions)
    for boundary in range(16, 241, 16):
        pages = [(g, page) for g, chain in rule.family(boundary) for page in chain]
        is_kept = all(masks[group_id].keeps(page) for group_id, page in pages)
        assert is_kept or boundary not in kept
        # A tail may be whole by the accident of two others beside it; a state is not.
        if masks[2].keeps(boundary // 16 - 1):
            assert boundary in kept


@given(
    window_tokens=st.integers(1, 70),
    boundary=st.integers(1, 12),
    drafter=st.booleans(),
)
def test_a_family_is_exactly_what_a_hit_at_its_boundary_needs(window_tokens, boundary, drafter):
    groups = full(0, 16, drafter=drafter), window(1, window_tokens), recurrent(2, 16)
    table = table_of(*groups)
    end = boundary * 16
    rule = RetentionRule(table, None)
    pages = {group_id: list(chain) for group_id, chain in rule.family(end)}
    pages[0] = list(range(pages[0][-1] + 1))
    limit = end + rule.proof_tokens
    assert (
        longest_hit(table, probe_of(pages), local_tokens=0, limit_tokens=limit).boundary_tokens
        == end
    )
    for group_id, held in pages.items():
        if held:
            less = pages | {group_id: held[:-1]}
            found = longest_hit(table, probe_of(less), local_tokens=0, limit_tokens=limit)
            assert found.boundary_tokens < end


def test_what_a_lower_boundary_has_linked_is_left_out_of_a_family():
    rule = RetentionRule(table_of(full(0), window(1, 65)), None)
    assert rule.family(160) == [(1, range(6, 10)), (0, range(9, 10))]
    assert rule.family(160, linked_tokens=144) == [(1, range(8, 10)), (0, range(9, 10))]
    assert rule.family(160, linked_tokens=32) == rule.family(160)


def test_a_drafter_adds_the_page_that_proves_the_boundary():
    rule = RetentionRule(table_of(full(0, 32), full(1, 16, drafter=True), hash_block=16), None)
    assert rule.proof_tokens == 16
    assert rule.family(64) == [(0, range(1, 2)), (1, range(4, 5))]


def test_an_interval_between_boundaries_is_refused():
    with pytest.raises(RetentionError, match="40 tokens does not end where hits end"):
        RetentionRule(table_of(full(0), recurrent(1)), 40)


def test_a_page_has_the_hash_of_the_prompt_up_to_its_end():
    table = table_of(full(0, 32), window(1, 40, 16), hash_block=8)
    prefix = prefix_of(table, 100)
    assert prefix.hashed_tokens == 96
    assert prefix.ref(0, 1) == (0, block_hash(7))
    assert prefix.refs(1, range(2)) == [(1, block_hash(1)), (1, block_hash(3))]
    chains = family_chains(RetentionRule(table, None), prefix, 64)
    assert chains == [(1, [block_hash(3), block_hash(5), block_hash(7)]), (0, [block_hash(7)])]


def test_pages_beyond_the_limit_or_the_hashes_are_not_asked_for():
    prefix = prefix_of(table_of(full(0)), 64)
    asked = []

    def has(group_id: int, wanted: bytes) -> bool:
        asked.append(wanted)
        return True

    probe = prefix.probe(has, 40)
    assert [probe(0, page) for page in range(5)] == [True, True, False, False, False]
    assert asked == [block_hash(0), block_hash(1)]
    assert not prefix.probe(has, 1_000)(0, 4)
