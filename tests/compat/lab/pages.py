"""The pages of what ReVolta's model runners register: found, copied out, and copied back."""

import os
from collections.abc import Callable, Iterator
from math import lcm
from typing import Any

import torch

from lmc_grouped.adapters import engine, vllm_groups
from lmc_grouped.transfer.pages import PageCopier
from tests.compat.lab import runner
from tests.compat.lab.plans import NUM_BLOCKS, PLANS, Plan

UNTOUCHED = 0xEE
STORED, SLOTS, LOADED = (1, 3), (2, 0), (2, 4)
"""Blocks that are stored, the slots they go to, and the blocks these are loaded into."""


def facts() -> dict[str, Any]:
    """By plan and runner, what became of the pages of every group."""
    torch.manual_seed(0)
    found = {}
    for name, make in PLANS.items():
        plan = make()
        runner.configure(plan.layout, has_small_kernel_blocks=plan.has_small_kernel_blocks)
        for which in plan.runners:
            found[f"{name}, {which} runner"] = _groups(plan, runner.RUNNERS[which])
    return found


def _groups(plan: Plan, caches_of: Callable[..., runner.Caches]) -> dict[str, Any]:
    config = plan.config
    assert config.num_blocks == NUM_BLOCKS
    spans = [group.kv_cache_spec.block_size for group in config.kv_cache_groups]
    table = vllm_groups.build_group_table(
        config, alignment_tokens=lcm(*spans), hash_block_tokens=min(spans)
    )
    raw, caches = caches_of(config, plan.cache_dtype)
    packed = [tensor.packed_members for tensor in config.kv_cache_tensors if tensor.packed_members]
    return {
        "packed": packed,
        "left out": [group.group_id for group in table.excluded],
        "groups": {
            group.group_id: _pages(_Group(config, group, raw, caches, plan))
            for group in table.groups
        },
    }


def layouts() -> list[str]:
    """What tells pages of the same size apart whose bytes are in another order."""
    found = []
    for order in ("", "NHD", "HND"):
        for has_small_kernel_blocks in (False, True):
            os.environ.pop("VLLM_KV_CACHE_LAYOUT", None)
            if order:
                os.environ["VLLM_KV_CACHE_LAYOUT"] = order
            runner.configure("NHD", has_small_kernel_blocks=has_small_kernel_blocks)
            found.append(engine.surface().kv_layout(None))
    return found


class _Group:
    """One group's allocations, registered tensors and our views of them."""

    def __init__(self, config: Any, group: Any, raw: Any, caches: Any, plan: Plan) -> None:
        self.group = group
        self.raw = {name: raw[name] for name in group.layers}
        self.caches = {name: caches[name] for name in group.layers}
        self.views = vllm_groups.layer_byte_views(config, group, caches)
        self._plan = plan
        self.memory = list({id(tensor): tensor for tensor in self.raw.values()}.values())

    def content(self, layer: str, block: int) -> torch.Tensor:
        """Where the engine's own tensors write in a block: a mask over the allocation."""
        raw = self.raw[layer]
        before = raw.clone()
        raw.zero_()
        for part in self._written(layer):
            ratio = part.shape[0] // NUM_BLOCKS
            ones = torch.ones(part.element_size(), dtype=torch.uint8).view(part.dtype)
            part[block * ratio : (block + 1) * ratio] = ones
        mask = raw != 0
        raw.copy_(before)
        return mask

    def _written(self, layer: str) -> Iterator[torch.Tensor]:
        cache = self.caches[layer]
        if self._plan.cache_dtype == "int8" and not isinstance(cache, list) and cache.dim() == 5:
            # Of attention, the registered tensor only reserves room; kernels read these.
            from vllm.v1.attention.kv_cache_view import KVCacheView
            from vllm.v1.attention.kv_codecs import INT8

            view = KVCacheView.bind(cache, INT8, cache.shape[-1] - 4)
            yield from (view.key, view.value, view.key_scale, view.value_scale)
            return
        yield from cache if isinstance(cache, list) else [cache]

    def sees_blocks(self, blocks: range, beside: int = 0) -> bool:
        """Whether our views of all layers have each byte of the blocks once, and no other."""
        return all(
            torch.equal(self._times_seen(i, block + beside), self.content(layer, block).long())
            for i, layer in enumerate(self.group.layers)
            for block in blocks
        )

    def _times_seen(self, index: int, block: int) -> torch.Tensor:
        """How often our view of a layer has each byte of the allocation in a block."""
        view = self.views[index][block]
        size = self.raw[self.group.layers[index]].numel()
        places = torch.arange(size).as_strided(view.shape, view.stride(), view.storage_offset())
        return torch.bincount(places.flatten(), minlength=size)


def _pages(group: _Group) -> dict[str, Any]:
    return {
        "page bytes": group.group.page_bytes,
        "parts": [len(c) if isinstance(c, list) else 1 for c in group.caches.values()],
        "runs": [view[0].numel() // view.shape[-1] for view in group.views],
        "every byte once": group.sees_blocks(range(NUM_BLOCKS)),
        "every byte once, of other blocks": group.sees_blocks(range(NUM_BLOCKS - 1), beside=1),
        "wrong after a round trip": _round_trip(group),
        "wrong when one byte is": _round_trip(group, damage=True),
    }


def _round_trip(group: _Group, *, damage: bool = False) -> int:
    """Bytes of the allocations that are not as they should be; other blocks count too."""
    for memory in group.memory:
        memory.copy_(torch.randint(-128, 128, memory.shape, dtype=torch.int8))
    before = {name: memory.clone() for name, memory in group.raw.items()}
    pool = torch.zeros(1, 1 + max(SLOTS), group.group.page_bytes, dtype=torch.uint8)
    copier = PageCopier(group.group.group_id, group.views, pool)
    copier.store(STORED, SLOTS).wait()
    for memory in group.memory:
        memory.view(torch.uint8).fill_(UNTOUCHED)
    expected = {id(memory): memory.clone() for memory in group.memory}
    for layer in group.group.layers:
        for stored, loaded in zip(STORED, LOADED, strict=True):
            source, target = group.content(layer, stored), group.content(layer, loaded)
            expected[id(group.raw[layer])][target] = before[layer][source]
    if damage:
        pool[0, SLOTS[0], group.group.page_bytes // 2] ^= 1
    copier.load(LOADED, SLOTS).wait()
    return sum(int((memory != expected[id(memory)]).sum()) for memory in group.memory)
