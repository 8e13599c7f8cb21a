"""How an engine steps through a request: where its steps end and what its tables hold.

The rules are those of vLLM 0.32's scheduler and block managers (recurrent
groups in align mode), for one request at a time and an empty device cache.
"""

from collections.abc import Iterator, Sequence
from math import gcd
from typing import overload

from lmc_grouped.core.groups import GroupTable, Kind
from lmc_grouped.core.plan import NULL_BLOCK

REAL_BLOCK = NULL_BLOCK + 1
"""Stands for every block that holds something; which one does not matter without bytes."""


class BlockRun(Sequence[int]):
    """A block table: null blocks at its front, then real ones."""

    __slots__ = ("_blocks", "_null_blocks")

    def __init__(self, null_blocks: int, blocks: int) -> None:
        self._null_blocks = null_blocks
        self._blocks = blocks

    def __len__(self) -> int:
        return self._blocks

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> list[int]: ...
    def __getitem__(self, index: int | slice) -> int | list[int]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(self._blocks))]
        if not -self._blocks <= index < self._blocks:
            raise IndexError(f"block {index} of a table of {self._blocks}")
        return NULL_BLOCK if index % self._blocks < self._null_blocks else REAL_BLOCK


class ImitatedEngine:
    """The steps of one engine.

    Args:
        table: the groups.
        step_tokens: most tokens of one prefill step (vLLM's
            ``max_num_batched_tokens``).
    """

    def __init__(self, table: GroupTable, step_tokens: int) -> None:
        self._table = table
        self._step_tokens = step_tokens
        self._recurrent = [g for g in table.groups if g.kind is Kind.RECURRENT]
        self._block_tokens = max((g.span_tokens for g in self._recurrent), default=0)
        drafters = [g for g in table.groups if g.is_drafter]
        self._has_drafter = bool(drafters)
        spans = [g.span_tokens for g in (*self._recurrent, *drafters)]
        self._due_tokens = gcd(table.alignment_tokens, *spans)

    def prefill_ends(
        self, prompt_tokens: int, start_tokens: int, junction_tokens: int
    ) -> Iterator[int]:
        """The token each prefill step ends at, from ``start_tokens`` to the prompt's end."""
        while start_tokens < prompt_tokens:
            start_tokens = self._step_end(prompt_tokens, start_tokens, junction_tokens)
            yield start_tokens

    def decode_ends(self, prompt_tokens: int, computed_tokens: int) -> Iterator[int]:
        """The ends of those decode steps, of one token each, at which something falls due."""
        step = self._due_tokens
        yield from range(prompt_tokens // step * step + step, computed_tokens, step)
        if computed_tokens > prompt_tokens:
            yield computed_tokens

    def tables(self, start_tokens: int, end_tokens: int) -> list[Sequence[int]]:
        """By group_id, the request's tables in a step from one token to the other.

        A window has let go of what no token of the step looks at. Recurrent
        groups get an empty table: nobody may read it.
        """
        tables: list[Sequence[int]] = [()] * (max(self._table.group_ids, default=-1) + 1)
        for group in self._table.groups:
            if group.kind is Kind.RECURRENT:
                continue
            skipped_tokens = 0
            if group.window_tokens is not None:
                skipped_tokens = max(0, start_tokens - group.window_tokens + 1)
            tables[group.group_id] = BlockRun(
                skipped_tokens // group.span_tokens, -(-end_tokens // group.span_tokens)
            )
        return tables

    def state_group_ids(self, end_tokens: int) -> list[int]:
        """The recurrent groups whose state a step that ends there hands off."""
        return [g.group_id for g in self._recurrent if end_tokens % g.span_tokens == 0]

    def _step_end(self, prompt_tokens: int, start_tokens: int, junction_tokens: int) -> int:
        """Source: ``Scheduler._mamba_block_aligned_split`` of vLLM 0.32."""
        end = min(prompt_tokens, start_tokens + self._step_tokens)
        block = self._block_tokens
        if block == 0:
            return end
        if end < prompt_tokens and end // block * block > start_tokens:
            end = end // block * block
        stops = [self._last_state_tokens(prompt_tokens)]
        if start_tokens % block:
            stops.append(start_tokens // block * block + block)
        if start_tokens < junction_tokens < end:
            stops.append(start_tokens + (junction_tokens - start_tokens) // block * block)
        return min((stop for stop in stops if start_tokens < stop < end), default=end)

    def _last_state_tokens(self, prompt_tokens: int) -> int:
        """The last boundary a replay resumes at; with a drafter one block below it.

        Source: ``get_mamba_prefill_checkpoint_position`` of vLLM 0.32.
        """
        block = self._block_tokens
        if self._has_drafter:
            return prompt_tokens // block * block - block
        return (prompt_tokens - 1) // block * block
