"""A restored prefix is the stored prefix: bytes and log-probabilities.

Every reset also overwrites the device cache, so what a restored run reads can
only have come from host memory. The oracle is the engine's own local hit, which
a restored run must equal exactly; float32 models must also be within 1e-4 of
the cold run (facts: decode-produced recurrent state differs from prefill-
produced state in the engine itself).
"""

import numpy as np
import pytest

from lmc_grouped.core.groups import Kind
from tests.engine.lab import Answer, Lab

EXACT = 0.0
COLD_TOLERANCE = 1e-4


def boundary(lab: Lab, prompt_tokens: int) -> int:
    """Where the longest hit of an identical prompt ends (case A12)."""
    align = lab.half.tier.table.alignment_tokens
    return (prompt_tokens - 1) // align * align


def restored(lab: Lab, prompt: list[int], **options: int) -> Answer:
    """The answer after the engine's own cache is gone."""
    lab.reset()
    return lab.run(prompt, **options)


def test_a_restored_prompt_equals_the_local_hit_exactly(lab: Lab) -> None:
    prompt = lab.prompt(2100)
    with lab.counted() as counters:
        cold = lab.run(prompt)
        local = lab.run(prompt)
        again = restored(lab, prompt)
    assert cold.cached_tokens == 0
    assert local.cached_tokens == again.cached_tokens == boundary(lab, 2100)
    assert again.difference(local) == EXACT
    assert again.difference(cold) <= COLD_TOLERANCE
    for group in lab.groups:
        assert counters["restored_tokens"][str(group.group_id)] > 0
        assert counters["stored_bytes"][str(group.group_id)] > 0


def test_restored_pages_equal_the_stored_ones_byte_for_byte(lab: Lab) -> None:
    prompt = lab.prompt(1500)
    end = boundary(lab, 1500)
    lab.run(prompt)
    expected = {
        (group.group_id, page): lab.device_bytes(
            group.group_id, lab.device_block(prompt, group, page)
        )
        for group in lab.groups
        for page in lab.stored_slots(prompt, end)[group.group_id]
    }
    lab.reset()
    assert lab.run(prompt).cached_tokens == end
    slots = lab.stored_slots(prompt, end)
    for group in lab.groups:
        for page, slot in slots[group.group_id].items():
            before = expected[group.group_id, page]
            after = lab.device_bytes(group.group_id, lab.device_block(prompt, group, page))
            assert before.any(), f"group {group.group_id} page {page} is all zeros: proves nothing"
            np.testing.assert_array_equal(lab.slot_bytes(group.group_id, slot), before)
            np.testing.assert_array_equal(after, before)


def test_one_lost_page_of_any_group_is_noticed(lab: Lab) -> None:
    """The negative control of this module: its comparison fails on a zeroed page."""
    for group in lab.groups:
        prompt = lab.prompt(1500)
        lab.run(prompt)
        local = lab.run(prompt)
        assert restored(lab, prompt).difference(local) == EXACT
        lab.check_damage_is_noticed(prompt, local, group.group_id)
        lab.forget()


@pytest.mark.parametrize("blocks_and_rest", [(1, -1), (1, 0), (1, 1), (4, 0), (4, 1)])
def test_a12_a_hit_ends_below_the_last_token(lab: Lab, blocks_and_rest: tuple[int, int]) -> None:
    blocks, rest = blocks_and_rest
    tokens = blocks * lab.half.tier.table.alignment_tokens + rest
    prompt = lab.prompt(tokens)
    cold = lab.run(prompt)
    local = lab.run(prompt)
    again = restored(lab, prompt)
    assert again.cached_tokens == boundary(lab, tokens)
    assert again.difference(local) == EXACT
    assert again.ids == cold.ids


def test_a16_four_siblings_share_a_prefix_and_the_later_ones_restore_it(lab: Lab) -> None:
    shared = lab.prompt(1100)
    reach = boundary(lab, 1101)
    hits = []
    for _ in range(4):
        prompt = shared + lab.prompt(300)
        reference = lab.run(prompt, salt=f"cold-{len(hits)}")
        sibling = restored(lab, prompt)
        local = lab.run(prompt)
        hits.append(sibling.cached_tokens)
        assert sibling.ids == reference.ids
        assert local.ids == reference.ids
    # The second sibling proves the junction, and the states and window tails
    # there are kept from then on; attention alone needs no junction.
    is_sparse = any(group.kind is not Kind.FULL for group in lab.groups)
    assert hits == ([0, 0, reach, reach] if is_sparse else [0, reach, reach, reach])


def test_a_conversation_goes_on_from_its_last_turn(lab: Lab) -> None:
    turn = lab.prompt(1200)
    first = lab.run(turn, max_tokens=40)
    follow_up = [*turn, *first.ids, *lab.prompt(100)]
    with lab.counted() as counters:
        second = restored(lab, follow_up)
    lab.run(follow_up)
    assert second.cached_tokens >= boundary(lab, 1200)
    assert counters["restored_tokens"]
    assert second.ids == lab.run(follow_up, salt="cold").ids


def test_a_longer_host_prefix_completes_a_shorter_local_one(lab: Lab) -> None:
    """Local and host hits in one request: only the difference is loaded."""
    prompt = lab.prompt(2000)
    lab.run(prompt)
    local = lab.run(prompt)
    lab.reset()
    align = lab.half.tier.table.alignment_tokens
    start = prompt[: 3 * align + 1] if align > 32 else prompt[:513]
    head = lab.run(start)
    with lab.counted() as counters:
        again = lab.run(prompt)
    assert again.cached_tokens == local.cached_tokens
    assert again.difference(local) == EXACT
    full = next(g.group_id for g in lab.groups if g.kind is Kind.FULL)
    loaded = counters["restored_tokens"][str(full)]
    assert loaded == local.cached_tokens - boundary(lab, len(start)), head


def test_a_salted_prompt_never_hits_pages_of_another_salt(lab: Lab) -> None:
    prompt = lab.prompt(700)
    lab.run(prompt, salt="one")
    lab.reset()
    assert lab.run(prompt, salt="two").cached_tokens == 0
    lab.reset()
    assert lab.run(prompt, salt="one").cached_tokens == boundary(lab, 700)


def test_an_emptied_host_cache_misses(lab: Lab) -> None:
    """Control: without the host pages the same steps restore nothing."""
    prompt = lab.prompt(700)
    lab.run(prompt)
    lab.forget()
    assert lab.run(prompt).cached_tokens == 0
