"""Traces generated from a seed.

Lengths are shares of the context length, so that a trace keeps its character
at any scale. The same arguments give the same requests.
"""

import math
import random
from collections.abc import Callable, Iterator
from heapq import heappop, heappush
from itertools import count, islice
from typing import NamedTuple

from lmc_grouped.tools.errors import ToolError
from lmc_grouped.tools.simulate.trace import Segment, Trace, TraceRequest

LEAST_CONTEXT_TOKENS = 256
"""Below it the shares of a generated prompt round to nothing."""


class _Session(NamedTuple):
    """What the requests of one session are drawn from."""

    name: str
    rng: random.Random
    context_tokens: int

    def tokens(self, low: float, high: float) -> int:
        """A length between two shares of the context, short ones as likely as long ones."""
        share = math.exp(self.rng.uniform(math.log(low), math.log(high)))
        return max(1, round(share * self.context_tokens))

    def fits(self, prompt: tuple[Segment, ...], output: Segment) -> bool:
        """Whether the context holds both."""
        return sum(s.tokens for s in prompt) + output.tokens <= self.context_tokens

    def common(self, name: str, share: float) -> Segment:
        """A segment that all sessions begin with."""
        return Segment(name, max(1, round(share * self.context_tokens)))


def _chat(session: _Session, arrival_s: float) -> Iterator[TraceRequest]:
    """Turns behind one system prompt; a turn in four brings a pasted text, one in eight ends it."""
    rng = session.rng
    prompt: tuple[Segment, ...] = (session.common("chat-system", 0.03),)
    for turn in count():
        if rng.random() < 1 / 4:
            prompt += (Segment(f"{session.name}-paste-{turn}", session.tokens(0.02, 0.08)),)
        prompt += (Segment(f"{session.name}-question-{turn}", session.tokens(0.001, 0.01)),)
        answer = Segment(f"{session.name}-answer-{turn}", session.tokens(0.003, 0.015))
        if not session.fits(prompt, answer):
            return
        yield TraceRequest(arrival_s, prompt, answer)
        if rng.random() < 1 / 8:
            return
        prompt += (answer,)
        arrival_s += rng.expovariate(1 / 60)


def _agent(session: _Session, arrival_s: float) -> Iterator[TraceRequest]:
    """Tool calls and results until the context is full; a step in seven tries others beside it."""
    rng = session.rng
    prompt: tuple[Segment, ...] = (
        session.common("agent-system", 0.1),
        Segment(f"{session.name}-task", session.tokens(0.01, 0.05)),
    )
    for step in count():
        here = f"{session.name}-{step}"
        if rng.random() < 1 / 7:
            for branch in range(rng.randint(1, 3)):
                tried = (*prompt, Segment(f"{here}-try-{branch}", session.tokens(0.005, 0.05)))
                found = Segment(f"{here}-found-{branch}", session.tokens(0.001, 0.01))
                if session.fits(tried, found):
                    yield TraceRequest(arrival_s, tried, found)
                arrival_s += rng.expovariate(1 / 2)
        call = Segment(f"{here}-call", session.tokens(0.001, 0.01))
        if not session.fits(prompt, call):
            return
        yield TraceRequest(arrival_s, prompt, call)
        prompt += (call, Segment(f"{here}-result", session.tokens(0.005, 0.1)))
        arrival_s += rng.expovariate(1 / 10)


def _document(session: _Session, arrival_s: float) -> Iterator[TraceRequest]:
    """Three to six questions about one long document, each on its own."""
    rng = session.rng
    text = (
        session.common("document-rules", 0.01),
        Segment(session.name, session.tokens(0.3, 0.9)),
    )
    for number in range(rng.randint(3, 6)):
        question = Segment(f"{session.name}-question-{number}", session.tokens(0.001, 0.01))
        answer = Segment(f"{session.name}-answer-{number}", session.tokens(0.003, 0.015))
        yield TraceRequest(arrival_s, (*text, question), answer)
        arrival_s += rng.expovariate(1 / 90)


class _Kind(NamedTuple):
    """One sort of sessions, and how often one begins."""

    requests: Callable[[_Session, float], Iterator[TraceRequest]]
    seconds_between: float


_KINDS = {
    "chats": _Kind(_chat, 20),
    "agents": _Kind(_agent, 120),
    "documents": _Kind(_document, 60),
}
GENERATED = tuple(_KINDS)


def generate(name: str, requests: int, context_tokens: int, seed: int) -> Trace:
    """The first requests of many sessions that run side by side.

    Args:
        name: one of ``GENERATED``.
        requests: how many.
        context_tokens: no prompt with its output is longer.
        seed: of the random numbers.

    Raises ToolError when the contexts are too short for the shares of a prompt.
    """
    if context_tokens < LEAST_CONTEXT_TOKENS:
        raise ToolError(
            f"--context-tokens is {context_tokens}: the trace {name} needs "
            f"{LEAST_CONTEXT_TOKENS} or more"
        )
    arriving = _side_by_side(_KINDS[name], context_tokens, f"{name} {seed}")
    return Trace(name, tuple(islice(arriving, requests)))


def _side_by_side(kind: _Kind, context_tokens: int, seed: str) -> Iterator[TraceRequest]:
    """The requests of all sessions in the order of their arrival, for ever."""
    starts = random.Random(seed)
    start_s = 0.0
    waiting: list[tuple[float, int, TraceRequest, Iterator[TraceRequest]]] = []
    for number in count():
        # A stream of its own for each session: what one draws changes no other.
        name = f"session-{number}"
        session = _Session(name, random.Random(f"{seed} {name}"), context_tokens)
        _wait(waiting, number, kind.requests(session, start_s))
        start_s += starts.expovariate(1 / kind.seconds_between)
        while waiting and waiting[0][0] <= start_s:
            _, number_due, request, rest = heappop(waiting)
            yield request
            _wait(waiting, number_due, rest)


def _wait(
    waiting: list[tuple[float, int, TraceRequest, Iterator[TraceRequest]]],
    number: int,
    requests: Iterator[TraceRequest],
) -> None:
    request = next(requests, None)
    if request is not None:
        heappush(waiting, (request.arrival_s, number, request, requests))
