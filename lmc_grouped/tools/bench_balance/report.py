"""The table of `make bench-balance`."""

from collections.abc import Sequence

from lmc_grouped.tools.bench_balance.figures import Result, Side
from lmc_grouped.tools.tables import Align, format_table

TARGET_SHARE = 0.02
"""Of engine time: rebalancing is to cost less."""

_HEADERS = (
    "partition",
    "extents",
    "pages an extent",
    "rebalancing",
    "of engine time",
    "target",
    "longest plan",
    "moved pages",
    "moved MiB",
    "evicted pages",
    "stalls",
    "of reservations",
    "not stored pages",
    "planning stores",
    "engine time",
    "restored tokens",
    "of restorable",
)
_ALIGNS = (Align.LEFT, *[Align.RIGHT] * (len(_HEADERS) - 1))


def format_model(results: Sequence[Result]) -> str:
    """The table of one model: medians over rounds, a row per partition."""
    task = results[0].task
    lines = [
        f"{task.model}: {task.budget_bytes / 2**20:g} MiB of host memory, sized for "
        f"{task.reference_tokens:,} tokens; a round is {task.short.prompts} prompts of "
        f"{task.short.tokens:,} tokens and {task.long.prompts} of {task.long.tokens:,}, each phase "
        f"run again after the engine's cache was reset; one computing thread; medians of "
        f"{task.rounds} rounds",
        "",
        format_table(_HEADERS, [_row(result) for result in results], _ALIGNS),
    ]
    forced = [result for result in results if result.task.side is Side.FORCED]
    if forced:
        lines += ["", _why_forced(forced[0], results)]
    return "\n".join(lines)


def _why_forced(forced: Result, results: Sequence[Result]) -> str:
    planned = [result for result in results if result.task.side is Side.AUTO]
    text = (
        f"forced extents: the size was set to {forced.task.forced_pages} of the largest pages, "
        f"{forced.extent_bytes / 2**10:,.1f} KiB, so that extents have to be emptied by moving "
        "pages"
    )
    if not planned:
        return text
    text += f"; the plan picks {planned[0].extent_bytes / 2**10:,.1f} KiB"
    if max(planned[0].pages_per_extent) == 1:
        text += ", one page of every group, and evicting a page is then all that is ever needed"
    return text


def _row(result: Result) -> tuple[str, ...]:
    middle = result.middle
    share = middle(lambda item: item.balance_share)
    is_elastic = result.extents > 0
    return (
        result.task.side.value,
        f"{result.extents:,}" if is_elastic else "-",
        "/".join(map(str, result.pages_per_extent)) if is_elastic else "-",
        f"{middle(lambda item: item.balance_seconds) * 1e3:.2f} ms",
        f"{share:.3%}",
        ("met" if share < TARGET_SHARE else "missed") if is_elastic else "-",
        f"{result.longest_plan_seconds * 1e3:.2f} ms",
        f"{middle(lambda item: item.moved_pages):,.0f}",
        f"{middle(lambda item: item.moved_bytes) / 2**20:.2f}",
        f"{middle(lambda item: item.evicted_pages):,.0f}",
        f"{middle(lambda item: item.stalls):,.0f}",
        f"{middle(lambda item: item.stall_share):.1%}",
        f"{middle(lambda item: item.not_stored_pages):,.0f}",
        f"{middle(lambda item: item.store_share):.3%}",
        f"{middle(lambda item: item.engine_seconds):.2f} s",
        f"{middle(lambda item: item.restored_tokens):,.0f}",
        f"{middle(lambda item: item.restored_share):.1%}",
    )
