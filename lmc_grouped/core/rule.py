"""The retention rule of one tier, applied to requests: what to store, what serves what."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from lmc_grouped.core.groups import GroupSpec, GroupTable, Kind
from lmc_grouped.core.hits import needed_pages
from lmc_grouped.core.pool import Chain
from lmc_grouped.core.prefix import Prefix
from lmc_grouped.core.retention import PageMask, check_retention, page_mask, resume_points

_UNBOUNDED_PAGES = 1 << 62


@dataclass(frozen=True, slots=True)
class RetentionRule:
    """Which pages of a request are worth a slot.

    Args:
        table: the groups.
        retention_tokens: ``None`` keeps what serves every boundary, 0 what
            serves resume points and junctions, N also every N tokens.

    Raises:
        RetentionError: the interval does not fit the groups.
    """

    table: GroupTable
    retention_tokens: int | None

    def __post_init__(self) -> None:
        check_retention(self.table, self.retention_tokens)

    @property
    def is_sparse(self) -> bool:
        """Whether some boundaries that attention reaches are not kept by other groups."""
        return self.retention_tokens is not None and any(
            group.kind is not Kind.FULL for group in self.table.groups
        )

    @property
    def proof_tokens(self) -> int:
        """Tokens beyond a boundary that a lookup must match, because a drafter reads them."""
        return max((proof_pages(g) * g.span_tokens for g in self.table.groups), default=0)

    def masks(self, prompt_tokens: int, junctions: Iterable[int] = ()) -> dict[int, PageMask]:
        """group_id -> the pages it keeps of a request, generated tokens included."""
        points = (*resume_points(self.table, prompt_tokens), *junctions)
        return {
            group.group_id: page_mask(
                group,
                self.table.alignment_tokens,
                _UNBOUNDED_PAGES,
                self.retention_tokens,
                points,
            )
            for group in self.table.groups
        }

    def boundaries(
        self,
        prompt_tokens: int,
        junctions: Iterable[int],
        *,
        after_tokens: int,
        upto_tokens: int,
    ) -> Iterator[int]:
        """Boundaries kept for hits, ascending, ``after_tokens`` excluded."""
        step = self.table.alignment_tokens
        points: set[int] = set()
        if self.is_sparse:
            step = self.retention_tokens or 0
            align = self.table.alignment_tokens
            proven = (*resume_points(self.table, prompt_tokens), *junctions)
            points = {point // align * align for point in proven}
            points = {point for point in points if after_tokens < point <= upto_tokens}
        if step:
            points.update(range(after_tokens // step * step + step, upto_tokens + 1, step))
        yield from sorted(points)

    def family(self, boundary_tokens: int, linked_tokens: int = 0) -> list[tuple[int, range]]:
        """``(group_id, page indices)`` that serve a boundary together, the rarest first.

        A full group is represented by its last page: the index keeps those
        before it.

        Args:
            boundary_tokens: a multiple of the alignment.
            linked_tokens: a lower boundary whose family is known already: the
                part of a window's tail below it is left out.
        """
        return [
            (group.group_id, self._member_pages(group, boundary_tokens, linked_tokens))
            for group in sorted(self.table.groups, key=lambda group: group.kind is Kind.FULL)
        ]

    def _member_pages(self, group: GroupSpec, boundary_tokens: int, linked_tokens: int) -> range:
        pages = needed_pages(group, 0, boundary_tokens)
        stop = pages.stop + proof_pages(group)
        if group.kind is Kind.FULL:
            return range(stop - 1, stop)
        linked = linked_tokens // group.span_tokens - 1
        return range(max(pages.start, min(linked, stop - 1)), stop)


def family_chains(
    rule: RetentionRule, prefix: Prefix, boundary_tokens: int, linked_tokens: int = 0
) -> list[Chain]:
    """The family of a boundary by its keys, for ``PageIndex.join``.

    The prefix must have hashes up to the boundary and what proves it.
    """
    return [
        (group_id, [prefix.block_hash(group_id, page) for page in pages])
        for group_id, pages in rule.family(boundary_tokens, linked_tokens)
    ]


def proof_pages(group: GroupSpec) -> int:
    """Pages beyond a boundary that prove it: one where a drafter reads on."""
    return int(group.is_drafter and group.kind is not Kind.RECURRENT)
