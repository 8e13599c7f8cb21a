"""Elastic pools in the scheduler: moves are planned and counted, and a new balance is logged."""

import logging
from collections.abc import Sequence

from lmc_grouped.connector.messages import GroupMoves, MoveOperation
from lmc_grouped.connector.requests import Tier
from lmc_grouped.core.moves import MOVE_LIMIT_BYTES, PageMove, Rebalancer

logger = logging.getLogger(__name__)

WORTH_SAYING = 0.1
"""Change of a group's share of the extents in use that is worth a log line."""


class Balance:
    """Keeps empty extents ahead of need; does nothing where pools are fixed."""

    def __init__(self, tier: Tier) -> None:
        self._tier = tier
        self._arena = tier.index.arena
        page_bytes = {group.group_id: group.page_bytes for group in tier.table.groups}
        self._page_bytes = page_bytes
        self._rebalancer = Rebalancer(tier.index, page_bytes) if self._arena else None
        self._said: dict[int, float] = {}
        """group_id -> its share of the extents in use when that was last logged."""

    def plan_step(self) -> list[MoveOperation]:
        """The moves of this step."""
        if self._rebalancer is None:
            return []
        operation_id = self._tier.next_operation_id()
        moves = self._rebalancer.plan(operation_id, MOVE_LIMIT_BYTES)
        self._say_balance()
        if not moves:
            return []
        return [MoveOperation(operation_id, _by_group(moves))]

    def finish(self, operation_id: int, failure: str | None) -> None:
        """Every rank has reported: switch the slots, or leave the pages where they are."""
        assert self._rebalancer is not None
        moves = self._rebalancer.finish(operation_id, failure)
        if failure is not None:
            logger.warning("moving %d pages failed: %s", len(moves), failure)
            self._tier.stats.add("failed_moves", 1)
            return
        for move in moves:
            self._tier.stats.add("moved_pages", 1, move.group_id)
            self._tier.stats.add("moved_bytes", self._page_bytes[move.group_id], move.group_id)

    @property
    def moving_slots(self) -> set[tuple[int, int]]:
        """``(group_id, slot)`` of pages on their way; see ``Rebalancer``."""
        return self._rebalancer.moving_slots if self._rebalancer else set()

    def take_stats(self) -> None:
        """Add what was counted since the last call."""
        if self._rebalancer is None or self._arena is None:
            return
        for name, amount in self._rebalancer.take_counts().items():
            if amount:
                self._tier.stats.add(name, amount)

    def extents(self) -> dict[int, int]:
        """group_id -> extents it owns now; empty where pools are fixed.

        Those that groups share are counted under the first of them.
        """
        rooms = self._arena.rooms if self._arena else {}
        return {group_id: len(room.extents) for group_id, room in rooms.items()}

    def _say_balance(self) -> None:
        """One line when a group's share of the extents in use has changed by a tenth."""
        assert self._arena is not None
        owned = self.extents()
        in_use = sum(owned.values())
        if 2 * in_use < self._arena.plan.extents:
            return
        shares = {group_id: count / in_use for group_id, count in owned.items()}
        if all(abs(share - self._said.get(g, 0.0)) <= WORTH_SAYING for g, share in shares.items()):
            return
        self._said = shares
        plan = self._arena.plan
        logger.info(
            "lmc_grouped balance: %s of %d extents, %d empty",
            ", ".join(
                f"group {'+'.join(map(str, plan.sharers(group_id)))} {count}"
                for group_id, count in owned.items()
            ),
            plan.extents,
            len(self._arena.empty),
        )


def _by_group(moves: Sequence[PageMove]) -> tuple[GroupMoves, ...]:
    groups: dict[int, GroupMoves] = {}
    for move in moves:
        group = groups.setdefault(move.group_id, GroupMoves(move.group_id, [], []))
        group.source_slots.append(move.source_slot)
        group.target_slots.append(move.target_slot)
    return tuple(groups.values())
