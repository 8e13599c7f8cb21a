"""From a run and its reference runs to a row of the report."""

from dataclasses import dataclass

import msgspec

from lmc_grouped.tools.certify.outputs import References, Tolerances, judge_output
from lmc_grouped.tools.certify.report import Row, Verdict
from lmc_grouped.tools.certify.runs import Run


@dataclass(frozen=True, slots=True)
class Demand:
    """How much must, and how much may, come from the caches."""

    restored_at_least_tokens: int = 0
    restored_at_most_tokens: int = 0
    local_at_least_tokens: int = 0
    local_at_most_tokens: int = 0


def judge(
    check: str, run: Run, references: References, demand: Demand, tolerances: Tolerances
) -> Row:
    """The row of one run."""
    row = _measured(check, run, references, demand)
    if (problem := _unusable(run, demand)) is not None:
        return _with(row, Verdict.NOT_CHECKED, problem)
    row = judge_output(row, run, references, tolerances)
    if (problem := _wrong_hits(run, demand)) is None:
        return row
    also = f"; {row.reason}" if row.verdict is Verdict.FAIL else ""
    return _with(row, Verdict.FAIL, problem + also)


def judge_cold(check: str, run: Run) -> Row:
    """The row of a new prompt's first run: nothing may hit."""
    demand = Demand()
    row = msgspec.structs.replace(
        _measured(check, run, References(), demand),
        first_token_seconds=None,
        cold_first_token_seconds=run.first_token_seconds,
    )
    if (problem := _unusable(run, demand)) is not None:
        return _with(row, Verdict.NOT_CHECKED, problem)
    if (problem := _wrong_hits(run, demand)) is not None:
        return _with(row, Verdict.FAIL, problem)
    return _with(row, Verdict.PASS, "")


def not_checked(check: str, reason: str) -> Row:
    """The row of a check that was not made."""
    return Row(check=check, verdict=Verdict.NOT_CHECKED, reason=reason)


def failed(check: str, reason: str) -> Row:
    """The row of a check that ended in an error."""
    return Row(check=check, verdict=Verdict.FAIL, reason=reason)


def _measured(check: str, run: Run, references: References, demand: Demand) -> Row:
    cold = references.usable_cold()
    return Row(
        check=check,
        verdict=Verdict.NOT_CHECKED,
        prompt_tokens=run.prompt_tokens,
        local_hit_tokens=run.moved.local_hit_tokens if run.moved else None,
        restored_tokens=run.moved.restored_tokens if run.moved else None,
        required_restored_tokens=demand.restored_at_least_tokens,
        allowed_restored_tokens=demand.restored_at_most_tokens,
        cold_first_token_seconds=cold.first_token_seconds if cold else None,
        first_token_seconds=run.first_token_seconds,
    )


def _unusable(run: Run, demand: Demand) -> str | None:
    """Why the run tells nothing."""
    if run.moved is None:
        return "the server's hit counters could not be read"
    if run.interference is not None:
        return run.interference
    if demand.local_at_most_tokens == 0 and demand.restored_at_most_tokens > 0:
        local = run.moved.local_hit_tokens
        if local:
            return f"the engine's own prefix cache hit {local} tokens although it was reset"
    return None


def _wrong_hits(run: Run, demand: Demand) -> str | None:
    """What is wrong with how much came from which cache."""
    assert run.moved is not None  # _unusable came first
    restored, local = run.moved.restored_tokens, run.moved.local_hit_tokens
    if restored < demand.restored_at_least_tokens:
        cause = ""
        if run.moved.external_query_tokens == 0:
            cause = ": no KV connector was asked (is --kv-transfer-config set?)"
        elif run.moved.promised_tokens > restored:
            cause = f": the connector promised {run.moved.promised_tokens}"
        least = demand.restored_at_least_tokens
        return f"{restored} tokens restored, at least {least} required{cause}"
    if restored > demand.restored_at_most_tokens:
        most = demand.restored_at_most_tokens
        return f"{restored} tokens restored, at most {most} are right here"
    if local < demand.local_at_least_tokens:
        return "no token hit in the engine's own prefix cache (is --enable-prefix-caching set?)"
    if local > demand.local_at_most_tokens:
        return (
            f"{local} tokens hit in the engine's own prefix cache, "
            f"at most {demand.local_at_most_tokens} are right here"
        )
    return None


def _with(row: Row, verdict: Verdict, reason: str) -> Row:
    return msgspec.structs.replace(row, verdict=verdict, reason=reason)
