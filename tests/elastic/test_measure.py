"""The measure itself: what it counts as held, and what it does not."""

import json

import pytest

from lmc_grouped.tools.plan.layout import parse_layout
from lmc_grouped.tools.simulate.contexts import asked, uniform_lengths
from lmc_grouped.tools.simulate.pools import Scheme
from tests.elastic.__main__ import _is_absorbed, _is_good
from tests.elastic.cases import Steady, Switched
from tests.elastic.measure import Check, Meter, Setting, mean_share

LAYOUT = parse_layout(
    json.dumps(
        {
            "max_model_len": 1_024,
            "groups": [
                {"group_id": 0, "kind": "full", "span_tokens": 16, "page_bytes": 1_000},
                {"group_id": 1, "kind": "recurrent", "span_tokens": 16, "page_bytes": 900},
            ],
        }
    ).encode()
)
CONTEXT_BYTES = 10 * 1_000 + 900
SETTING = Setting(LAYOUT, 10 * CONTEXT_BYTES, 0, 64)


def meter(scheme: Scheme, reference_tokens: int) -> Meter:
    return Meter(SETTING, scheme, reference_tokens)


def contexts(name: str = "context"):
    return asked(uniform_lengths(165), name)


def test_the_ceiling_is_what_was_asked_until_the_budget_is_full():
    checks = meter(Scheme.ELASTIC, 165).ask(contexts(), 2).checks
    assert [check.ceiling_tokens for check in checks] == [
        pytest.approx(165 * min(10, number)) for number in range(1, 21)
    ]
    assert [check.share for check in checks[:8]] == [1] * 8


def test_a_pool_of_few_states_is_seen_to_hold_few_contexts():
    static, elastic = (
        mean_share(meter(scheme, 1_024).ask(contexts(), 2).checks, 1.5)
        for scheme in (Scheme.SIZED, Scheme.ELASTIC)
    )
    assert static < 0.7
    assert elastic >= 0.9


def test_after_starting_over_contexts_of_before_do_not_count():
    some = meter(Scheme.ELASTIC, 165).ask(contexts("before"), 1.0)
    some.start_over()
    first, *_ = some.ask(contexts(), 1.0).checks
    assert (first.held_tokens, first.ceiling_tokens) == (165, 165)


def test_the_mean_leaves_the_warm_up_out():
    checks = [Check(1.0, 1, 1.0), Check(2.0, 1, 2.0), Check(3.0, 1, 4.0)]
    assert mean_share(checks, 2.0) == 0.375


@pytest.mark.parametrize(
    ("shared", "sized", "elastic", "is_good"),
    [(0.9, 0.5, 0.98, True), (0.99, 0.5, 0.979, False), (0.5, 0.9, 0.96, False)],
)
def test_a_row_is_missed_below_the_ceiling_or_behind_the_better_of_the_others(
    shared, sized, elastic, is_good
):
    shares = {"shared": shared, "sized": sized, "elastic": elastic}
    row = Steady("some", 0, "16,384", 16_383, 1.0, shares, "auto", 0)
    assert _is_good(row) is is_good
    assert _is_absorbed(Switched("some", 0, "short to long", 0.995))
    assert not _is_absorbed(Switched("some", 0, "short to long", 0.985))
