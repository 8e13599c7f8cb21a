"""The answer of `simulate` as a person reads it."""

from lmc_grouped.tools.plan.sizes import format_size
from lmc_grouped.tools.simulate.answer import Answer, Run
from lmc_grouped.tools.tables import Align, format_table

_HEADERS = (
    "budget", "partition", "requests", "prompt tokens", "hit tokens", "hit rate",
    "evicted pages", "moved pages", "usable",
)  # fmt: skip
_CONTEXT_HEADERS = (
    "restorable", "tokens", "bytes per token", "resumable", "ceiling", "of its tokens",
)  # fmt: skip


def format_answer(found: Answer) -> str:
    """A table with a row per run, then what was not stored and why."""
    are_contexts = any(run.restorable_contexts is not None for run in found.runs)
    headers = _HEADERS + _CONTEXT_HEADERS if are_contexts else _HEADERS
    aligns = [Align.LEFT if name == "partition" else Align.RIGHT for name in headers]
    rows = [_row(found, run, are_contexts=are_contexts) for run in found.runs]
    heading = (
        f"{found.layout or 'layout'}, trace {found.trace}: {found.workers} worker(s), retention "
        f"{found.retention_tokens:,}, reference {found.reference_tokens:,} tokens, steps of "
        f"{found.step_tokens:,} tokens"
    )
    lines = [heading, "", format_table(headers, rows, aligns), ""]
    lines += [_not_stored(found, run) for run in found.runs]
    return "\n".join(lines)


def _row(found: Answer, run: Run, *, are_contexts: bool) -> tuple[str, ...]:
    cells = (
        _budget(found, run),
        str(run.partition),
        f"{run.requests:,}",
        f"{run.prompt_tokens:,}",
        f"{run.hit_tokens:,}",
        f"{run.hit_rate:.1%}",
        f"{run.evicted_pages:,}",
        f"{run.moved_pages:,}",
        f"{run.usable_share:.1%}",
    )
    if not are_contexts:
        return cells
    per_token = run.bytes_per_restorable_token
    return (
        *cells,
        f"{run.restorable_contexts:,}",
        f"{run.restorable_tokens:,}",
        "-" if per_token is None else f"{per_token:,.0f}",
        f"{run.resumable_tokens:,}",
        f"{run.ceiling_contexts:.2f}",
        f"{run.ceiling_share:.1%}",
    )


def _not_stored(found: Answer, run: Run) -> str:
    reasons = ", ".join(f"{reason} {pages:,}" for reason, pages in run.not_stored_pages.items())
    return f"not stored, {_budget(found, run)} {run.partition}: {reasons or 'none'}"


def _budget(found: Answer, run: Run) -> str:
    """Over all workers."""
    return format_size(run.budget_bytes_per_worker * found.workers)
