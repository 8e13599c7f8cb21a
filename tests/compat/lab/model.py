"""A model of digests: every output depends on all it has cached, and on nothing else.

A token's row goes to attention, window and ring, and the recurrent state takes
the token in. The digest after a token is made of the rows and the state as they
lie in the cache, found through the block tables alone. So one wrong byte of any
page that is needed changes all that follows.
"""

import hashlib
from collections.abc import Mapping, Sequence

import numpy as np

from tests.compat.lab import layouts

VOCABULARY = 4096


class DigestModel:
    """Computes in caches of ``[num_blocks, PAGE_BYTES]`` bytes.

    Args:
        groups: kind -> group_id.
        caches: group_id -> the bytes, which the groups may share.
    """

    def __init__(self, groups: Mapping[str, int], caches: Mapping[int, np.ndarray]) -> None:
        self._groups = groups
        self._caches = caches

    def run(
        self, tables: Sequence[Sequence[int]], tokens: Sequence[int], start: int, end: int
    ) -> str:
        """Compute ``tokens[start:end]``; the digest after the last of them."""
        state = self._state(tables, start)
        for position in range(start, end):
            row = _digest(b"row", position, tokens[position])[: layouts.ROW_BYTES]
            for kind in ("attention", "window", "ring"):
                if kind in self._groups:
                    self._row(kind, tables, position)[:] = np.frombuffer(row, np.uint8)
            state = _digest(state, position, tokens[position])
        self._state_page(tables, end)[:] = np.frombuffer(state, np.uint8)
        return hashlib.sha256(state + self._visible(tables, end)).hexdigest()

    def _visible(self, tables: Sequence[Sequence[int]], end: int) -> bytes:
        """All rows that the token before ``end`` looks at."""
        last = end - 1
        seen = {
            "attention": range(end),
            "window": range(max(0, end - layouts.WINDOW_TOKENS), end),
            # Rebuilt from tokens after a hit, so never looked at across its own borders.
            "ring": range(last - last % layouts.RING_TOKENS, end),
        }
        return b"".join(
            self._row(kind, tables, position).tobytes()
            for kind, positions in seen.items()
            if kind in self._groups
            for position in positions
        )

    def _row(self, kind: str, tables: Sequence[Sequence[int]], position: int) -> np.ndarray:
        group_id = self._groups[kind]
        if kind == "ring":
            page, row = 0, position % layouts.RING_TOKENS
        else:
            page, row = divmod(position, layouts.SPAN_TOKENS)
        first = row * layouts.ROW_BYTES
        return self._page(group_id, tables, page)[first : first + layouts.ROW_BYTES]

    def _state(self, tables: Sequence[Sequence[int]], start: int) -> bytes:
        """The state before token ``start``, as the engine finds it: where the last step ended."""
        if start == 0:
            return bytes(layouts.STATE_BYTES)
        return self._state_page(tables, start).tobytes()

    def _state_page(self, tables: Sequence[Sequence[int]], end: int) -> np.ndarray:
        page = (end - 1) // layouts.SPAN_TOKENS
        return self._page(self._groups["state"], tables, page)[: layouts.STATE_BYTES]

    def _page(self, group_id: int, tables: Sequence[Sequence[int]], page: int) -> np.ndarray:
        block = tables[group_id][page]
        assert block, f"group {group_id}: page {page} is needed and its block is null"
        return self._caches[group_id][block]


def next_token(digest: str) -> int:
    """What follows."""
    return int(digest[:8], 16) % VOCABULARY


def alone(kinds: Sequence[str], prompt: Sequence[int], new_tokens: int) -> list[str]:
    """The digests that follow a prompt, computed with a cache of its own and no engine."""
    pages = layouts.MAX_MODEL_TOKENS // layouts.RING_TOKENS
    caches = {
        group_id: np.zeros((pages + 1, layouts.PAGE_BYTES), np.uint8)
        for group_id in range(len(kinds))
    }
    model = DigestModel({kind: group_id for group_id, kind in enumerate(kinds)}, caches)
    tables = [range(1, pages + 1)] * len(kinds)
    tokens, digests, start = list(prompt), [], 0
    for _ in range(new_tokens):
        digest = model.run(tables, tokens, start, len(tokens))
        digests.append(digest)
        start = len(tokens)
        tokens.append(next_token(digest))
    return digests


def _digest(*parts: bytes | int) -> bytes:
    return hashlib.sha512(
        b"".join(part if isinstance(part, bytes) else part.to_bytes(8) for part in parts)
    ).digest()
