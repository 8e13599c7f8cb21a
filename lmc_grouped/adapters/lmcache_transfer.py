"""LMCache's compiled block operation, where its extension holds code for the device."""

import sys
from collections.abc import Callable
from typing import Any

import torch

from lmc_grouped.adapters import lmcache_ops

MODULE = "lmcache.cuda_ops"
"""Since 0.5.4; what the extension was called before takes other arguments."""
_ELEMENT_BYTES = 2


def open_operation(
    capability: tuple[int, int],
    *,
    device: torch.device,
    can_run: Callable[[tuple[int, int]], lmcache_ops.Answer] = lmcache_ops.can_run,
) -> Any:
    """The operation for a device, or the reason why there is none.

    Args:
        capability: of the device.
        device: that holds the engine's cache.
        can_run: reads the extension and tries to load it.
    """
    answer = can_run(capability)
    if not answer.can_run:
        return answer.reason
    from lmcache.v1.platform import resolve_device_ops

    operations = resolve_device_ops("cuda")
    if MODULE not in sys.modules:
        return f"LMCache did not load {MODULE}; releases before 0.5.4 have other operations"
    return BlockOperation(operations, device)


class BlockOperation:
    """``multi_layer_block_kv_transfer``, told of runs: see ``transfer/cuda/kernel_lmcache.py``."""

    def __init__(self, operations: Any, device: torch.device) -> None:
        from lmcache.lmcache_native import EngineKVFormat, TransferDirection

        self._operations = operations
        self._device = device
        self._layout = int(EngineKVFormat.NL_X_NB_BS_HS)
        self._directions = {
            True: int(TransferDirection.D2H),
            False: int(TransferDirection.H2D),
        }

    def __call__(
        self,
        runs: torch.Tensor,
        pages: list[int],
        block_ids: torch.Tensor,
        *,
        rows: int,
        row_bytes: int,
        num_blocks: int,
        block_stride_bytes: int,
        to_host: bool,
    ) -> None:
        """Copy whole pages: a run is a layer, its rows are the tokens of a block."""
        shape = self._operations.PageBufferShapeDesc()
        shape.kv_size, shape.nl, shape.nb = 1, len(runs), num_blocks
        shape.bs, shape.nh, shape.hs = rows, 1, row_bytes // _ELEMENT_BYTES
        shape.element_size = _ELEMENT_BYTES
        shape.block_stride_elems = block_stride_bytes // _ELEMENT_BYTES
        self._operations.multi_layer_block_kv_transfer(
            runs,
            pages,
            block_ids,
            self._device,
            self._directions[to_host],
            shape,
            rows,
            self._layout,
            0,
        )
