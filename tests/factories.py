"""Builders of group tables, page sets and engine inputs for the tests."""

import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from math import lcm

from lmc_grouped.core.groups import ExcludedGroup, GroupSpec, GroupTable, Kind
from lmc_grouped.core.hits import PageProbe
from lmc_grouped.core.keys import Layout, Namespace, StoredGroup
from lmc_grouped.core.retention import PageMask

A13_REPEATS = (
    (1600, 11_910, 9_600),
    (800, 170_123, 168_800),
    (800, 175_321, 174_400),
    (800, 15_999, 14_400),
    (800, 16_000, 14_400),
    (800, 16_001, 15_200),
)
"""Case A13 with one span for all groups: (span, prompt tokens, where its repeat resumes)."""


def full(group_id: int, span: int = 16, page_bytes: int = 64, *, drafter: bool = False):
    """A full-attention group."""
    return GroupSpec(
        group_id=group_id,
        kind=Kind.FULL,
        span_tokens=span,
        page_bytes=page_bytes,
        is_drafter=drafter,
        layers=(f"full.{group_id}",),
    )


def window(
    group_id: int,
    window_tokens: int,
    span: int = 16,
    page_bytes: int = 64,
    *,
    drafter: bool = False,
):
    """A sliding-window group."""
    return GroupSpec(
        group_id=group_id,
        kind=Kind.WINDOW,
        span_tokens=span,
        page_bytes=page_bytes,
        window_tokens=window_tokens,
        is_drafter=drafter,
        layers=(f"window.{group_id}",),
    )


def recurrent(group_id: int, span: int = 16, page_bytes: int = 64):
    """A group of recurrent states."""
    return GroupSpec(
        group_id=group_id,
        kind=Kind.RECURRENT,
        span_tokens=span,
        page_bytes=page_bytes,
        layers=(f"recurrent.{group_id}",),
    )


def table_of(
    *groups: GroupSpec,
    alignment: int | None = None,
    hash_block: int | None = None,
    scratch_ids: Iterable[int] = (),
) -> GroupTable:
    """A table; alignment and hash block follow from the spans unless given."""
    spans = [group.span_tokens for group in groups]
    return GroupTable(
        groups=groups,
        alignment_tokens=alignment or lcm(*spans),
        hash_block_tokens=hash_block or min(spans, default=1),
        excluded=tuple(ExcludedGroup(i, "scratch") for i in scratch_ids),
    )


def probe_of(pages: Mapping[int, Iterable[int]]) -> PageProbe:
    """``has()`` over group_id -> page indices held."""
    held = {group_id: frozenset(indices) for group_id, indices in pages.items()}
    return lambda group_id, page: page in held.get(group_id, frozenset())


class CountingProbe:
    """A ``has()`` that counts how often each group was asked."""

    def __init__(self, probe: PageProbe) -> None:
        self._probe = probe
        self.asked: dict[int, int] = {}

    def __call__(self, group_id: int, page: int) -> bool:
        self.asked[group_id] = self.asked.get(group_id, 0) + 1
        return self._probe(group_id, page)


def block_hash(number: int) -> bytes:
    """A block hash that is easy to read in a failure."""
    return b"hash%04d" % number


def nothing_known(group_id: int, page: int) -> bool:
    """``is_known`` of an empty index."""
    return False


EVERY_PAGE: defaultdict[int, PageMask] = defaultdict(lambda: PageMask(1 << 40, 1, 0, 1, ()))
"""The masks of a cursor that keeps whatever it comes across."""


def separate(room_slots: Callable[[int], int]) -> Callable[[Mapping[int, int]], bool]:
    """``has_room`` of groups with a pool each: group_id -> slots it could give."""
    return lambda wanted: all(count <= room_slots(group) for group, count in wanted.items())


def plenty(wanted: Mapping[int, int]) -> bool:
    """``has_room`` of pools that are never full."""
    return True


A18_PAGE_BYTES = {0: 4_096, 1: 1_024}
"""Cases A18 and A19: group_id -> page bytes."""


def namespace(page_bytes: Mapping[int, int] = A18_PAGE_BYTES, **changes: object) -> Namespace:
    """The namespace of a small model with one full group per entry of `page_bytes`."""
    groups = tuple(
        StoredGroup(
            group_id=group_id,
            kind=Kind.FULL,
            span_tokens=16,
            page_bytes=size,
            layers=(f"full.{group_id}",),
        )
        for group_id, size in page_bytes.items()
    )
    fields: dict = {
        "layout": Layout.EQUAL_SPANS,
        "model": "tiny",
        "model_revision": "main",
        "dtype": "bfloat16",
        "groups": groups,
        "alignment_tokens": 16,
        "hash_block_tokens": 16,
        "attention_backend": "CPU_ATTN",
        "kv_layout": "NHD",
        "vllm_version": "0.32.0",
        "lmcache_version": "0.5.6",
        "hash_algorithm": "sha256",
        "root_hash": "00ff",
    }
    return Namespace(**(fields | changes))


def page_hash(number: int) -> bytes:
    """A block hash of 32 bytes that no other number has."""
    return hashlib.sha256(number.to_bytes(8, "big")).digest()


def page_of(key: tuple[int, bytes], page_bytes: int) -> bytes:
    """Bytes that only this key's page has."""
    group_id, block_hash = key
    seed = hashlib.sha256(group_id.to_bytes(2, "big") + block_hash).digest()
    return (seed * -(-page_bytes // len(seed)))[:page_bytes]


def disk_key(group_id: int, number: int) -> tuple[int, bytes]:
    """The key of a group's page number so and so."""
    return group_id, page_hash(number)
