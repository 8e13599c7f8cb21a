"""The ways of cutting a budget that are compared."""

from dataclasses import dataclass
from enum import StrEnum

from lmc_grouped.core.pools import Partition, PoolPlan
from lmc_grouped.core.rule import RetentionRule
from lmc_grouped.core.sizing import BudgetError
from lmc_grouped.tools.errors import ToolError
from lmc_grouped.tools.plan.cutting import cut_layout
from lmc_grouped.tools.plan.layout import Layout


class Scheme(StrEnum):
    """A way of cutting the budget, and of keeping states and tails in it."""

    SHARED = "shared"
    """Rows of one size that every group takes from; kept by the retention interval."""
    DENSE = "dense"
    """A pool per group, of the same tokens each; every state and tail is kept."""
    SIZED = "sized"
    """A pool per group, sized and kept by the retention interval."""
    ELASTIC = "elastic"
    """Extents that move between the groups; kept by the retention interval."""


_PARTITIONS = {Scheme.SHARED: Partition.OFF, Scheme.ELASTIC: Partition.AUTO}


@dataclass(frozen=True, slots=True)
class Pools:
    """The pools of one worker under one scheme."""

    scheme: Scheme
    plan: PoolPlan
    rule: RetentionRule

    @property
    def is_shared(self) -> bool:
        """Whether all groups take their slots from the same rows."""
        return self.scheme is Scheme.SHARED

    def slot_bytes(self, group_id: int) -> int:
        """Bytes that one resident page of the group takes up."""
        if self.plan.row_bytes is not None:
            return self.plan.row_bytes
        return self.rule.table.group(group_id).page_bytes


def cut_pools(
    scheme: Scheme,
    layout: Layout,
    budget_bytes: int,
    *,
    retention_tokens: int,
    reference_tokens: int,
) -> Pools:
    """The pools that ``budget_bytes`` of one worker make.

    Args:
        scheme: how to cut them.
        layout: the groups, and the bytes of a shared row if it names them.
        budget_bytes: host bytes of one worker.
        retention_tokens: the interval; ``dense`` pools keep everything instead.
        reference_tokens: length of the contexts to size for.

    Raises ToolError naming the argument that makes it impossible.
    """
    kept_tokens = None if scheme is Scheme.DENSE else retention_tokens
    try:
        plan = cut_layout(
            layout,
            budget_bytes,
            partition=_PARTITIONS.get(scheme, Partition.STATIC),
            retention_tokens=kept_tokens,
            reference_tokens=reference_tokens,
        )
    except BudgetError as error:
        raise ToolError(f"budget of the {scheme} pools: {error}") from error
    return Pools(scheme, plan, RetentionRule(layout.table, kept_tokens))
