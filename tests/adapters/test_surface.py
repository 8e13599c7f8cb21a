"""The words of the two lines of engines, and how they are told apart.

What needs ReVolta's own types is tested on them, in `tests/compat/test_schedulers.py`.
"""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from lmc_grouped.adapters import detection
from lmc_grouped.adapters.detection import EngineNames
from lmc_grouped.adapters.surface_revolta import RevoltaSurface
from lmc_grouped.adapters.surface_vllm import VllmSurface
from tests.factories import full, recurrent, table_of, window

VLLM = EngineNames(
    step=frozenset({"kv_connector_block_state", "num_scheduled_tokens"}),
    config=frozenset({"num_blocks", "prefix_cacheable_group_ids"}),
    spec=frozenset({"block_size", "prefix_cacheable"}),
    hooks=frozenset({"get_transfer_results", "get_block_ids_with_load_errors"}),
)
REVOLTA = EngineNames(
    step=frozenset({"boundary_state_offloads", "num_scheduled_tokens"}),
    config=frozenset({"num_blocks"}),
    spec=frozenset({"block_size", "prefix_cacheable"}),
    hooks=frozenset({"get_finished", "get_block_ids_with_load_errors"}),
)


def test_engines_are_told_apart_by_their_names():
    assert isinstance(detection.find(VLLM), VllmSurface)
    assert isinstance(detection.find(REVOLTA), RevoltaSurface)
    assert isinstance(detection.detect(), VllmSurface)


@pytest.mark.parametrize(
    ("engine", "field"),
    [
        (VLLM, "step"),
        (VLLM, "config"),
        (VLLM, "hooks"),
        (REVOLTA, "step"),
        (REVOLTA, "spec"),
        (REVOLTA, "hooks"),
    ],
)
def test_an_engine_that_lacks_one_of_the_names_is_none_we_know(engine, field):
    assert detection.find(replace(engine, **{field: frozenset()})) is None


def test_a_step_of_vllm_without_block_state_has_no_tables_and_no_offers():
    output = SimpleNamespace(kv_connector_block_state=None)
    words = VllmSurface()
    tables = words.step_tables(table_of(full(0, 16)))
    tables.update(output)
    assert tables.get(SimpleNamespace(request_id="r")) is None
    assert list(words.boundary_offers(output)) == []


def test_revoltas_offers_are_on_the_step_itself():
    words = RevoltaSurface()
    assert list(words.boundary_offers(SimpleNamespace(boundary_state_offloads=None))) == []
    offers = {"r": [(1, 7, 32)]}
    output = SimpleNamespace(boundary_state_offloads=offers)
    assert list(words.boundary_offers(output)) == [("r", [(1, 7, 32)])]


def step(new=(), cached=(), resumed=(), finished=(), preempted=None):
    """What ReVolta's scheduler says of its tables."""
    return SimpleNamespace(
        scheduled_new_reqs=[SimpleNamespace(req_id=name, block_ids=ids) for name, ids in new],
        scheduled_cached_reqs=SimpleNamespace(
            req_ids=[name for name, _ in cached],
            new_block_ids=[ids for _, ids in cached],
            resumed_req_ids=set(resumed),
        ),
        finished_req_ids=set(finished),
        preempted_req_ids=preempted,
    )


def request(name="r", computed=0):
    return SimpleNamespace(request_id=name, num_computed_tokens=computed)


def mirrored():
    return RevoltaSurface().step_tables(table_of(full(0, 16), recurrent(1, 32), window(2, 48)))


def test_mirrored_tables_grow_by_what_the_engine_adds():
    tables = mirrored()
    tables.update(step(new=[("r", ([1, 2], [3], [4, 5]))]))
    tables.update(step(cached=[("r", ([6], [], [7]))]))
    tables.update(step(cached=[("r", None)]))
    assert tables.get(request()) == [[1, 2, 6], [3], [4, 5, 7]]
    assert tables.get(request("other")) is None


def test_mirrored_tables_of_a_resumed_request_begin_again():
    tables = mirrored()
    tables.update(step(new=[("r", ([1, 2], [3], [4, 5]))]))
    tables.update(step(preempted={"r"}))
    assert tables.get(request()) is None
    tables.update(step(cached=[("r", ([8], [9], [10]))], resumed=["r"]))
    assert tables.get(request()) == [[8], [9], [10]]
    tables.update(step(finished=["r"]))
    assert tables.get(request()) is None


@pytest.mark.parametrize(
    ("computed", "gone"), [(0, 0), (62, 0), (63, 1), (78, 1), (79, 2), (10_000, 5)]
)
def test_blocks_behind_a_window_are_read_as_null(computed, gone):
    tables = mirrored()
    blocks = [4, 5, 6, 7, 8]
    tables.update(step(new=[("r", ([1] * 5, [3], blocks))]))
    whole = tables.get(request(computed=computed))
    assert whole[2] == [0] * gone + blocks[gone:]
    assert whole[0] == [1] * 5
