"""Times and counts of a running engine, taken from outside by wrapping its methods."""

import time
from collections import Counter, defaultdict
from typing import Any

from lmc_grouped.tools.bench_balance.figures import Round

NO_ROOM = "no_room"
_COUNTED = ("moved_pages", "moved_bytes", "evicted_pages")


class Meter:
    """Wraps one engine and the two halves of its connector.

    Args:
        core: vLLM's engine core, in this process.
        half: the scheduler half.
        worker: the worker half.
    """

    def __init__(self, core: Any, half: Any, worker: Any) -> None:
        self._half = half
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._longest: defaultdict[str, float] = defaultdict(float)
        self._counts: Counter[str] = Counter()
        self._timed(core, "step_fn", "engine")
        self._timed(half.balance, "plan_step", "plan")
        self._timed(half.balance, "finish", "finish")
        self._timed(worker, "move_pages", "move")
        self._timed(half.stores, "plan_step", "store")
        self._count_reservations(half.tier.index)
        self._collect_stats()

    def start(self) -> None:
        """Forget what was before."""
        self._half.take_stats()
        self._seconds.clear()
        self._longest.clear()
        self._counts.clear()

    def read(self, *, restorable_tokens: int, restored_tokens: int) -> Round:
        """What happened since ``start``.

        Raises:
            RuntimeError: a move has failed.
        """
        self._half.take_stats()
        seconds, counts = self._seconds, self._counts
        if counts["failed_moves"]:
            raise RuntimeError(f"{counts['failed_moves']} moves failed: nothing here is measured")
        return Round(
            engine_seconds=seconds["engine"],
            balance_seconds=seconds["plan"] + seconds["finish"] + seconds["move"],
            store_seconds=seconds["store"],
            longest_plan_seconds=self._longest["plan"],
            moved_pages=counts["moved_pages"],
            moved_bytes=counts["moved_bytes"],
            evicted_pages=counts["evicted_pages"],
            reservations=counts["granted"] + counts["stalls"],
            stalls=counts["stalls"],
            not_stored_pages=counts[NO_ROOM],
            restorable_tokens=restorable_tokens,
            restored_tokens=restored_tokens,
        )

    def _timed(self, owner: Any, method: str, name: str) -> None:
        original = getattr(owner, method)

        def timed(*arguments: Any, **named: Any) -> Any:
            start = time.perf_counter()
            try:
                return original(*arguments, **named)
            finally:
                taken = time.perf_counter() - start
                self._seconds[name] += taken
                self._longest[name] = max(self._longest[name], taken)

        setattr(owner, method, timed)

    def _count_reservations(self, index: Any) -> None:
        reserve, note_shortage = index.reserve, index.note_shortage

        def counted_reserve(*arguments: Any) -> Any:
            slots = reserve(*arguments)
            self._counts["granted"] += slots is not None
            return slots

        # The connector counts stalls of elastic pools only.
        def counted_shortage(*arguments: Any) -> None:
            self._counts["stalls"] += 1
            note_shortage(*arguments)

        index.reserve, index.note_shortage = counted_reserve, counted_shortage

    def _collect_stats(self) -> None:
        original = self._half.take_stats

        def collect() -> Any:
            stats = original()
            counters = stats.data["counters"] if stats else {}
            for name in (*_COUNTED, "failed_moves"):
                self._counts[name] += sum(counters.get(name, {}).values())
            self._counts[NO_ROOM] += counters.get("not_stored_pages", {}).get(NO_ROOM, 0)
            return stats

        self._half.take_stats = collect
