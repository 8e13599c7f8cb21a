"""The group table: what is refused, what is kept, what ranks compare."""

import msgspec
import pytest

from lmc_grouped.core.groups import (
    ExcludedGroup,
    GroupSpec,
    GroupTable,
    GroupTableError,
    Kind,
)
from tests.factories import full, recurrent, table_of, window


def mixed_table() -> GroupTable:
    return table_of(full(0, 32), recurrent(2, 64), window(3, 48, 16), scratch_ids=(1,))


def test_ids_of_groups_that_take_no_part_stay_holes():
    table = mixed_table()
    assert table.group_ids == (0, 2, 3)
    assert table.group(2).kind is Kind.RECURRENT
    with pytest.raises(KeyError, match=r"group 1 is not stored; stored groups are \(0, 2, 3\)"):
        table.group(1)


def test_a_table_comes_back_from_json_unchanged():
    table = mixed_table()
    assert GroupTable.from_json(table.to_json()) == table


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[]",
        b"{}",
        b'{"groups": 1, "alignment_tokens": 16, "hash_block_tokens": 16}',
        b'{"groups": [{"group_id": 0, "kind": "striped", "span_tokens": 1, "page_bytes": 1}],'
        b' "alignment_tokens": 16, "hash_block_tokens": 16}',
        # valid JSON of the right shape whose span does not divide the alignment
        b'{"groups": [{"group_id": 0, "kind": "full", "span_tokens": 12, "page_bytes": 1}],'
        b' "alignment_tokens": 16, "hash_block_tokens": 4}',
    ],
)
def test_text_that_is_no_table_is_refused(text):
    with pytest.raises(GroupTableError):
        GroupTable.from_json(text)


def test_a_scratch_group_cannot_be_a_stored_group():
    with pytest.raises(GroupTableError, match=r"group 4 \(scratch\).*list it under `excluded`"):
        GroupSpec(group_id=4, kind=Kind.SCRATCH, span_tokens=8, page_bytes=1)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"group_id": -1}, "group_id is -1; it must be 0 or more"),
        ({"span_tokens": 0}, r"group 7 \(full\): span_tokens is 0; it must be positive"),
        ({"page_bytes": -1}, r"group 7 \(full\): page_bytes is -1; it must not be negative"),
        ({"window_tokens": 9}, r"window_tokens is 9; only window groups have one"),
        ({"kind": Kind.WINDOW}, r"window_tokens is None; a window group needs a positive window"),
        ({"kind": Kind.WINDOW, "window_tokens": 0}, r"window_tokens is 0"),
    ],
)
def test_a_group_out_of_range_names_the_field_and_what_is_allowed(fields, message):
    valid = {"group_id": 7, "kind": Kind.FULL, "span_tokens": 16, "page_bytes": 64}
    with pytest.raises(GroupTableError, match=message):
        GroupSpec(**(valid | fields))


def test_a_rank_without_layers_of_a_group_has_pages_of_no_bytes():
    assert full(0, page_bytes=0).page_bytes == 0


def test_a_repeated_id_is_refused_among_stored_and_left_out_groups_alike():
    with pytest.raises(GroupTableError, match=r"group ids \[0\] appear more than once"):
        table_of(full(0), recurrent(0))
    with pytest.raises(GroupTableError, match=r"group ids \[1\] appear more than once"):
        table_of(full(1), scratch_ids=(1,))


def test_a_span_that_does_not_divide_the_alignment_names_one_that_would():
    with pytest.raises(GroupTableError, match=r"group 1: span 24 .* alignment of 32.*is 96"):
        table_of(full(0, 32), full(1, 24), alignment=32, hash_block=8)


def test_a_span_that_is_no_multiple_of_the_hash_block_is_refused():
    with pytest.raises(GroupTableError, match=r"group 1: span 24 is not a multiple of .* 16"):
        table_of(full(0, 48), full(1, 24), hash_block=16)


@pytest.mark.parametrize(("alignment", "hash_block"), [(0, 16), (-16, 16), (16, 0)])
def test_alignment_and_hash_block_must_be_positive(alignment, hash_block):
    with pytest.raises(GroupTableError, match="both must be positive"):
        GroupTable(groups=(), alignment_tokens=alignment, hash_block_tokens=hash_block)


def test_ranks_with_other_layers_page_bytes_and_drafters_have_the_same_fingerprint():
    mine = full(0, page_bytes=100)
    theirs = msgspec.structs.replace(mine, page_bytes=130, layers=("another",), is_drafter=True)
    assert table_of(mine).fingerprint() == table_of(theirs).fingerprint()


@pytest.mark.parametrize(
    "other",
    [
        table_of(full(1, 32), window(3, 64, 16), scratch_ids=(2,)),
        table_of(full(0, 16), window(3, 64, 16), scratch_ids=(2,)),
        table_of(full(0, 32), window(3, 65, 16), scratch_ids=(2,)),
        table_of(full(0, 32), full(3, 16), scratch_ids=(2,)),
        table_of(full(0, 32), window(3, 64, 16)),
        table_of(full(0, 32), window(3, 64, 16), scratch_ids=(2,), alignment=64),
        table_of(full(0, 32), window(3, 64, 16), scratch_ids=(2,), hash_block=8),
    ],
)
def test_any_difference_in_geometry_changes_the_fingerprint(other):
    table = table_of(full(0, 32), window(3, 64, 16), scratch_ids=(2,))
    assert table.fingerprint() != other.fingerprint()


def test_the_reason_a_group_was_left_out_is_no_difference():
    first = GroupTable(
        groups=(), excluded=(ExcludedGroup(0, "a"),), alignment_tokens=1, hash_block_tokens=1
    )
    second = msgspec.structs.replace(first, excluded=(ExcludedGroup(0, "b"),))
    assert first.fingerprint() == second.fingerprint()


def test_only_recurrent_groups_make_a_table_recurrent():
    assert mixed_table().has_recurrent
    assert not table_of(full(0), window(1, 32)).has_recurrent
