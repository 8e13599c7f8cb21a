"""Hits on disk: pages are read into host memory while the request waits."""

import logging
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

from lmc_grouped.connector.disk_writes import DiskWrites, disk_pages
from lmc_grouped.connector.messages import DiskOperation
from lmc_grouped.connector.requests import RequestState, Tier, Waiting
from lmc_grouped.core.disk_index import DiskIndex
from lmc_grouped.core.hits import Hit
from lmc_grouped.core.pool import PageRef
from lmc_grouped.core.promotion import find_union_hit, plan_promotion

logger = logging.getLogger(__name__)

READ_SECONDS = 30.0
"""How long a request waits for its pages; then it is answered from host memory."""
READ_TRIES = 3
"""How often its pages may turn out to be lost: each time another boundary is tried."""
ROOM_SECONDS = 1.0
"""How long it waits for room that writes or moves under way will give."""


@dataclass(frozen=True, slots=True)
class _Read:
    """A read under way."""

    request_id: str
    refs: tuple[PageRef, ...]


class Promotions:
    """Decides what to read for a request, and what to answer meanwhile.

    Args:
        tier: host memory.
        disk: what every rank has on disk.
        writes: writes under way, which hold slots for a while.
    """

    def __init__(self, tier: Tier, disk: DiskIndex, writes: DiskWrites) -> None:
        self._tier = tier
        self._disk = disk
        self._writes = writes
        self._planned: list[DiskOperation] = []
        self._reading: dict[int, _Read] = {}
        self.now = time.monotonic

    def is_waiting(self, state: RequestState) -> bool:
        """Whether nothing has happened that would change the answer "ask again"."""
        waiting = state.waiting
        if waiting is None:
            return False
        if self.now() >= waiting.until_seconds:
            self._give_up(state, waiting.reason)
            return False
        if waiting.operation_id is not None:
            return waiting.operation_id in self._reading
        return waiting.versions == self._versions()

    def look_further(
        self, state: RequestState, hit: Hit, local_tokens: int, limit_tokens: int
    ) -> Hit | None:
        """The answer where host memory alone serves ``hit``; ``None``: ask again later."""
        before, state.waiting = state.waiting, None
        tier = self._tier
        is_full = hit.boundary_tokens + tier.table.alignment_tokens > limit_tokens
        if is_full or not state.reads_disk:
            return hit
        union = find_union_hit(
            tier.index,
            self._disk,
            tier.rule,
            state.prefix,
            local_tokens=local_tokens,
            limit_tokens=limit_tokens,
        )
        if union.boundary_tokens > hit.boundary_tokens:
            waiting = self._begin(state, local_tokens, union.boundary_tokens)
            if waiting is not None:
                until = min(waiting.until_seconds, before.until_seconds if before else 1e99)
                state.waiting = replace(waiting, until_seconds=until)
                return None
        return replace(hit, attention_tokens=max(hit.attention_tokens, union.attention_tokens))

    def take(self) -> list[DiskOperation]:
        """The reads planned since the last step."""
        planned, self._planned = self._planned, []
        return planned

    def finish(self, operation_id: int, lost: Mapping[int, str]) -> None:
        """Every rank has read what it could: publish that, forget the rest."""
        tier = self._tier
        read = self._reading.pop(operation_id)
        gone = {read.refs[position]: reason for position, reason in lost.items()}
        tier.index.commit(operation_id, gone)
        tier.count_pages("read", [ref for ref in read.refs if ref not in gone])
        if not gone:
            return
        for ref, reason in gone.items():
            if reason == "damaged":
                tier.stats.add("damaged_pages", 1, ref[0])
        has_failed = "read_failed" in gone.values()
        logger.warning(
            "request %s: %d of %d pages could not be read from disk: %s",
            read.request_id,
            len(gone),
            len(read.refs),
            dict(Counter((f"group {ref[0]}", reason) for ref, reason in gone.items())),
        )
        tier.stats.add("failed_promotions", 1, "read_failed" if has_failed else "lost")
        state = tier.requests.get(read.request_id)
        if state is not None:
            state.failed_reads += 1
            state.reads_disk = not has_failed and state.failed_reads < READ_TRIES

    def _begin(
        self, state: RequestState, local_tokens: int, boundary_tokens: int
    ) -> Waiting | None:
        """Reserve and read what the boundary lacks; ``None`` where that cannot be done."""
        tier = self._tier
        plan = plan_promotion(
            tier.index,
            tier.rule,
            state.prefix,
            local_tokens=local_tokens,
            boundary_tokens=boundary_tokens,
        )
        tier.index.lease(state.waiting_owner, plan.held)
        until = self.now() + READ_SECONDS
        if not plan.missing:  # others bring what is not readable yet
            return Waiting(None, self._versions(), until, "timeout")
        operation_id = tier.next_operation_id()
        slots = tier.index.reserve(operation_id, plan.missing)
        if slots is None:
            return self._wait_for_room(state, Counter(page.group_id for page in plan.missing))
        tier.index.lease(state.waiting_owner, plan.refs)
        self._reading[operation_id] = _Read(state.request.request_id, tuple(plan.refs))
        self._planned.append(DiskOperation(operation_id, disk_pages(plan.refs, slots)))
        logger.debug(
            "request %s: %d pages to read for a hit at %d",
            state.request.request_id,
            len(plan.missing),
            boundary_tokens,
        )
        return Waiting(operation_id, self._versions(), until, "timeout")

    def _wait_for_room(self, state: RequestState, slots: Mapping[int, int]) -> Waiting | None:
        """Writes and moves under way give room soon; running requests may not."""
        tier = self._tier
        tier.index.note_shortage(slots)
        tier.index.release(state.waiting_owner)
        if not self._writes.writing_bytes and tier.index.arena is None:
            self._give_up(state, "no_room")
            return None
        return Waiting(None, self._versions(), self.now() + ROOM_SECONDS, "no_room")

    def _give_up(self, state: RequestState, reason: str) -> None:
        """Host memory answers this request from now on."""
        state.waiting = None
        state.reads_disk = False
        self._tier.stats.add("failed_promotions", 1, reason)
        logger.debug("request %s: no hit from disk: %s", state.request.request_id, reason)

    def _versions(self) -> tuple[int, int, int]:
        index = self._tier.index
        return index.version, index.releases, self._disk.version
