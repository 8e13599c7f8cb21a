"""Streams and events of a device that is not there: work waits until the order lets it run.

Nothing runs when it is begun. Which of the streams that could go on goes on is a
policy, so a missing event shows as work done too early or too late.
"""

import itertools
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

Policy = Callable[[list[int]], int]
"""Of the streams that could go on, the one that does."""


def first_of(*preferred: int) -> Policy:
    """These streams go as far as they can before the others."""
    return lambda ready: min(ready, key=lambda s: preferred.index(s) if s in preferred else 99)


def shuffled(seed: int) -> Policy:
    """Any stream, at random."""
    return random.Random(seed).choice


@dataclass
class Event:
    """Recorded ``recorded`` times, of which ``reached`` have been reached by their stream."""

    recorded: int = 0
    reached: int = 0


@dataclass
class Work:
    """One thing in a stream."""

    run: Callable[[], None]
    may_run: Callable[[], bool] = lambda: True


@dataclass
class Streams:
    """All streams of a device; 0 is the legacy default stream."""

    policy: Policy = min
    events: dict[int, Event] = field(default_factory=dict)
    queues: dict[int, deque[Work]] = field(default_factory=lambda: {0: deque()})
    _handles: itertools.count = field(default_factory=lambda: itertools.count(0x1000, 0x10))

    def new_stream(self) -> int:
        handle = next(self._handles)
        self.queues[handle] = deque()
        return handle

    def new_event(self) -> int:
        handle = next(self._handles)
        self.events[handle] = Event()
        return handle

    def enqueue(self, stream: int, run: Callable[[], None]) -> None:
        self.queues[stream].append(Work(run))

    def record(self, event: int, stream: int) -> None:
        marked = self.events[event]
        marked.recorded += 1
        count = marked.recorded

        def reach() -> None:
            marked.reached = count

        self.queues[stream].append(Work(reach))

    def wait(self, stream: int, event: int) -> None:
        """As the driver does: for the record made last, whatever is recorded later."""
        awaited, count = self.events[event], self.events[event].recorded
        self.queues[stream].append(Work(lambda: None, lambda: awaited.reached >= count))

    def has_reached(self, event: int) -> bool:
        return self.events[event].reached >= self.events[event].recorded

    def step(self) -> bool:
        """Let one stream do one thing; False when none can."""
        ready = [s for s, queue in self.queues.items() if queue and queue[0].may_run()]
        if not ready:
            return False
        self.queues[self.policy(ready)].popleft().run()
        return True

    def run_until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            assert self.step(), "the streams wait for each other, or for nothing"

    def run_all(self) -> None:
        self.run_until(lambda: not any(self.queues.values()))
