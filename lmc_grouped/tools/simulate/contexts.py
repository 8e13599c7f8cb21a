"""Traces of independent contexts, of which a tier is to hold as many as it can.

A ceiling says how many the budget would hold if no byte were lost.
"""

import math
import random
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import NamedTuple

from lmc_grouped.core.capacity import context_pages
from lmc_grouped.core.groups import GroupTable
from lmc_grouped.tools.errors import ToolError
from lmc_grouped.tools.simulate.trace import Segment, Trace, TraceRequest

CONTEXTS = "contexts"
LENGTHS = "lengths"
SWITCH = "switch"
OF_CONTEXTS = (CONTEXTS, LENGTHS, SWITCH)

SHORTEST_TOKENS = 1_024
"""The shortest context of ``lengths``."""
LONGEST_TOKENS = 131_072
"""Its longest, unless another is given."""
SHORT_SHARE = 16
"""The short contexts of ``switch`` have this part of the tokens of its long ones."""
BUDGETS_WRITTEN = 2
"""What ``lengths``, and each part of ``switch``, writes unless a number is given."""


class Cost(NamedTuple):
    """One context, and what it takes to keep it."""

    tokens: int
    kept_bytes: int
    """0 for a context too short to be restored."""


def cost_of(table: GroupTable, tokens: int, retention_tokens: int | None) -> Cost:
    """The exact bytes that retention keeps; pages beyond the last boundary are never stored."""
    whole_tokens = tokens
    if not any(group.is_drafter for group in table.groups):
        whole_tokens -= tokens % table.alignment_tokens
    kept = context_pages(table, whole_tokens, retention_tokens)
    return Cost(tokens, kept.context_bytes if kept.is_restorable else 0)


class Ceiling(NamedTuple):
    """The contexts asked last that a budget would hold if no byte were lost."""

    contexts: float
    tokens: float


def ceiling(costs: Iterable[Cost], budget_bytes: int) -> Ceiling:
    """Fill the budget with contexts, the one asked last first; the last counts by its part."""
    contexts = tokens = 0.0
    left_bytes = budget_bytes
    for cost in costs:
        if cost.kept_bytes == 0:
            continue
        part = min(1.0, left_bytes / cost.kept_bytes)
        contexts += part
        tokens += part * cost.tokens
        left_bytes -= cost.kept_bytes
        if left_bytes <= 0:
            break
    return Ceiling(contexts, tokens)


def uniform_lengths(tokens: int) -> Iterator[int]:
    """The same length for ever."""
    while True:
        yield tokens


def mixed_lengths(longest_tokens: int, seed: int) -> Iterator[int]:
    """Short ones as likely as long ones, by their logarithms, for ever.

    Raises ToolError: the longest is shorter than the shortest.
    """
    if longest_tokens < SHORTEST_TOKENS:
        raise ToolError(
            f"--context-tokens is {longest_tokens}: the trace {LENGTHS} needs "
            f"{SHORTEST_TOKENS} or more"
        )
    rng = random.Random(f"{LENGTHS} {seed}")
    low, high = math.log(SHORTEST_TOKENS), math.log(longest_tokens)
    while True:
        yield round(math.exp(rng.uniform(low, high)))


def asked(lengths: Iterable[int], name: str = "context") -> Iterator[TraceRequest]:
    """One request for each length, none like another."""
    for number, tokens in enumerate(lengths):
        prompt = (Segment(f"{name}-{number}", tokens),)
        yield TraceRequest(float(number), prompt, Segment(f"answer-{number}", 1))


def contexts(contexts_count: int, context_tokens: int) -> Trace:
    """Independent contexts of one length: each asked once, then each again in the same order."""
    once = list(asked([context_tokens] * contexts_count))
    again = [
        TraceRequest(float(number), request.prompt, Segment(f"answer-{number}", 1))
        for number, request in enumerate(once, contexts_count)
    ]
    return Trace(CONTEXTS, (*once, *again), are_contexts=True)


class ContextTraces:
    """Makes traces for one layout and budget.

    Args:
        table: the groups, to tell how many contexts fill the budget.
        budget_bytes: the largest budget of one worker.
        retention_tokens: the retention interval.
    """

    def __init__(self, table: GroupTable, budget_bytes: int, retention_tokens: int) -> None:
        self._table = table
        self._budget_bytes = budget_bytes
        self._retention_tokens = retention_tokens

    def make(self, name: str, requests: int | None, context_tokens: int, seed: int) -> Trace:
        """One of ``OF_CONTEXTS``.

        Args:
            name: which one.
            requests: how many; of ``contexts`` the number of contexts.
            context_tokens: their length, or that of the longest.
            seed: of the random lengths.

        Raises ToolError when the contexts are too short for the trace.
        """
        self._check(name, context_tokens // SHORT_SHARE if name == SWITCH else context_tokens)
        if name == LENGTHS:
            lengths = mixed_lengths(context_tokens, seed)
            chosen = islice(lengths, requests) if requests else self._budgets_of(lengths)
            return Trace(name, tuple(asked(chosen)), are_contexts=True)
        if name == SWITCH:
            return self._switch(requests, context_tokens)
        if requests is None:
            kept = context_pages(self._table, context_tokens, self._retention_tokens)
            requests = 1 + (self._budget_bytes // kept.context_bytes if kept.context_bytes else 0)
        return contexts(requests, context_tokens)

    def _check(self, name: str, tokens: int) -> None:
        """Contexts that cannot be restored would never fill a budget."""
        if name != CONTEXTS and self._cost(tokens).kept_bytes == 0:
            raise ToolError(
                f"--context-tokens: the trace {name} would ask contexts of at most {tokens} tokens "
                f"here, but hits end every {self._table.alignment_tokens} tokens: give more"
            )

    def _switch(self, requests: int | None, context_tokens: int) -> Trace:
        """Short contexts, then long ones, then short ones, about the same bytes of each."""
        short = list(self._budgets_of(uniform_lengths(context_tokens // SHORT_SHARE)))
        long = list(self._budgets_of(uniform_lengths(context_tokens)))
        if requests:
            total = 2 * len(short) + len(long)
            long = long[:1] * max(1, requests * len(long) // total)
            short = short[:1] * max(1, (requests - len(long)) // 2)
        return Trace(SWITCH, tuple(asked([*short, *long, *short])), are_contexts=True)

    def _cost(self, tokens: int) -> Cost:
        return cost_of(self._table, tokens, self._retention_tokens)

    def _budgets_of(self, lengths: Iterable[int]) -> Iterator[int]:
        """The first of ``lengths`` that fill the largest budget ``BUDGETS_WRITTEN`` times."""
        size_bytes = BUDGETS_WRITTEN * self._budget_bytes
        for tokens in lengths:
            yield tokens
            size_bytes -= self._cost(tokens).kept_bytes
            if size_bytes <= 0:
                return
