"""From single measurements to medians and ratios; no server here."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import median


class Side(StrEnum):
    """What is compared."""

    NONE = "no connector"
    OURS = "lmc_grouped"
    DISK = "lmc_grouped, disk on"
    LMCACHE = "LMCache MP"


class Phase(StrEnum):
    """Where the prompt's tokens come from."""

    COLD = "cold"
    """All are computed; a side with a connector stores them."""
    RESTORED = "restored"
    """The engine's cache was emptied; the connector brings the prefix back."""
    LOCAL = "local hit"
    """The engine's own cache holds the prefix: what a restore cannot beat."""


class Metric(StrEnum):
    """Which of a request's times."""

    FIRST_TOKEN = "time to first token"
    TOTAL = "whole request"


@dataclass(frozen=True, slots=True)
class Sample:
    """One measured request."""

    side: Side
    phase: Phase
    prompt_tokens: int
    round_index: int
    first_token_seconds: float
    total_seconds: float
    hit_tokens: int
    """Prompt tokens that were not computed."""
    disk_seconds: float = 0.0
    """Processor time of the threads that write to disk, in the server and for this
    request: how busy the machine is hardly moves it."""

    def seconds(self, metric: Metric) -> float:
        """The time asked for."""
        return self.first_token_seconds if metric is Metric.FIRST_TOKEN else self.total_seconds


@dataclass(frozen=True, slots=True)
class Spread:
    """The middle and the ends of some values of one unit."""

    median: float
    lowest: float
    highest: float

    @classmethod
    def of(cls, values: Iterable[float]) -> "Spread":
        """Raises ValueError when there are no values."""
        ordered = sorted(values)
        if not ordered:
            raise ValueError("a spread needs at least one value, got none")
        return cls(median(ordered), ordered[0], ordered[-1])


@dataclass(frozen=True, slots=True)
class Question:
    """One side's time over another's, in the same round, on the same prompt."""

    text: str
    above: tuple[Side, Phase]
    below: tuple[Side, Phase]
    metric: Metric
    at_most: float | None = None
    """The target; None: the ratio is for orientation."""


QUESTIONS = (
    Question(
        "restored, lmc_grouped / LMCache",
        (Side.OURS, Phase.RESTORED),
        (Side.LMCACHE, Phase.RESTORED),
        Metric.FIRST_TOKEN,
        at_most=0.7,
    ),
    Question(
        "restored / cold, lmc_grouped",
        (Side.OURS, Phase.RESTORED),
        (Side.OURS, Phase.COLD),
        Metric.FIRST_TOKEN,
    ),
    Question(
        "restored / cold, LMCache",
        (Side.LMCACHE, Phase.RESTORED),
        (Side.LMCACHE, Phase.COLD),
        Metric.FIRST_TOKEN,
    ),
    Question(
        "restored, lmc_grouped / local hit",
        (Side.OURS, Phase.RESTORED),
        (Side.NONE, Phase.LOCAL),
        Metric.FIRST_TOKEN,
    ),
    *(
        Question(
            "cold, disk on / off",
            (Side.DISK, Phase.COLD),
            (Side.OURS, Phase.COLD),
            metric,
            at_most=1.05,
        )
        for metric in Metric
    ),
    *(
        Question(
            f"cold, {side} / no connector",
            (side, Phase.COLD),
            (Side.NONE, Phase.COLD),
            metric,
            at_most=1.1 if side is Side.OURS else None,
        )
        for side in (Side.OURS, Side.LMCACHE)
        for metric in Metric
    ),
)


def select(
    samples: Iterable[Sample], side: Side, phase: Phase, prompt_tokens: int
) -> dict[int, Sample]:
    """round -> its sample."""
    return {
        sample.round_index: sample
        for sample in samples
        if (sample.side, sample.phase, sample.prompt_tokens) == (side, phase, prompt_tokens)
    }


def answer(samples: Sequence[Sample], question: Question, prompt_tokens: int) -> Spread | None:
    """The ratio, paired by round; None when a side was not measured.

    Pairs are formed within a round, so that a machine that gets slower or
    faster over the run moves both times of a ratio.
    """
    above = select(samples, *question.above, prompt_tokens)
    below = select(samples, *question.below, prompt_tokens)
    rounds = above.keys() & below.keys()
    if not rounds:
        return None
    return Spread.of(
        above[r].seconds(question.metric) / below[r].seconds(question.metric) for r in rounds
    )


def verdict(ratio: Spread, at_most: float | None) -> str:
    """What the target says to the median; empty without a target."""
    if at_most is None:
        return ""
    met = "met" if ratio.median <= at_most else "missed"
    return f"at most {at_most:g}: {met}"


def rotate(sides: Sequence[Side], round_index: int) -> list[Side]:
    """The order of a round: each round begins with the next side."""
    start = round_index % len(sides)
    return [*sides[start:], *sides[:start]]
