"""What a stored page is called, and everything that changes what its bytes mean.

A *page key* is a group's id and the hash of the block that ends the page; the
hash is chained, so it stands for the whole prefix. A *namespace* is the rest:
two runs may share stored bytes exactly when their namespaces are equal.
"""

import hashlib
import json
from collections.abc import Iterable
from enum import StrEnum

import msgspec

from lmc_grouped.core.groups import GroupTable, Kind
from lmc_grouped.core.pool import PageRef

FORMAT_VERSION = 1
"""Of stored bytes: raised whenever older stores must not be read."""
MAX_HASH_BYTES = 40
"""Longest block hash of a key; vLLM's are 16 (xxhash) or 32 bytes (sha256)."""
_GROUP_BYTES = 2
MAX_KEY_BYTES = _GROUP_BYTES + MAX_HASH_BYTES


class KeyFormatError(ValueError):
    """A page key that cannot be written or read: says what was seen and what is allowed."""


class NamespaceError(ValueError):
    """A namespace that cannot be served: says what was seen and what to do."""


def encode_key(key: PageRef) -> bytes:
    """``(group_id, block hash)`` as bytes: the id in two bytes, big end first, then the hash.

    Raises:
        KeyFormatError: an id outside 0..65535, or a hash that is empty or too long.
    """
    group_id, block_hash = key
    if not 0 <= group_id < 1 << (8 * _GROUP_BYTES):
        raise KeyFormatError(f"group_id is {group_id}; a page key holds ids from 0 to 65535")
    if not 0 < len(block_hash) <= MAX_HASH_BYTES:
        raise KeyFormatError(
            f"group {group_id}: the block hash has {len(block_hash)} bytes; "
            f"a page key holds 1 to {MAX_HASH_BYTES}"
        )
    return group_id.to_bytes(_GROUP_BYTES, "big") + block_hash


def decode_key(data: bytes) -> PageRef:
    """The key that ``encode_key`` wrote.

    Raises:
        KeyFormatError: the length is not that of a key.
    """
    if not _GROUP_BYTES < len(data) <= MAX_KEY_BYTES:
        raise KeyFormatError(
            f"a page key has {_GROUP_BYTES + 1} to {MAX_KEY_BYTES} bytes, not {len(data)}"
        )
    return int.from_bytes(data[:_GROUP_BYTES], "big"), data[_GROUP_BYTES:]


class Layout(StrEnum):
    """How groups share host memory: pages of one layout are not those of another."""

    SHARED_ROWS = "shared rows"
    """Every page in a row as wide as the widest group's page."""
    EQUAL_SPANS = "equal spans"
    """A pool per group; a page of any group covers the same tokens."""
    UNEQUAL_SPANS = "unequal spans"
    """A pool per group; pages of different groups cover different numbers of tokens."""


def layout_of(table: GroupTable, *, shared_rows: bool) -> Layout:
    """The layout of a table's pages."""
    if shared_rows:
        return Layout.SHARED_ROWS
    spans = {group.span_tokens for group in table.groups}
    return Layout.EQUAL_SPANS if len(spans) <= 1 else Layout.UNEQUAL_SPANS


class StoredGroup(msgspec.Struct, frozen=True, kw_only=True):
    """What makes the bytes of one group's pages on one rank."""

    group_id: int
    kind: Kind
    span_tokens: int
    page_bytes: int
    window_tokens: int | None = None
    layers: tuple[str, ...] = ()
    """In the order in which they lie in a page."""


def stored_groups(table: GroupTable) -> tuple[StoredGroup, ...]:
    """The groups of a table as a namespace lists them."""
    return tuple(
        StoredGroup(
            group_id=group.group_id,
            kind=group.kind,
            span_tokens=group.span_tokens,
            page_bytes=group.page_bytes,
            window_tokens=group.window_tokens,
            layers=group.layers,
        )
        for group in table.groups
    )


class RankLayout(msgspec.Struct, frozen=True, kw_only=True):
    """How a model is cut over the workers; numbers of ranks."""

    world_size: int = 1
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    decode_context_parallel: int = 1
    prefill_context_parallel: int = 1


class Namespace(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that changes the meaning of stored bytes.

    Pipeline ranks hold different layers, so a namespace speaks for one rank; the
    rank itself is not part of it.
    """

    format_version: int = FORMAT_VERSION
    layout: Layout
    model: str
    model_revision: str | None = None
    dtype: str
    """Of the cache, which may differ from the model's."""
    groups: tuple[StoredGroup, ...]
    alignment_tokens: int
    hash_block_tokens: int
    attention_backend: str
    kv_layout: str
    """The engine's order of heads and tokens inside a page: NHD or HND, and how it is cut."""
    vllm_version: str
    lmcache_version: str
    ranks: RankLayout = RankLayout()
    hash_algorithm: str
    root_hash: str
    """What the hash chain starts from, in hexadecimal digits."""

    @property
    def page_bytes_by_group(self) -> dict[int, int]:
        """group_id -> bytes of one of its pages."""
        return {group.group_id: group.page_bytes for group in self.groups}

    def to_json(self) -> bytes:
        """Canonical JSON: keys sorted, no spaces, ASCII. Equal namespaces give equal bytes."""
        plain = msgspec.to_builtins(self)
        return json.dumps(plain, sort_keys=True, separators=(",", ":")).encode("ascii")

    @classmethod
    def from_json(cls, data: bytes) -> "Namespace":
        """Read ``to_json``'s form.

        Raises:
            NamespaceError: the text is not a namespace of this version.
        """
        try:
            return msgspec.json.decode(data, type=cls)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise NamespaceError(f"not a namespace: {error}") from error

    def digest(self) -> str:
        """32 hexadecimal digits of SHA-256 over ``to_json``."""
        return hashlib.sha256(self.to_json()).hexdigest()[:32]

    def differences(self, other: "Namespace") -> tuple[str, ...]:
        """Names of the fields in which the two differ, in order."""
        return tuple(
            name for name in self.__struct_fields__ if getattr(self, name) != getattr(other, name)
        )

    def nearest(self, others: Iterable["Namespace"]) -> "Namespace | None":
        """The one of ``others`` that differs in the fewest fields; ``None`` without any."""
        return min(others, key=lambda other: len(self.differences(other)), default=None)


def check_hash_seed(hash_algorithm: str, seed: str | None, *, default_is_fixed: bool) -> None:
    """Refuse a hash chain that starts elsewhere in the next process.

    Args:
        hash_algorithm: vLLM's name for it.
        seed: the value of ``PYTHONHASHSEED``; ``None`` when it is unset.
        default_is_fixed: whether the engine starts the chain from a constant when
            the variable is unset. A fact of its version and of the algorithm.

    Raises:
        NamespaceError: pages stored now could never be found again.
    """
    # Python's own hash takes its seed from the variable, where "random" means unset.
    own_hash = hash_algorithm == "builtin"
    if seed is None and default_is_fixed and not own_hash:
        return
    if seed is None or (own_hash and seed == "random"):
        state = "not set" if seed is None else f"{seed!r}"
        raise NamespaceError(
            f"PYTHONHASHSEED is {state} and block hashes by {hash_algorithm} then start from "
            "random bytes: stored pages would never be found after a restart. Set "
            "PYTHONHASHSEED to the same number, such as 0, in every process"
        )
