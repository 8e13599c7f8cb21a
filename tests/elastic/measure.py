"""How much of the ceiling each way of cutting a budget holds while contexts go by."""

from collections.abc import Iterator
from dataclasses import dataclass
from statistics import fmean

from lmc_grouped.core.prefix import Prefix
from lmc_grouped.tools.plan.layout import Layout
from lmc_grouped.tools.simulate.contexts import Cost, ceiling, cost_of
from lmc_grouped.tools.simulate.pools import Scheme, cut_pools
from lmc_grouped.tools.simulate.replay import Replay
from lmc_grouped.tools.simulate.trace import TraceRequest, block_hashes

CHECKS_PER_BUDGET = 64


@dataclass(frozen=True, slots=True)
class Setting:
    """What runs that are compared have in common."""

    layout: Layout
    budget_bytes: int
    """Of one worker."""
    retention_tokens: int
    step_tokens: int


@dataclass(frozen=True, slots=True)
class Check:
    """What was held at one moment."""

    written_budgets: float
    """Kept bytes of all contexts asked so far, as a multiple of the budget."""
    held_tokens: int
    """Of contexts that would resume at their last boundary."""
    ceiling_tokens: float
    """Of those asked last, if no byte of the budget were lost."""

    @property
    def share(self) -> float:
        """Part of the ceiling that is held."""
        return self.held_tokens / self.ceiling_tokens


def mean_share(checks: list[Check], after_budgets: float) -> float:
    """Over the checks once that much was written."""
    return fmean(check.share for check in checks if check.written_budgets >= after_budgets)


@dataclass(frozen=True, slots=True)
class _Asked:
    prefix: Prefix
    cost: Cost


class Meter:
    """Asks contexts of one cut of the budget and looks at what it holds."""

    def __init__(self, setting: Setting, scheme: Scheme, reference_tokens: int) -> None:
        self._setting = setting
        self._table = setting.layout.table
        pools = cut_pools(
            scheme,
            setting.layout,
            setting.budget_bytes,
            retention_tokens=setting.retention_tokens,
            reference_tokens=reference_tokens,
        )
        self.plan = pools.plan
        self.replay = Replay(pools, setting.step_tokens)
        self.checks: list[Check] = []
        self._costs: list[Cost] = []
        self._held: list[_Asked] = []
        """Not found lost yet: a context that is never asked again does not come back."""
        self._written_bytes = 0
        self._checked = 0

    def ask(self, requests: Iterator[TraceRequest], budgets: float) -> "Meter":
        """Ask contexts until ``budgets`` more budgets of kept bytes are written; returns itself."""
        budget = self._setting.budget_bytes
        until = self._written_bytes + budgets * budget
        while self._written_bytes < until:
            self._ask(next(requests))
            due = int(self._written_bytes * CHECKS_PER_BUDGET / budget)
            if due > self._checked:
                self._checked = due
                self._check()
        return self

    def start_over(self) -> None:
        """Count only what is asked from now on; the pools stay as they are."""
        self.checks, self._costs, self._held = [], [], []
        self._written_bytes = self._checked = 0

    def _ask(self, request: TraceRequest) -> None:
        cost = cost_of(self._table, request.prompt_tokens, self._setting.retention_tokens)
        self.replay.serve(request)
        if cost.kept_bytes == 0:
            return
        self._written_bytes += cost.kept_bytes
        self._costs.append(cost)
        hashes = block_hashes(request.prompt, self._table.hash_block_tokens)
        self._held.append(_Asked(Prefix(self._table, hashes), cost))

    def _check(self) -> None:
        def is_whole(some: _Asked) -> bool:
            now, best = self.replay.resume_prefix(some.prefix, some.cost.tokens)
            return now == best

        self._held = [some for some in self._held if is_whole(some)]
        budget = self._setting.budget_bytes
        self.checks.append(
            Check(
                self._written_bytes / budget,
                sum(some.cost.tokens for some in self._held),
                ceiling(reversed(self._costs), budget).tokens,
            )
        )
