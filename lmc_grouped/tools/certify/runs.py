"""One completion as the server gave it, and how two of them differ."""

from collections.abc import Mapping
from dataclasses import dataclass

from lmc_grouped.tools.certify.metrics import Counters


@dataclass(frozen=True, slots=True)
class Run:
    """One greedy completion."""

    prompt_tokens: int
    output_ids: tuple[int, ...] | None
    """None when the server returns no token ids."""
    logprobs: tuple[Mapping[str, float], ...] | None
    """Per output position: log-probability of the most likely tokens and of the
    one chosen, keyed by token. None when the server returns none."""
    first_token_seconds: float
    """From sending the request to the first chunk with a token."""
    moved: Counters | None
    """How far the counters moved; None when the server has none."""
    interference: str | None
    """Why `moved` does not describe this request alone; None when it does."""

    @property
    def hit_tokens(self) -> int | None:
        """Prompt tokens that were not computed, wherever they came from."""
        if self.moved is None:
            return None
        return self.moved.local_hit_tokens + self.moved.restored_tokens

    def is_cold(self) -> bool:
        """Whether every prompt token was computed."""
        return self.interference is None and self.hit_tokens == 0

    def is_local(self) -> bool:
        """Whether no prompt token came from the connector."""
        return (
            self.interference is None and self.moved is not None and not self.moved.restored_tokens
        )


@dataclass(frozen=True, slots=True)
class Comparison:
    """How a run differs from a reference run of the same prompt."""

    equal_ids: bool
    tie_gap: float | None
    """Where the ids part: how much likelier a run holds one of the two choices
    than the other, the larger of both runs, as a difference of
    log-probabilities. None when they do not part or a run does not list both."""
    largest_logprob_difference: float | None
    """Over the tokens both runs list, at every position up to and including the
    first where the ids differ: later positions continue different texts. None
    when either run has no log-probabilities."""

    def agrees(self, tolerance: float) -> bool:
        """Same output: log-probabilities, where known, within `tolerance`, and
        the ids equal, or parting where that tolerance explains it: each of two
        candidates may move by it, one up and the other down."""
        difference = self.largest_logprob_difference
        if difference is not None and difference > tolerance:
            return False
        is_tie = self.tie_gap is not None and self.tie_gap <= 2 * tolerance
        return self.equal_ids or is_tie


def compare(run: Run, reference: Run) -> Comparison | None:
    """Compare two runs; None when either has no token ids."""
    ours, theirs = run.output_ids, reference.output_ids
    if ours is None or theirs is None:
        return None
    shortest = min(len(ours), len(theirs))
    parting = next((i for i in range(shortest) if ours[i] != theirs[i]), None)
    if run.logprobs is None or reference.logprobs is None:
        return Comparison(ours == theirs, tie_gap=None, largest_logprob_difference=None)
    end = shortest if parting is None else parting + 1
    pairs = list(zip(run.logprobs[:end], reference.logprobs[:end], strict=False))
    differences = (abs(a[token] - b[token]) for a, b in pairs for token in a.keys() & b.keys())
    return Comparison(
        equal_ids=ours == theirs,
        tie_gap=None if parting is None else _gap(pairs[parting], ours[parting], theirs[parting]),
        largest_logprob_difference=max(differences, default=None),
    )


def _gap(
    pair: tuple[Mapping[str, float], Mapping[str, float]], ours: int, theirs: int
) -> float | None:
    names = (token_name(ours), token_name(theirs))
    if not all(name in listed for listed in pair for name in names):
        return None
    return max(abs(listed[names[0]] - listed[names[1]]) for listed in pair)


def token_name(token_id: int) -> str:
    """The key of a token in `Run.logprobs`, as `return_tokens_as_token_ids` has it."""
    return f"token_id:{token_id}"
