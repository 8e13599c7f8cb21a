"""P6: a hit ends where a scratch ring can be rebuilt.

A ring is not stored. The engine rebuilds it from tokens, from a multiple of the
ring's own block on, so a hit must end at such a multiple, and before the last
token: a full hit is rewound by one token, which no ring can follow. A hit
anywhere else gives wrong output without any error (case A24).
"""

import math
from collections.abc import Sequence
from typing import Any

from patches.base import Function, Patch, Site
from patches.questions import CONNECTOR, scheduler_half, tokens_to_load
from patches.vllm_groups import scratch_ids


def _has_defect() -> bool:
    import torch
    from vllm.v1.kv_cache_interface import (
        CircularBufferSpec,
        FullAttentionSpec,
        KVCacheConfig,
        KVCacheGroupSpec,
    )

    one = {"num_kv_heads": 1, "head_size": 8, "dtype": torch.float16}
    specs = [FullAttentionSpec(block_size=32, **one), CircularBufferSpec(block_size=256, **one)]
    groups = [KVCacheGroupSpec([f"layer.{i}"], spec) for i, spec in enumerate(specs)]
    config = KVCacheConfig(num_blocks=1, kv_cache_tensors=[], kv_cache_groups=groups)
    half = scheduler_half(config, chunk_tokens=256)
    return tokens_to_load(half, prompt_tokens=768, stored_tokens=768) != 512


def _constructor(original: Function) -> Function:
    def __init__(self: Any, vllm_config: Any, *args: Any, **kwargs: Any) -> None:
        original(self, vllm_config, *args, **kwargs)
        from vllm.v1.core.kv_cache_utils import resolve_dcp_kv_block_size

        config: Any = getattr(self, "_kv_cache_config", None)
        if not scratch_ids(config):
            return
        ranks = vllm_config.parallel_config.decode_context_parallel_size
        spans = [
            resolve_dcp_kv_block_size(group.kv_cache_spec, ranks)
            for group in config.kv_cache_groups
        ]
        self._hit_alignment_tokens = math.lcm(*spans)
        if hasattr(self, "scheduler_adapter"):
            self.scheduler_adapter = AlignedLookups(
                self.scheduler_adapter, self._hit_alignment_tokens
            )

    return __init__


class AlignedLookups:
    """LMCache's scheduler adapter, asked only for prefixes that can be used.

    Cutting a longer answer would not do: the server has then taken the window
    tails before the longer end, not before the shorter one. So the question is
    cut, and an answer in between is given back and asked again, shorter.
    """

    def __init__(self, adapter: Any, alignment_tokens: int) -> None:
        self._adapter = adapter
        self._alignment_tokens = alignment_tokens
        self._asked: dict[str, tuple[Sequence[int], dict[str, Any]]] = {}
        self._limit_tokens: dict[str, int] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._adapter, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("_"):
            object.__setattr__(self, name, value)
        else:
            setattr(self._adapter, name, value)

    def maybe_submit_lookup_request(
        self, request_id: str, token_ids: Sequence[int], **more: Any
    ) -> None:
        """Ask for the longest usable prefix; not at all when there is none."""
        more.pop("reserve_last_token", None)  # the cut is at most the last but one token
        longest = min(len(token_ids) - 1, self._limit_tokens.get(request_id, len(token_ids)))
        usable = longest - longest % self._alignment_tokens
        if usable <= 0:
            return
        self._asked[request_id] = (token_ids, more)
        self._adapter.maybe_submit_lookup_request(request_id, token_ids=token_ids[:usable], **more)

    def check_lookup_result(self, request_id: str) -> int | None:
        """Tokens that can be loaded; ``None``: not known yet, ask again."""
        found = self._adapter.check_lookup_result(request_id)
        if not found or found % self._alignment_tokens == 0:
            return found
        token_ids, more = self._asked[request_id]
        self._adapter.free_lookup_locks(
            token_ids=token_ids, start=0, end=found, request_id=request_id, **more
        )
        self._adapter.cleanup_lookup_result(request_id)
        self._limit_tokens[request_id] = found - found % self._alignment_tokens
        return None

    def end_session(self, request_id: str) -> None:
        """The request is over."""
        self._asked.pop(request_id, None)
        self._limit_tokens.pop(request_id, None)
        self._adapter.end_session(request_id)


PATCH = Patch(
    name="P6",
    summary="hits end where scratch rings can be rebuilt",
    upstream="",
    retire_when="LMCache ends hits at multiples of every ring, before the last token",
    has_defect=_has_defect,
    sites=(Site((CONNECTOR,), "LMCacheMPConnector.__init__", _constructor),),
)
