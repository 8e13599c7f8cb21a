"""What ReVolta's own code allocates for a cache and registers with a connector, on a CPU.

Both of its model runners, for configurations that its planning functions put together
(`tests/compat/lab/plans.py`): our view of a page has each byte that its tensors, or the
views its INT8 kernels read, write in a block, once and nothing else, and pages come back.
"""

from collections.abc import Iterator
from functools import cache
from typing import Any

from tests.compat.test_schedulers import REVOLTA, drive


@cache
def told() -> dict[str, Any]:
    """The answer of one process that has the engine first on its path."""
    return drive(REVOLTA, "pages")


def plans() -> dict[str, Any]:
    """By plan and runner."""
    return told()["pages"]


def groups() -> Iterator[tuple[str, dict[str, Any]]]:
    """Every stored group of every plan under every runner that takes it."""
    for name, plan in plans().items():
        for group_id, group in plan["groups"].items():
            yield f"{name}, group {group_id}", group


def test_every_byte_of_a_block_is_seen_once_and_no_other():
    found = dict(groups())
    assert len(found) > 40
    assert [name for name, group in found.items() if not group["every byte once"]] == []


def test_the_bytes_of_the_block_beside_it_are_not_taken_for_them():
    """Control of the comparison."""
    found = dict(groups())
    assert [
        name for name, group in found.items() if group["every byte once, of other blocks"]
    ] == []


def test_pages_come_back_into_other_blocks_and_nothing_beside_them_changes():
    assert {name: group["wrong after a round trip"] for name, group in groups()} == dict.fromkeys(
        dict(groups()), 0
    )


def test_one_changed_byte_on_the_host_is_noticed_in_every_group():
    """Control of the round trips."""
    assert {name: group["wrong when one byte is"] for name, group in groups()} == dict.fromkeys(
        dict(groups()), 1
    )


def test_recurrent_layers_are_registered_as_their_parts():
    found = dict(groups())
    for runner in ("first runner", "second runner"):
        assert found[f"attention and states, {runner}, group 1"]["parts"] == [2, 2]
        assert found[f"heads before tokens, {runner}, group 1"]["parts"] == [4, 4]
        # Convolution and state, without what pads them to the page of attention.
        assert found[f"attention and states, {runner}, group 1"]["page bytes"] == 2 * (576 + 2048)


def test_padding_between_kernel_blocks_is_left_out():
    found = dict(groups())
    for runner in ("first runner", "second runner"):
        padded = found[f"padded kernel blocks, {runner}, group 0"]
        assert (padded["page bytes"], padded["runs"]) == (2 * 8192, [4, 4])
        scaled = found[f"int8, window, states, {runner}, group 0"]
        # 64 tokens of two heads: 16 bytes and a scale, K and V.
        assert (scaled["page bytes"], scaled["runs"]) == (2 * 64 * 2 * 20 * 2, [4, 4])


def test_layers_packed_into_one_block_are_told_apart():
    for name, members in (("two layers packed", 2), ("three layers packed", 3)):
        plan = plans()[f"{name}, second runner"]
        assert [len(each) for each in plan["packed"]] == [members, members]
        assert plan["left out"] == [1]  # the rings
    assert plans()["int8, two layers packed, second runner"]["packed"]


def test_settings_that_change_the_order_of_bytes_are_told_apart_on_disk():
    assert len(told()["layouts"]) == len(set(told()["layouts"])) == 6
