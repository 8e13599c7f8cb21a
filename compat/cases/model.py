"""What a case is, and how its answers are written down."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

Answer = Any
"""Something JSON and TOML can both hold: a string, a number, or a list of those."""


class HasGroupFields(Protocol):
    """The fields of ``EngineGroupInfo`` that every release has."""

    engine_group_id: int
    layer_indices: tuple[int, ...]
    tokens_per_block: int
    sw_size_tokens: int


@dataclass(frozen=True, slots=True)
class Row:
    """One transfer group of a conversion."""

    group_id: int
    layers: tuple[int, ...]
    tokens: int
    """Tokens behind one block id, in the scheduler's coordinate."""
    slots: int
    """States in one page of one layer."""
    window: int = -1
    """Tokens of history that a restore needs; -1: all of it."""

    def text(self) -> str:
        """The row with the slots that the release sees in the tensors."""
        return f"{self._head()}: {self.tokens} tokens, {self.slots} slots"

    def text_of_window(self) -> str:
        """The row of a case about windows."""
        return f"{self._head()}: window {self.window}"

    def text_of_info(self) -> str:
        """What an ``EngineGroupInfo`` holds by itself: no slots."""
        return f"{self._head()}: {self.tokens} tokens, window {self.window}"

    def _head(self) -> str:
        return f"group {self.group_id}, layers {' '.join(map(str, self.layers))}"

    @classmethod
    def of(cls, info: HasGroupFields, slots: int) -> "Row":
        """The row of one ``EngineGroupInfo``."""
        return cls(
            info.engine_group_id,
            tuple(info.layer_indices),
            info.tokens_per_block,
            slots,
            info.sw_size_tokens,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One question to a release."""

    name: str
    """``topic/variant``: the key in the expectations."""
    title: str
    """What is asked, in words, for the documentation."""
    right: Answer
    ask: Callable[[], Answer] = field(repr=False)
    """Asks the LMCache that is imported; runs inside a probe."""
    field_cases: tuple[str, ...] = ()
    """Ids of the field reports that it restates, such as ``A02``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversion(Case):
    """vLLM's groups and tensors, converted by the release; also asked of our converter."""

    build: Callable[[], Any] = field(repr=False)
    """The input, a ``geometry.Registered``."""
    rows: tuple[Row, ...] = ()
    """The right groups; empty when the right answer is to refuse."""
    context_parallel: int = 1
    ours: bool = True
    """Whether our converter takes the input: it refuses recurrent modes other than align."""

    @property
    def right_ours(self) -> Answer:
        """The right answer of our converter, which does not see slots."""
        return [row.text_of_info() for row in self.rows]


def conversion(
    name: str,
    title: str,
    build: Callable[[], Any],
    rows: Sequence[Row],
    *,
    windows: bool = False,
    context_parallel: int = 1,
    field_cases: tuple[str, ...] = (),
    ours: bool = True,
) -> Conversion:
    """A conversion whose answer is its rows, about slots or about windows."""
    write = Row.text_of_window if windows else Row.text

    def ask() -> Answer:
        from compat.cases import surface

        found = surface.convert(build(), context_parallel=context_parallel)
        pairs = zip(found.infos, found.slots, strict=True)
        return [write(Row.of(info, slots)) for info, slots in pairs]

    return Conversion(
        name=name,
        title=title,
        right=[write(row) for row in rows],
        ask=ask,
        field_cases=field_cases,
        build=build,
        rows=tuple(rows),
        context_parallel=context_parallel,
        ours=ours,
    )
