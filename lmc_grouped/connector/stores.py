"""Stores: what each step writes to the host tier, and why something was not written."""

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lmc_grouped.adapters import engine
from lmc_grouped.adapters.device_blocks import DeviceBlocks
from lmc_grouped.connector.messages import GroupPages, Operation
from lmc_grouped.connector.requests import RequestState, StateOffer, Tier
from lmc_grouped.core.groups import Kind
from lmc_grouped.core.pool import PageRef
from lmc_grouped.core.writer import PageStore

if TYPE_CHECKING:
    from vllm.v1.core.sched.output import SchedulerOutput

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Store:
    """A store under way: its pages and the bytes behind them."""

    request_id: str
    refs: tuple[PageRef, ...]


class StorePlanner:
    """Plans store operations from block tables and from handed-off states."""

    def __init__(self, tier: Tier, device_blocks: DeviceBlocks) -> None:
        self._tier = tier
        self._device_blocks = device_blocks
        self._tables = engine.step_tables(tier.table)
        self._storing: dict[int, _Store] = {}
        self._recurrent = {g.group_id for g in tier.table.groups if g.kind is Kind.RECURRENT}

    def plan_step(self, scheduler_output: "SchedulerOutput") -> list[Operation]:
        """The stores of this step, to be copied after its forward pass."""
        operations: list[Operation] = []
        self._tables.update(scheduler_output)
        for request_id in engine.preempted(scheduler_output):
            state = self._tier.requests.get(request_id)
            if state is not None:
                self.drop_offers(state, "request_gone")
        for request_id, new_tokens in scheduler_output.num_scheduled_tokens.items():
            state = self._tier.requests.get(request_id)
            if state is not None:
                operation = self._plan_tables(state, new_tokens)
                operations += [operation] if operation else []
        self._take_offers(scheduler_output)
        for state in self._tier.requests.values():
            if state.offers:
                operations += self._plan_offers(state)
        return operations

    def finish(self, operation_id: int, failure: str | None) -> None:
        """Every rank has reported the store: publish it or take it back."""
        store = self._storing.pop(operation_id)
        if failure is None:
            self._tier.index.commit(operation_id)
            self._tier.count_pages("stored", store.refs)
            return
        logger.warning("request %s: store failed: %s", store.request_id, failure)
        self._tier.index.abort(operation_id)
        self._tier.stats.add("failed_stores", 1)
        self._count_not_stored("store_failed", len(store.refs))
        state = self._tier.requests.get(store.request_id)
        if state is not None:
            state.writer.is_broken = True

    def restart(self, state: RequestState) -> None:
        """The request got a new table: its prefix is planned again from the start."""
        self.drop_offers(state, "request_gone")
        state.writer.restart()

    def forget(self, state: RequestState) -> None:
        """The request has ended: what still waited for room is dropped and counted."""
        self.drop_offers(state, "request_gone")
        reason = "store_failed" if state.writer.is_broken else "no_room"
        if state.writer.is_stalled or state.writer.is_broken:
            left = state.writer.pages_left(self._computed_tokens(state, 0))
            self._count_not_stored(reason, left)
        state.writer.finish()

    def drop_offers(self, state: RequestState, reason: str) -> None:
        """Give up the states that wait for room, and say why."""
        for offer in state.offers:
            self._device_blocks.unpin(offer.block_id)
        self._count_not_stored(reason, len(state.offers))
        state.offers.clear()

    def _computed_tokens(self, state: RequestState, new_tokens: int) -> int:
        """Tokens whose cache is written once this step's forward pass is over."""
        request = state.request
        computed = request.num_computed_tokens + new_tokens
        return min(computed, request.num_tokens, state.prefix.hashed_tokens)

    def _plan_tables(self, state: RequestState, new_tokens: int) -> Operation | None:
        computed = self._computed_tokens(state, new_tokens)
        if not state.writer.is_due(computed):
            return None
        tables = self._tables.get(state.request)
        if tables is None:
            return None
        junction = engine.junction(state.request)
        if junction:
            state.writer.junctions.add(junction)
        store, null_pages = state.writer.plan_pages(tables, computed, self._tier.next_operation_id)
        self._count_not_stored("null_block", null_pages)
        return self._operation(state, store) if store else None

    def _take_offers(self, scheduler_output: "SchedulerOutput") -> None:
        """Attach this step's handed-off states to their requests."""
        for request_id, offers in engine.boundary_offers(scheduler_output):
            state = self._tier.requests.get(request_id)
            for group_id, block_id, boundary in offers:
                if group_id not in self._recurrent:
                    continue
                reason = self._reason_to_decline(state, group_id, boundary)
                if reason:
                    self._count_not_stored(reason, 1)
                    continue
                assert state is not None
                offer = StateOffer(group_id, block_id, boundary)
                ref = self._state_ref(state, offer)
                if offer in state.offers or self._tier.index.knows(*ref):
                    continue
                self._device_blocks.pin(block_id)
                state.offers.append(offer)

    def _reason_to_decline(
        self, state: RequestState | None, group_id: int, boundary_tokens: int
    ) -> str | None:
        if state is None:
            return "request_gone"
        hashed = state.prefix.hashed_tokens
        if boundary_tokens % self._tier.span_tokens[group_id] or not 0 < boundary_tokens <= hashed:
            return "no_hash"
        if boundary_tokens % self._tier.table.alignment_tokens:
            return "off_alignment"
        if not state.writer.keeps_state(group_id, boundary_tokens):
            return "not_retained"
        return None

    def _plan_offers(self, state: RequestState) -> list[Operation]:
        """One operation per boundary; a boundary without room stays with the request."""
        self._let_go_of_known(state)
        operations = []
        waiting: list[StateOffer] = []
        for boundary in dict.fromkeys(offer.boundary_tokens for offer in state.offers):
            offers = [offer for offer in state.offers if offer.boundary_tokens == boundary]
            blocks = {offer.group_id: offer.block_id for offer in offers}
            store = state.writer.plan_states(boundary, blocks, self._tier.next_operation_id)
            if store is None:
                waiting += offers
                continue
            operations.append(self._operation(state, store))
            for offer in offers:
                self._device_blocks.unpin(offer.block_id)
        state.offers = waiting
        if waiting and self._device_blocks.is_scarce():
            self.drop_offers(state, "device_pressure")
        return operations

    def _let_go_of_known(self, state: RequestState) -> None:
        """Unpin states that another request, or another block, has brought meanwhile."""
        wanted: dict[PageRef, StateOffer] = {}
        for offer in state.offers:
            ref = self._state_ref(state, offer)
            if ref in wanted or self._tier.index.knows(*ref):
                self._device_blocks.unpin(offer.block_id)
            else:
                wanted[ref] = offer
        state.offers = list(wanted.values())

    def _state_ref(self, state: RequestState, offer: StateOffer) -> PageRef:
        page = offer.boundary_tokens // self._tier.span_tokens[offer.group_id] - 1
        return state.prefix.ref(offer.group_id, page)

    def _operation(self, state: RequestState, store: PageStore) -> Operation:
        """The store as the workers get it."""
        by_group: dict[int, GroupPages] = {}
        for page, slot in zip(store.pages, store.slots, strict=True):
            group = by_group.setdefault(page.group_id, GroupPages(page.group_id, [], []))
            group.block_ids.append(page.block_id)
            group.slots.append(slot)
        request_id = state.request.request_id
        self._storing[store.operation_id] = _Store(request_id, store.refs)
        if self._tier.disk:
            self._tier.disk.writes.follow(store.operation_id, store.refs, store.slots)
        logger.debug(
            "request %s: store %d pages of groups %s up to token %d",
            request_id,
            len(store.pages),
            list(by_group),
            max(page.end_tokens for page in store.pages),
        )
        return Operation(store.operation_id, request_id, tuple(by_group.values()))

    def _count_not_stored(self, reason: str, pages: int) -> None:
        if pages:
            self._tier.stats.add("not_stored_pages", pages, reason)
