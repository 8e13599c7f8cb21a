"""Retention: which pages of a prompt a later request can resume from.

The rule is vLLM's ``prefix_cache_retention_interval``, here in tokens:
``None`` keeps what serves every boundary, ``0`` only what serves proven resume
points (the end of a prompt, a junction), ``N`` also every ``N`` tokens.

Counts are closed forms: their cost does not grow with the prompt.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from lmc_grouped.core.groups import GroupSpec, GroupTable, Kind


class RetentionError(ValueError):
    """A retention interval that never ends on a boundary of the groups."""


def check_retention(table: GroupTable, retention_tokens: int | None) -> None:
    """Refuse an interval whose ends are not hit boundaries.

    Raises:
        RetentionError: it is negative or not a multiple of the alignment.
    """
    if retention_tokens is None:
        return
    step = table.alignment_tokens
    if retention_tokens < 0 or retention_tokens % step:
        nearest = max(step, round(retention_tokens / step) * step)
        raise RetentionError(
            f"a retention interval of {retention_tokens} tokens does not end where hits end; "
            f"it must be 0 or a multiple of {step} tokens, for example {nearest}"
        )


def replay_boundaries(
    prompt_tokens: int, grid_tokens: int, drop_tokens: int = 0
) -> tuple[int, ...]:
    """Where requests that replay a prompt can resume, ascending, without 0.

    The same prompt again must compute its last token, so it resumes below
    ``prompt_tokens - 1``; a longer sibling may resume at the prompt's very end.
    The two differ only for a prompt that ends on the grid.

    Args:
        prompt_tokens: length of the prompt.
        grid_tokens: distance between hit boundaries.
        drop_tokens: tokens that a lookup must match beyond the boundary because
            a drafter reads them; 0 without a drafter.

    Source: ``replay_boundaries`` of vLLM 0.32, where a drafter drops one grid
    step; without a drafter vLLM leaves out the sibling's point.
    """
    proven = (prompt_tokens - 1 - drop_tokens, prompt_tokens - drop_tokens)
    return tuple(sorted({end // grid_tokens * grid_tokens for end in proven if end >= grid_tokens}))


def resume_points(table: GroupTable, prompt_tokens: int) -> tuple[int, ...]:
    """Boundaries at which a replay of the prompt can resume, ascending.

    With a drafter of small blocks there are two rules and the engine keeps
    states by both: at whole alignments (``replay_boundaries``) and one
    drafter block below the end (the checkpoint of a partial tail).
    """
    peeks = {g.span_tokens for g in table.groups if g.is_drafter and g.kind is not Kind.RECURRENT}
    drops = peeks | {table.alignment_tokens} if peeks else {0}
    points = {
        boundary
        for drop in drops
        for boundary in replay_boundaries(prompt_tokens, table.alignment_tokens, drop)
    }
    return tuple(sorted(points))


@dataclass(frozen=True, slots=True)
class PageMask:
    """The pages of one group that retention keeps, out of the first ``pages``.

    Page ``i`` is kept when it lies in one of ``tails``, or when it is one of
    the last ``tail_pages`` of a segment of ``segment_pages``. Segments begin
    at page ``shift_pages``; 0 segment pages means that there are none.
    """

    pages: int
    tail_pages: int
    shift_pages: int
    segment_pages: int
    tails: tuple[range, ...]
    """Disjoint, ascending, within ``range(pages)``."""

    def keeps(self, page: int) -> bool:
        """Whether page index ``page`` is kept."""
        if not 0 <= page < self.pages:
            return False
        in_segment = self._periodic_below(page + 1) > self._periodic_below(page)
        return in_segment or any(page in tail for tail in self.tails)

    def count(self) -> int:
        """How many pages are kept."""
        return self.count_in(0, self.pages)

    def count_in(self, first: int, stop: int) -> int:
        """How many of the pages from ``first`` up to ``stop`` are kept."""
        first, stop = max(0, first), min(stop, self.pages)
        parts = [range(max(first, tail.start), min(stop, tail.stop)) for tail in self.tails]
        in_tails_only = sum(
            len(part) - (self._periodic_below(part.stop) - self._periodic_below(part.start))
            for part in parts
            if part
        )
        return max(0, self._periodic_below(stop) - self._periodic_below(first)) + in_tails_only

    def indices(self) -> list[int]:
        """The kept page indices, ascending."""
        return self.indices_in(0, self.pages)

    def indices_in(self, first: int, stop: int) -> list[int]:
        """The kept page indices from ``first`` up to ``stop``; the cost is that of the answer."""
        first, stop = max(0, first), min(stop, self.pages)
        if self.segment_pages and self.tail_pages >= self.segment_pages:
            return list(range(first, stop))
        parts = [*self.tails, *self._segment_tails(first, stop)]
        kept = {
            page for part in parts for page in range(max(first, part.start), min(stop, part.stop))
        }
        return sorted(kept)

    def _segment_tails(self, first: int, stop: int) -> list[range]:
        """The tails of the segments that touch the pages from ``first`` up to ``stop``."""
        if self.segment_pages == 0:
            return []
        step, shift = self.segment_pages, self.shift_pages
        lowest = max(1, (first - shift) // step)
        ends = range(shift + lowest * step, stop + step, step)
        return [range(max(shift, end - self.tail_pages), end) for end in ends]

    def _periodic_below(self, page: int) -> int:
        """Kept pages of segments among the first ``page`` pages."""
        if self.segment_pages == 0:
            return 0
        if self.tail_pages >= self.segment_pages:
            return page
        segments, rest = divmod(max(0, page - self.shift_pages), self.segment_pages)
        return segments * self.tail_pages + max(0, rest + self.tail_pages - self.segment_pages)


def tail_pages(group: GroupSpec) -> int:
    """Pages of ``group`` that one kept boundary needs.

    A window group needs the pages of its last ``window_tokens - 1`` tokens and,
    when it drafts, the page above the boundary; a recurrent group one state.
    """
    if group.kind is not Kind.WINDOW:
        return 1
    assert group.window_tokens is not None
    return -(-(group.window_tokens - 1) // group.span_tokens) + group.is_drafter


def page_mask(
    group: GroupSpec,
    alignment_tokens: int,
    pages: int,
    retention_tokens: int | None,
    boundaries: Iterable[int] = (),
) -> PageMask:
    """The mask over the first ``pages`` pages of ``group``.

    Args:
        group: full groups keep every page.
        alignment_tokens: distance between hit boundaries, a multiple of the span.
        pages: whole pages of the prompt.
        retention_tokens: the retention interval.
        boundaries: resume points and junctions, floored to the alignment here.

    Source: ``reachable_block_mask`` of ``SlidingWindowManager`` and
    ``MambaManager``, vLLM 0.32.
    """
    span = group.span_tokens
    need = tail_pages(group)
    shift = int(group.kind is Kind.WINDOW and group.is_drafter)
    if group.kind is Kind.FULL or (group.kind is Kind.RECURRENT and retention_tokens is None):
        return PageMask(pages, 1, 0, 1, ())
    if retention_tokens is None:
        return PageMask(pages, need, shift, alignment_tokens // span, ())
    aligned = {boundary // alignment_tokens * alignment_tokens for boundary in boundaries}
    ends = sorted(boundary // span + shift for boundary in aligned if boundary > 0)
    tails = []
    taken = 0
    for end in ends:
        tail = range(min(pages, max(taken, end - need)), min(pages, end))
        taken = tail.stop
        if tail:
            tails.append(tail)
    return PageMask(pages, need, shift, retention_tokens // span, tuple(tails))


def prompt_mask(
    group: GroupSpec,
    table: GroupTable,
    prompt_tokens: int,
    retention_tokens: int | None,
    junctions: Iterable[int] = (),
) -> PageMask:
    """The mask of a whole prompt: its resume points, its junctions, the interval."""
    return page_mask(
        group,
        table.alignment_tokens,
        prompt_tokens // group.span_tokens,
        retention_tokens,
        (*resume_points(table, prompt_tokens), *junctions),
    )


def kept_pages(
    group: GroupSpec,
    table: GroupTable,
    prompt_tokens: int,
    retention_tokens: int | None,
    junctions: Iterable[int] = (),
) -> list[int]:
    """Page indices of ``group`` that a prompt of ``prompt_tokens`` keeps, ascending."""
    return prompt_mask(group, table, prompt_tokens, retention_tokens, junctions).indices()


def kept_count(
    group: GroupSpec,
    table: GroupTable,
    prompt_tokens: int,
    retention_tokens: int | None,
    junctions: Iterable[int] = (),
) -> int:
    """``len(kept_pages(...))`` without listing them."""
    return prompt_mask(group, table, prompt_tokens, retention_tokens, junctions).count()


def context_count(
    group: GroupSpec, table: GroupTable, context_tokens: int, retention_tokens: int | None
) -> int:
    """Pages of ``group`` that one context keeps for its *last* resume point only.

    This is what a context costs that is restored at its end; a prompt that ends
    on the grid keeps the point below as well (``kept_count``).
    """
    last = resume_points(table, context_tokens)[-1:]
    pages = context_tokens // group.span_tokens
    return page_mask(group, table.alignment_tokens, pages, retention_tokens, last).count()
