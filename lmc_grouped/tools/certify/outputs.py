"""Is the output of a run the right one?"""

from dataclasses import dataclass

import msgspec

from lmc_grouped.tools.certify.report import Reference, Row, Verdict
from lmc_grouped.tools.certify.runs import Comparison, Run, compare


@dataclass(frozen=True, slots=True)
class Tolerances:
    """Largest log-probability differences that still count as the same output."""

    cold: float
    """Against a run that hit another number of tokens: other kernel shapes."""
    same_hit: float
    """Against a run that hit as many tokens: the same kernels, the same shapes.
    Only this can prove a restore: rounding in other shapes moves numbers as far
    as a lost page of one group does."""


@dataclass(frozen=True, slots=True)
class References:
    """Runs of the same prompt to compare with."""

    cold: Run | None = None
    """Meant to hit nothing; None: there is none."""
    local_hits: tuple[Run, ...] = ()
    """Served from the engine's own prefix cache, whatever it held."""

    def usable_cold(self) -> Run | None:
        """`cold`, when it really hit nothing."""
        return self.cold if self.cold is not None and self.cold.is_cold() else None

    def same_hit(self, run: Run) -> list[tuple[Reference, Run]]:
        """The runs that hit as many tokens as `run`, none of them restored."""
        cold = self.usable_cold()
        every = [(Reference.LOCAL_HIT, local) for local in self.local_hits if local.is_local()]
        every += [(Reference.COLD, cold)] if cold is not None else []
        return [(kind, other) for kind, other in every if other.hit_tokens == run.hit_tokens]


def judge_output(row: Row, run: Run, references: References, tolerances: Tolerances) -> Row:
    """Fill in how the output of `run` compares, with the verdict on that."""
    cold = references.usable_cold()
    to_cold = None if cold is None else compare(run, cold)
    same_hit = [
        (kind, comparison)
        for kind, other in references.same_hit(run)
        if (comparison := compare(run, other)) is not None
    ]
    if same_hit:
        # Chunks may still differ (a junction splits one); any agreement is proof.
        kind, comparison = next(
            (pair for pair in same_hit if pair[1].agrees(tolerances.same_hit)), same_hit[0]
        )
        verdict, reason = _verdict(comparison, kind, tolerances.same_hit, to_cold)
    elif to_cold is not None:
        kind, comparison = Reference.COLD, to_cold
        verdict, reason = _verdict(comparison, kind, tolerances.cold, to_cold)
        is_restored = run.moved is not None and run.moved.restored_tokens > 0
        if verdict is Verdict.PASS and is_restored and not to_cold.agrees(tolerances.same_hit):
            verdict = Verdict.NOT_CHECKED
            reason = "close to a cold run, but no run with as many hit tokens to compare with"
    else:
        reason = _why_no_comparison(run, references)
        return msgspec.structs.replace(row, verdict=Verdict.NOT_CHECKED, reason=reason)
    return msgspec.structs.replace(
        row,
        verdict=verdict,
        reason=reason,
        is_equal_ids=comparison.equal_ids,
        compared_with=kind,
        largest_logprob_difference=comparison.largest_logprob_difference,
        largest_logprob_difference_to_cold=to_cold.largest_logprob_difference if to_cold else None,
    )


def _why_no_comparison(run: Run, references: References) -> str:
    if run.output_ids is None:
        return "the server returns no token ids"
    if references.cold is not None and references.cold.hit_tokens:
        return (
            f"the run to compare with hit {references.cold.hit_tokens} tokens in a cache: "
            "the server or its connector does not heed cache_salt"
        )
    return "no run to compare with"


def _verdict(
    comparison: Comparison, kind: Reference, tolerance: float, to_cold: Comparison | None
) -> tuple[Verdict, str]:
    difference = comparison.largest_logprob_difference
    if not comparison.agrees(tolerance):
        if difference is not None and difference > tolerance:
            return Verdict.FAIL, (
                f"log-probabilities differ by {difference:.3g} from the {kind.value} run, "
                f"at most {tolerance:g} is allowed"
            )
        return Verdict.FAIL, f"token ids differ from the {kind.value} run"
    if difference is None:
        return Verdict.NOT_CHECKED, "the token ids are equal, but there are no log-probabilities"
    if not comparison.equal_ids:
        return Verdict.PASS, f"the ids part at a tie: two tokens {comparison.tie_gap:.2g} apart"
    if to_cold is not None and not to_cold.equal_ids:
        return Verdict.PASS, (
            f"equal to the {kind.value} run; a cold run gives other ids, "
            "because the engine computes it in other shapes"
        )
    return Verdict.PASS, ""
