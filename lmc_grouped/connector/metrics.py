"""Counters and gauges through vLLM's connector statistics.

Every page that was not stored has a named reason. Names: ``docs/metrics.md``.
"""

from dataclasses import dataclass
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.metrics import (
    KVConnectorPromMetrics,
    KVConnectorStats,
)

_GROUP_COUNTERS = {
    "stored_tokens": "Tokens covered by pages copied to host memory",
    "stored_bytes": "Bytes copied to host memory on one worker",
    "restored_tokens": "Tokens covered by pages copied back to the device",
    "restored_bytes": "Bytes copied back to the device on one worker",
    "evicted_pages": "Pages that left host memory to make room",
    "moved_pages": "Pages that changed their slot to empty an extent",
    "moved_bytes": "Their bytes on one worker",
    "written_tokens": "Tokens covered by pages that every rank has written to disk",
    "written_bytes": "Their bytes on one worker",
    "read_tokens": "Tokens covered by pages read from disk into host memory",
    "read_bytes": "Their bytes on one worker",
    "damaged_pages": "Pages whose bytes on disk were not what was written",
}
_COUNTERS = {
    "failed_loads": "Loads that failed after a hit was promised",
    "failed_stores": "Stores that a rank could not carry out",
    "failed_moves": "Moves that a rank could not carry out; the pages stay where they are",
    "stalls": "Reservations that had to wait for an empty extent",
    "floor_hits": "Older pages that stayed because their group is at its floor",
}
_GROUP_GAUGES = {
    "resident_slots": "Slots that hold a page of the group",
    "useless_slots": "Slots of the group's pool whose page nothing can use: the next to leave",
    "capacity_slots": "Slots of the group's pool",
    "resident_bytes": "Bytes of the group's pages on one worker",
    "useless_bytes": "Those of them that nothing can use",
    "extents": "Extents that the group owns now",
    "disk_pages": "Pages of the group that every rank has on disk",
    "disk_bytes": "Their bytes on one worker",
}
NOT_STORED = {
    "no_room": "every slot of a group was held when the page was due",
    "null_block": "the engine had already let the block go",
    "request_gone": "the request ended or was preempted while its state waited for room",
    "no_hash": "the state does not end on a full block of the group",
    "off_alignment": "the state ends between two boundaries at which a hit may end",
    "not_retained": "the retention rule keeps no state at that boundary",
    "device_pressure": "the engine needed the blocks of states that waited for room",
    "store_failed": "a rank could not copy the page",
}
"""Reasons for not storing a page, by name."""
NOT_WRITTEN = {
    "queue_full": "the disk is slower than what is stored",
    "left_memory": "the page left host memory before its turn came",
    "store_failed": "the rank could not copy the page to host memory",
    "no_space": "the file system is full",
    "over_quota": "no room of the quota could be had for its group",
    "io_error": "the disk reported an error",
    "unavailable": "the files of the group could not be opened",
    "dropped": "the cache was reset meanwhile",
    "closed": "the server is shutting down",
}
"""Reasons for not writing a page to disk, by name."""
FAILED_PROMOTIONS = {
    "no_room": "host memory had no room for the pages of the hit",
    "timeout": "reading took too long",
    "lost": "a page was damaged, or gone, on some rank",
    "read_failed": "a rank could not read at all",
}
"""Reasons why a hit on disk was not served."""
_REASON_COUNTERS = {
    "not_stored_pages": "Pages that were not stored",
    "not_written_pages": "Pages that a rank did not write to disk",
    "failed_promotions": "Hits on disk that were not served in full",
}


@dataclass
class GroupedStats(KVConnectorStats):
    """``data``: counter name -> label -> amount, and gauges the same way.

    Labels are group ids or reasons, as text; ``""`` where there is none.
    """

    def __post_init__(self) -> None:
        if not self.data:
            self.reset()

    def reset(self) -> None:
        """Start a new interval."""
        self.data: dict[str, Any] = {"counters": {}, "gauges": {}}

    def add(self, counter: str, amount: int, label: object = "") -> None:
        """Add to a counter."""
        values = self.data["counters"].setdefault(counter, {})
        values[str(label)] = values.get(str(label), 0) + amount

    def set(self, gauge: str, value: int, label: object = "") -> None:
        """Set a gauge."""
        self.data["gauges"].setdefault(gauge, {})[str(label)] = value

    def counter(self, counter: str, label: object = "") -> int:
        """A counter's amount in this interval."""
        return self.data["counters"].get(counter, {}).get(str(label), 0)

    def aggregate(self, other: KVConnectorStats) -> "GroupedStats":
        """Add a later interval: counters add up, the last gauge wins."""
        for counter, values in other.data["counters"].items():
            for label, amount in values.items():
                self.add(counter, amount, label)
        for gauge, values in other.data["gauges"].items():
            self.data["gauges"].setdefault(gauge, {}).update(values)
        return self

    def reduce(self) -> dict[str, int | float]:
        """One number per counter and label, for vLLM's log line."""
        return {
            f"{name}[{label}]" if label else name: amount
            for name, values in self.data["counters"].items()
            for label, amount in values.items()
        }

    def is_empty(self) -> bool:
        """Whether nothing was counted."""
        return not self.data["counters"]


class GroupedPromMetrics(KVConnectorPromMetrics):
    """The same numbers as Prometheus metrics ``vllm:lmc_grouped_*``."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._metrics: dict[str, Any] = {}
        for name, text in _COUNTERS.items():
            self._register(self._counter_cls, name, text, ())
        for name, text in _GROUP_COUNTERS.items():
            self._register(self._counter_cls, name, text, ("group",))
        for name, text in _GROUP_GAUGES.items():
            self._register(self._gauge_cls, name, text, ("group",))
        for name, text in _REASON_COUNTERS.items():
            self._register(self._counter_cls, name, text, ("reason",))

    def _register(self, metric_cls: Any, name: str, text: str, labels: tuple[str, ...]) -> None:
        self._metrics[name] = metric_cls(
            name=f"vllm:lmc_grouped_{name}",
            documentation=text,
            labelnames=[*self._labelnames, *labels],
        )

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        """Record one interval of one engine."""
        engine_labels = self.per_engine_labelvalues[engine_idx]
        for kind, act in (("counters", "inc"), ("gauges", "set")):
            for name, values in transfer_stats_data[kind].items():
                for label, amount in values.items():
                    labels = [*engine_labels, *([label] if label else [])]
                    getattr(self._metrics[name].labels(*labels), act)(amount)
