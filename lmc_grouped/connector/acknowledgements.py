"""Counts the ranks that have finished an operation."""

from collections.abc import Mapping


class Acknowledgements:
    """An operation has ended when every rank has said so.

    Args:
        world_size: number of ranks.
    """

    def __init__(self, world_size: int) -> None:
        self._world_size = world_size
        self._ranks: dict[int, int] = {}

    def __len__(self) -> int:
        """Operations that some rank has ended and another has not."""
        return len(self._ranks)

    def add(self, done: Mapping[int, int]) -> list[int]:
        """Count ``operation_id -> ranks``; returns the operations that have ended."""
        ended: list[int] = []
        for operation_id, ranks in done.items():
            total = self._ranks.pop(operation_id, 0) + ranks
            if total == self._world_size:
                ended.append(operation_id)
            else:
                self._ranks[operation_id] = total
        return ended
