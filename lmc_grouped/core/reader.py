"""What one request reads from a tier: the longest hit, and the pages held for it."""

from collections.abc import Iterator

from lmc_grouped.core.groups import GroupSpec, Kind
from lmc_grouped.core.hits import Hit, longest_hit, needed_pages
from lmc_grouped.core.index import PageIndex
from lmc_grouped.core.pool import PageRef
from lmc_grouped.core.prefix import Prefix
from lmc_grouped.core.rule import RetentionRule, family_chains


def find_hit(
    index: PageIndex, rule: RetentionRule, prefix: Prefix, *, local_tokens: int, limit_tokens: int
) -> Hit:
    """The longest boundary that can be restored now; see ``longest_hit``."""
    probe = prefix.probe(index.has, limit_tokens)
    return longest_hit(rule.table, probe, local_tokens=local_tokens, limit_tokens=limit_tokens)


def hold_hit(
    index: PageIndex,
    rule: RetentionRule,
    prefix: Prefix,
    owner: str,
    *,
    local_tokens: int,
    boundary_tokens: int,
) -> None:
    """Lease what the hit needs to ``owner``, and renew the boundary's use.

    The pages serve the boundary from now on, whoever stored them and whatever
    for: a request with other resume points may have brought some of them back.
    """
    index.lease(owner, _pages_to_hold(rule, prefix, local_tokens, boundary_tokens))
    index.join(family_chains(rule, prefix, boundary_tokens))


def _pages_to_hold(
    rule: RetentionRule, prefix: Prefix, local_tokens: int, boundary_tokens: int
) -> Iterator[PageRef]:
    for group in rule.table.groups:
        yield from prefix.refs(group.group_id, _held_pages(group, local_tokens, boundary_tokens))


def _held_pages(group: GroupSpec, local_tokens: int, boundary_tokens: int) -> range:
    """The last page of a full group holds those before it."""
    pages = needed_pages(group, local_tokens, boundary_tokens)
    return pages[-1:] if group.kind is Kind.FULL else pages


def has_junction(rule: RetentionRule, hit: Hit) -> bool:
    """Whether attention reaches further than other groups serve: the next sibling can hit there."""
    keeps_points = rule.is_sparse or rule.table.has_recurrent
    return keeps_points and hit.attention_tokens > hit.boundary_tokens
