"""Counters and gauges, their sums, and what Prometheus shows."""

from pathlib import Path
from types import SimpleNamespace

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from lmc_grouped.connector import LMCacheConnectorV1
from lmc_grouped.connector.messages import DiskReport, StepReport
from lmc_grouped.connector.metrics import (
    FAILED_PROMOTIONS,
    NOT_STORED,
    NOT_WRITTEN,
    GroupedStats,
)
from lmc_grouped.host.disk import PutAnswer, WriteEnd
from tests.connector.disk_lab import DiskEngine
from tests.connector.scripted import ScriptedEngine
from tests.specs import full_spec, ring_spec, state_spec


def test_an_engine_that_did_nothing_reports_nothing():
    engine = ScriptedEngine(full_spec())
    assert engine.connector.get_kv_connector_stats() is None
    assert engine.workers[0].get_kv_connector_stats() is None


def test_an_interval_has_counters_per_group_and_the_fill_of_each_pool():
    engine = ScriptedEngine(full_spec(), ring_spec(), state_spec(), units=10)
    engine.finish(engine.prefill("first", 100))
    engine.start(engine.request("second", 100))
    stats = engine.connector.get_kv_connector_stats()
    assert stats.data == {
        "counters": {
            "stored_tokens": {"0": 96, "2": 16},
            "stored_bytes": {"0": 6 * 64, "2": 64},
            "restored_tokens": {"0": 96, "2": 16},
            "restored_bytes": {"0": 6 * 64, "2": 64},
        },
        "gauges": {
            "resident_slots": {"0": 6, "2": 1},
            "useless_slots": {"0": 0, "2": 0},
            "resident_bytes": {"0": 6 * 64, "2": 64},
            "useless_bytes": {"0": 0, "2": 0},
            "capacity_slots": {"0": 10, "2": 10},
        },
    }
    assert engine.connector.get_kv_connector_stats() is None


def test_evictions_are_counted_once_over_several_intervals():
    engine = ScriptedEngine(full_spec(), units=2)
    counts = []
    for prompt in "abc":
        engine.finish(engine.prefill(prompt, 40, prompt=prompt))
        counts.append(engine.connector.get_kv_connector_stats().counter("evicted_pages", 0))
    assert counts == [0, 2, 2]


def test_counters_add_up_and_the_last_gauge_wins():
    first, second = GroupedStats(), GroupedStats()
    first.add("stored_tokens", 16, 0)
    first.set("resident_slots", 1, 0)
    second.add("stored_tokens", 32, 0)
    second.add("failed_loads", 1)
    second.set("resident_slots", 3, 0)
    total = first.aggregate(second)
    assert total.reduce() == {"stored_tokens[0]": 48, "failed_loads": 1}
    assert total.data["gauges"] == {"resident_slots": {"0": 3}}
    assert not total.is_empty()
    total.reset()
    assert total.is_empty()


def test_statistics_come_back_from_their_wire_form():
    stats = GroupedStats()
    stats.add("failed_stores", 2)
    again = LMCacheConnectorV1.build_kv_connector_stats(stats.to_dict())
    assert again.counter("failed_stores") == 2
    assert LMCacheConnectorV1.build_kv_connector_stats(None).is_empty()
    assert LMCacheConnectorV1.build_kv_connector_stats({}).is_empty()


def bound(metric_cls, registry):
    return lambda **kwargs: metric_cls(registry=registry, **kwargs)


def test_prometheus_shows_every_counter_under_our_name():
    registry = CollectorRegistry()
    metric_types = {cls: bound(cls, registry) for cls in (Counter, Gauge, Histogram)}
    metrics = LMCacheConnectorV1.build_prom_metrics(
        SimpleNamespace(kv_transfer_config=None),
        metric_types,
        ["model_name", "engine"],
        {0: ["m", "0"], 1: ["m", "1"]},
    )
    stats = GroupedStats()
    stats.add("stored_tokens", 64, 0)
    stats.add("restored_bytes", 10, 2)
    stats.add("failed_loads", 1)
    for reason in NOT_STORED:
        stats.add("not_stored_pages", 3, reason)
    stats.set("resident_slots", 5, 2)
    metrics.observe(stats.to_dict(), 1)
    metrics.observe(stats.to_dict(), 1)

    def value(name: str, **labels: str) -> float | None:
        labels |= {"model_name": "m", "engine": "1"}
        return registry.get_sample_value(f"vllm:lmc_grouped_{name}", labels)

    assert value("stored_tokens_total", group="0") == 128
    assert value("restored_bytes_total", group="2") == 20
    assert value("failed_loads_total") == 2
    assert value("resident_slots", group="2") == 5
    assert all(value("not_stored_pages_total", reason=reason) == 6 for reason in NOT_STORED)
    other = {"model_name": "m", "engine": "0", "group": "0"}
    assert registry.get_sample_value("vllm:lmc_grouped_stored_tokens_total", other) is None


def test_everything_a_busy_engine_counts_is_registered():
    engine = ScriptedEngine(full_spec(), state_spec(), units=4)
    engine.finish(engine.prefill("large", 170))
    engine.failing = {(0, 0)}
    engine.finish(engine.prefill("other", 60, prompt="q"))
    engine.start(engine.request("again", 70))
    registry = CollectorRegistry()
    metric_types = {cls: bound(cls, registry) for cls in (Counter, Gauge, Histogram)}
    metrics = LMCacheConnectorV1.build_prom_metrics(
        engine.vllm_config, metric_types, ["engine"], {0: ["0"]}
    )
    stats = engine.connector.get_kv_connector_stats()
    assert {"not_stored_pages", "failed_stores"} <= stats.data["counters"].keys()
    metrics.observe(stats.to_dict())


def test_every_reason_has_a_meaning_and_a_line_in_the_documentation():
    answers = {*PutAnswer} - {PutAnswer.ACCEPTED, PutAnswer.PRESENT}
    assert answers | ({*WriteEnd} - {WriteEnd.STORED}) <= NOT_WRITTEN.keys()
    text = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text()
    for reasons in (NOT_STORED, NOT_WRITTEN, FAILED_PROMOTIONS):
        assert [reason for reason in reasons if f"| `{reason}` |" not in text] == []


def test_what_an_engine_with_a_disk_counts_is_registered(tmp_path):
    engine = DiskEngine(tmp_path, full_spec())
    request = engine.store("first", 100)
    engine.tiers[0].drop([engine.ref(request, 0, 3)])
    engine.index.clear()
    assert engine.restore("second", 100) == 48
    stats = engine.connector.get_kv_connector_stats()
    engine.close()
    assert {"written_bytes", "read_tokens"} <= stats.data["counters"].keys()
    metric_types = {cls: bound(cls, CollectorRegistry()) for cls in (Counter, Gauge, Histogram)}
    metrics = LMCacheConnectorV1.build_prom_metrics(
        engine.vllm_config, metric_types, ["engine"], {0: ["0"]}
    )
    for counter, reasons in (
        ("not_written_pages", NOT_WRITTEN),
        ("failed_promotions", FAILED_PROMOTIONS),
    ):
        for reason in reasons:
            stats.add(counter, 1, reason)
    stats.add("damaged_pages", 1, 0)
    metrics.observe(stats.to_dict())


def test_disk_reports_of_ranks_add_up():
    first = StepReport(
        disk=DiskReport(
            written={1: 1}, not_written={"no_space": 2}, read={2: 1}, lost={2: {0: "damaged"}},
            changes={0: (0, [((0, b"a"), True)])},
        )
    )  # fmt: skip
    second = StepReport(
        disk=DiskReport(
            written={1: 1}, not_written={"no_space": 1}, read={2: 1}, lost={2: {3: "miss"}},
            changes={1: (0, [])},
        )
    )  # fmt: skip
    total = first.aggregate(second).disk
    assert (total.written, total.read, total.not_written) == ({1: 2}, {2: 2}, {"no_space": 3})
    assert total.lost == {2: {0: "damaged", 3: "miss"}}
    assert total.changes == {0: (0, [((0, b"a"), True)]), 1: (0, [])}


def test_reports_of_ranks_add_up_and_keep_the_first_reason():
    first = StepReport(stored={1: 1}, loaded={2: 1}, failures={1: "rank 0"})
    second = StepReport(stored={1: 1, 3: 1}, failures={1: "rank 1", 3: "full"})
    total = first.aggregate(second)
    assert (total.stored, total.loaded) == ({1: 2, 3: 1}, {2: 1})
    assert total.failures == {1: "rank 0", 3: "full"}
