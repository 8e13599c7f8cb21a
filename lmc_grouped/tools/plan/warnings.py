"""What `plan` warns of."""

from collections.abc import Iterable

from lmc_grouped.core.capacity import ContextPages, Starvation
from lmc_grouped.core.groups import GroupTable


def fallback_warning(reference_tokens: int) -> str:
    """Elastic pools were asked for and fixed ones were cut."""
    return (
        "the budget is below the floors of elastic pools, what one context of "
        f"{reference_tokens:,} tokens keeps in extents of its own: it is cut into static pools; "
        "give a larger budget or a shorter reference length"
    )


def context_warnings(
    table: GroupTable, context: ContextPages, least_bytes: int, workers: int
) -> list[str]:
    """Why no context of the reference length fits."""
    if not context.is_restorable:
        return [
            f"no context of {context.context_tokens:,} tokens can be restored: hits end every "
            f"{table.alignment_tokens:,} tokens"
        ]
    return [
        f"not one context of {context.context_tokens:,} tokens fits; one takes a budget of "
        f"{least_bytes} bytes per worker, {least_bytes * workers} bytes over {workers} worker(s)"
    ]


def starvation_warnings(found: Iterable[Starvation]) -> list[str]:
    """Groups whose fixed number of slots runs out before the token pages."""
    return [
        f"{starved}; give a shorter reference length if most of yours are no longer"
        for starved in found
    ]
