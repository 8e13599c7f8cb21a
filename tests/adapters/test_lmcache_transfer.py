"""LMCache's compiled block operation is opened where it can run, and told what it needs."""

from typing import Any

import pytest
import torch
from lmcache.lmcache_native import EngineKVFormat
from lmcache.v1.platform import torch_ops
from lmcache.v1.platform.ops_types import PageBufferShapeDesc

from lmc_grouped.adapters.lmcache_ops import Answer
from lmc_grouped.adapters.lmcache_transfer import BlockOperation, open_operation

DEVICE = torch.device("cuda", 1)


class Recorded:
    """The operations of a device."""

    PageBufferShapeDesc = PageBufferShapeDesc

    def __init__(self) -> None:
        self.arguments: tuple[Any, ...] = ()

    def multi_layer_block_kv_transfer(self, *arguments: Any) -> None:
        self.arguments = arguments


@pytest.mark.parametrize(("to_host", "direction"), [(True, 1), (False, 0)])
def test_a_run_is_told_as_a_layer_and_a_page_as_an_object(to_host: bool, direction: int) -> None:
    operations = Recorded()
    runs, ids = torch.tensor([0x1000, 0x2000, 0x3000]), torch.tensor([7, 2])
    BlockOperation(operations, DEVICE)(
        runs, [0x40, 0x80], ids, rows=16, row_bytes=512, num_blocks=99,
        block_stride_bytes=8200, to_host=to_host,
    )  # fmt: skip
    told = operations.arguments
    assert told[0] is runs
    assert told[1:5] == ([0x40, 0x80], ids, DEVICE, direction)
    assert told[6:] == (16, int(EngineKVFormat.NL_X_NB_BS_HS), 0)
    shape = told[5]
    assert (shape.kv_size, shape.nl, shape.nb, shape.bs, shape.nh) == (1, 3, 99, 16, 1)
    assert (shape.hs * shape.element_size, shape.block_stride_elems * shape.element_size) == (
        512,
        8200,
    )


def test_an_extension_without_code_for_the_device_is_not_used() -> None:
    answer = open_operation((7, 0), device=DEVICE)  # of the installed release
    assert isinstance(answer, str)
    assert "nothing for sm_70" in answer


def test_an_extension_that_lmcache_itself_did_not_load_is_not_used() -> None:
    answer = open_operation((9, 0), device=DEVICE, can_run=lambda _: Answer(True, "it loads"))
    assert answer == (
        "LMCache did not load lmcache.cuda_ops; releases before 0.5.4 have other operations"
    )


def test_lmcaches_own_in_process_operation_mixes_tokens_of_a_fused_cache() -> None:
    """Why the device cuda-sm70 refuses it: asked for tokens 2 and 3, it reads 1 and 5."""
    cache = torch.arange(4 * 2 * 1 * 6).float().view(4, 2, 1, 6)  # keys and values in one axis
    tokens = torch.zeros(2, 1, 2, 3)
    torch_ops.multi_layer_kv_transfer(
        tokens, torch.tensor([cache.data_ptr()]), torch.tensor([2, 3]), torch.device("cpu"), 8, 1,
        EngineKVFormat.NL_X_NB_BS_NH_TWO_HS, 2,
    )  # fmt: skip
    rows = cache.view(8, 2, 3)
    assert not torch.equal(tokens[:, 0], rows[2:4].transpose(0, 1))
    assert torch.equal(tokens[0, 0], rows[1])
    assert torch.equal(tokens[1, 0], rows[5])
