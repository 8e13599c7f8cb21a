"""The group table: what vLLM's KV-cache groups mean to a host tier.

A *group* is one entry of vLLM's ``KVCacheConfig.kv_cache_groups``. Its
``group_id`` is its index there, for ever: groups that take no part leave a
hole in the ids and nothing is renumbered.
"""

import hashlib
import math
from enum import StrEnum

import msgspec


class GroupTableError(ValueError):
    """A group table that cannot be served: says what was seen and what is allowed."""


class Kind(StrEnum):
    """What a group must hold for a prefix to be restored."""

    FULL = "full"
    """Every page of the prefix."""
    WINDOW = "window"
    """The pages that cover the last ``window_tokens - 1`` tokens of the prefix."""
    RECURRENT = "recurrent"
    """The one state whose page ends exactly where the prefix ends."""
    SCRATCH = "scratch"
    """Nothing: the engine rebuilds it from tokens."""


class GroupSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One group that a host tier stores.

    ``span_tokens`` is the number of tokens behind one block id in the
    scheduler's coordinate; ``page_bytes`` the bytes of all layers of the group
    for one block id on one worker.
    """

    group_id: int
    kind: Kind
    span_tokens: int
    page_bytes: int
    window_tokens: int | None = None
    is_drafter: bool = False
    layers: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        where = f"group {self.group_id} ({self.kind})"
        if self.kind is Kind.SCRATCH:
            raise GroupTableError(
                f"{where}: a scratch group holds nothing that can be stored; "
                "list it under `excluded`"
            )
        if self.group_id < 0:
            raise GroupTableError(f"group_id is {self.group_id}; it must be 0 or more")
        if self.span_tokens <= 0:
            raise GroupTableError(
                f"{where}: span_tokens is {self.span_tokens}; it must be positive"
            )
        if self.page_bytes < 0:
            raise GroupTableError(
                f"{where}: page_bytes is {self.page_bytes}; it must not be negative"
            )
        if self.kind is Kind.WINDOW:
            if self.window_tokens is None or self.window_tokens <= 0:
                raise GroupTableError(
                    f"{where}: window_tokens is {self.window_tokens}; "
                    "a window group needs a positive window"
                )
        elif self.window_tokens is not None:
            raise GroupTableError(
                f"{where}: window_tokens is {self.window_tokens}; only window groups have one"
            )


class ExcludedGroup(msgspec.Struct, frozen=True):
    """A group of the engine that takes no part, and the engine's reason."""

    group_id: int
    reason: str


class GroupTable(msgspec.Struct, frozen=True, kw_only=True):
    """All groups of a model, in ascending ``group_id``.

    ``alignment_tokens`` is the distance between the boundaries at which a hit
    may end: a multiple of every span, scratch rings included.
    ``hash_block_tokens`` is the number of tokens behind one block hash.

    Raises:
        GroupTableError: repeated ids, or a span that does not divide the
            alignment or is not a multiple of the hash block.
    """

    groups: tuple[GroupSpec, ...]
    alignment_tokens: int
    hash_block_tokens: int
    excluded: tuple[ExcludedGroup, ...] = ()

    def __post_init__(self) -> None:
        ids = [g.group_id for g in self.groups] + [g.group_id for g in self.excluded]
        repeated = sorted({i for i in ids if ids.count(i) > 1})
        if repeated:
            raise GroupTableError(f"group ids {repeated} appear more than once")
        if self.alignment_tokens <= 0 or self.hash_block_tokens <= 0:
            raise GroupTableError(
                f"alignment_tokens is {self.alignment_tokens} and hash_block_tokens is "
                f"{self.hash_block_tokens}; both must be positive"
            )
        for group in self.groups:
            if self.alignment_tokens % group.span_tokens:
                spans = [g.span_tokens for g in self.groups]
                raise GroupTableError(
                    f"group {group.group_id}: span {group.span_tokens} does not divide the "
                    f"alignment of {self.alignment_tokens} tokens; the next alignment that "
                    f"fits all spans {spans} is {math.lcm(*spans)}"
                )
            if group.span_tokens % self.hash_block_tokens:
                raise GroupTableError(
                    f"group {group.group_id}: span {group.span_tokens} is not a multiple of "
                    f"the hash block of {self.hash_block_tokens} tokens"
                )

    def group(self, group_id: int) -> GroupSpec:
        """The group with that engine id; ``KeyError`` for a hole."""
        for group in self.groups:
            if group.group_id == group_id:
                return group
        raise KeyError(f"group {group_id} is not stored; stored groups are {self.group_ids}")

    @property
    def group_ids(self) -> tuple[int, ...]:
        """Engine ids of the stored groups, with holes where others were left out."""
        return tuple(group.group_id for group in self.groups)

    @property
    def has_recurrent(self) -> bool:
        """Whether any group keeps a recurrent state."""
        return any(group.kind is Kind.RECURRENT for group in self.groups)

    def fingerprint(self) -> str:
        """A digest of everything all ranks must agree on.

        Page bytes, layers and the drafter's mark are left out: pipeline ranks hold
        different layers, and vLLM takes the mark from ranks without draft layers.
        """
        geometry = [(g.group_id, g.kind, g.span_tokens, g.window_tokens) for g in self.groups]
        left_out = [e.group_id for e in self.excluded]
        shared = [geometry, left_out, self.alignment_tokens, self.hash_block_tokens]
        return hashlib.sha256(msgspec.json.encode(shared)).hexdigest()[:16]

    def to_json(self) -> bytes:
        """The table as JSON; ``from_json`` reads it back unchanged."""
        return msgspec.json.encode(self)

    @classmethod
    def from_json(cls, data: bytes) -> "GroupTable":
        """Read ``to_json``'s form.

        Raises:
            GroupTableError: the text is not a valid group table.
        """
        try:
            return msgspec.json.decode(data, type=cls)
        except msgspec.DecodeError as error:
            raise GroupTableError(f"not a group table: {error}") from error
