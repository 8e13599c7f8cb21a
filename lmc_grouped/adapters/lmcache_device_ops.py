"""The operations of LMCache's device ``cuda-sm70``: see ``lmcache_device_spec``."""

from collections.abc import Sequence
from typing import Any, NoReturn

import torch
from lmcache.lmcache_native import EngineKVFormat, TransferDirection

from lmc_grouped.adapters.lmcache_blocks import Extent, copy_blocks, planes_of
from lmc_grouped.adapters.lmcache_device import BACKEND_NAME, MODE_VARIABLE, cuda_module

_DIRECTIONS = {int(TransferDirection.D2H): True, int(TransferDirection.H2D): False}


def _refuse(operation: str) -> NoReturn:
    raise NotImplementedError(
        f"the device {BACKEND_NAME} has no {operation}: it serves LMCache's multi-process "
        f"connector with {MODE_VARIABLE}=engine_driven. In the engine's own process use "
        "lmc_grouped.connector instead of LMCache's connector"
    )


class CudaSm70Ops(cuda_module("device_ops").CudaDeviceOps):  # type: ignore[misc]
    """LMCache's operations for CUDA without compiled code.

    What moves an engine's cache is ours, or refused: what LMCache falls back to takes
    addresses on trust, orders nothing with other streams, and mixes keys with values
    in layouts it does not know. What it defines neither here nor in a base class,
    ``execute_object_group_transfer`` among it, LMCache takes as not available.
    """

    def ensure_native(self) -> None:
        """Bind nothing: LMCache's extension has no code for this device."""
        self._native_bound = True

    def multi_layer_block_kv_transfer(
        self,
        paged_buffer_ptrs_tensor: Any,
        lmcache_objects_ptrs: "list[torch.Tensor]",  # LMCache looks for `Tensor` in this text
        block_ids: "torch.Tensor | Sequence[int]",
        device: "torch.device | str",
        direction: int,
        shape_desc: Any,
        lmcache_chunk_size: int,
        engine_kv_format: int,
        skip_prefix_n_blocks: int,
    ) -> None:
        """Copy blocks between an engine's cache and LMCache's objects.

        Args:
            paged_buffer_ptrs_tensor: the cache, as tensors in a layout of ``LAYOUTS``.
            lmcache_objects_ptrs: the objects, as tensors.
            block_ids: of the engine.
            device: of the cache; the tensors say it themselves.
            direction: ``TransferDirection``.
            shape_desc: its ``bs`` is the tokens of a block.
            lmcache_chunk_size: tokens of an object.
            engine_kv_format: ``EngineKVFormat``.
            skip_prefix_n_blocks: not copied, at the start.

        Raises:
            ValueError: says what is not served or does not fit.
        """
        tokens = int(shape_desc.bs)
        if tokens <= 0 or lmcache_chunk_size <= 0 or lmcache_chunk_size % tokens:
            raise ValueError(
                f"objects of {lmcache_chunk_size} tokens are no multiple of blocks of {tokens}"
            )
        if int(direction) not in _DIRECTIONS or skip_prefix_n_blocks < 0:
            raise ValueError(
                f"direction {direction!r} with {skip_prefix_n_blocks} blocks skipped; D2H or H2D "
                "and 0 or more are allowed"
            )
        if not all(isinstance(each, torch.Tensor) for each in lmcache_objects_ptrs):
            raise ValueError("objects must be given as tensors, not as addresses")
        layout = EngineKVFormat(int(engine_kv_format)).name
        ids = block_ids.tolist() if isinstance(block_ids, torch.Tensor) else list(block_ids)
        copy_blocks(
            planes_of(layout, paged_buffer_ptrs_tensor, tokens),
            lmcache_objects_ptrs,
            ids,
            Extent(lmcache_chunk_size // tokens, skip_prefix_n_blocks),
            to_host=_DIRECTIONS[int(direction)],
        )

    def multi_layer_kv_transfer(self, *_: Any, **__: Any) -> None:
        """Refused."""
        _refuse("multi_layer_kv_transfer")

    def multi_layer_kv_transfer_unilateral(self, *_: Any, **__: Any) -> None:
        """Refused."""
        _refuse("multi_layer_kv_transfer_unilateral")

    def single_layer_kv_transfer(self, *_: Any, **__: Any) -> None:
        """Refused."""
        _refuse("single_layer_kv_transfer")

    def single_layer_kv_transfer_sgl(self, *_: Any, **__: Any) -> None:
        """Refused."""
        _refuse("single_layer_kv_transfer_sgl")

    def lmcache_memcpy_async(self, *_: Any, **__: Any) -> None:
        """Refused."""
        _refuse("lmcache_memcpy_async")
