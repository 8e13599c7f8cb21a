"""Registered tensors as the bytes of pages; torch is all that is needed."""

from dataclasses import dataclass

import pytest
import torch

from lmc_grouped.adapters.byte_views import byte_view, page_view
from lmc_grouped.core.groups import GroupTableError


@dataclass(frozen=True, slots=True)
class Layout:
    tensor: torch.Tensor
    shape: tuple[int, ...]
    strides: tuple[int, ...]


def layouts() -> dict[str, Layout]:
    base = torch.zeros(6, 2, 16, 8, dtype=torch.float16)  # [B, H, N, C]
    page = 2 * 16 * 8 * 2
    padded = torch.zeros(6, 1024, dtype=torch.uint8)
    raw = torch.zeros(2, 6, 16, 8, dtype=torch.float16)
    return {
        "heads first": Layout(base, (6, page), (page, 1)),
        "tokens first": Layout(
            torch.zeros(6, 16, 2, 8, dtype=torch.float16).transpose(1, 2), (6, page), (page, 1)
        ),
        "fused heads": Layout(torch.zeros(6, 1, 16, 32, dtype=torch.int16), (6, 1024), (1024, 1)),
        "padded": Layout(padded[:, :600].unflatten(1, (1, 1, 600)), (6, 600), (1024, 1)),
        "kernel blocks": Layout(torch.zeros(24, 1, 4, 8, dtype=torch.int8), (6, 128), (128, 1)),
        "heads outermost": Layout(raw.transpose(0, 1), (6, 2, 256), (256, 1536, 1)),
        "one block per row of bytes": Layout(torch.zeros(6, 9, dtype=torch.int8), (6, 9), (9, 1)),
    }


@pytest.mark.parametrize("name", layouts())
def test_a_tensor_is_seen_as_bytes_per_block_without_a_copy(name):
    layout = layouts()[name]
    view = byte_view(layout.tensor, 6, "here")
    assert tuple(view.shape) == layout.shape
    assert view.stride() == layout.strides
    assert view.dtype == torch.uint8
    assert view.data_ptr() == layout.tensor.data_ptr()
    view[4] = 1
    bytes_of = layout.tensor.unflatten(0, (6, -1)).contiguous().view(torch.uint8)
    assert bytes_of[4].all()
    assert not bytes_of[3].any()
    assert not bytes_of[5].any()


@pytest.mark.parametrize("dims", ["NHD", "HND"])
@pytest.mark.parametrize("heads", [1, 2, 32])
def test_a05_fused_pages_of_an_inflated_block_are_whole_pages_in_both_layouts(heads, dims):
    block, kernel, blocks = 1600, 64, 3
    shape = (blocks * block // kernel, heads, kernel, 4)
    tensor = torch.zeros(shape, dtype=torch.int8)
    if dims == "NHD":
        tensor = torch.zeros(shape[0], kernel, heads, 4, dtype=torch.int8).transpose(1, 2)
    view = byte_view(tensor, blocks, "here")
    assert view[0].numel() == block * heads * 4
    assert view.data_ptr() == tensor.data_ptr()


@pytest.mark.parametrize("shape", [(124, 196, 1, 128), (124, 1, 196, 128)])
def test_a03_an_already_compressed_page_is_taken_as_it_is(shape):
    tensor = torch.zeros(shape, dtype=torch.float16)
    view = byte_view(tensor, 124, "here")
    assert tuple(view.shape) == (124, 50_176)
    assert view.data_ptr() == tensor.data_ptr()


def test_strides_of_a_page_may_lie_anywhere_in_a_larger_buffer():
    raw = torch.arange(5 * 3 * 40, dtype=torch.uint8)
    tensor = torch.as_strided(raw, (5, 3, 8), (8, 40, 1), storage_offset=16)
    view = byte_view(tensor, 5, "here")
    assert tuple(view.shape) == (5, 3, 8)
    assert torch.equal(view, tensor)


@pytest.mark.parametrize("shape", [(7, 4), (5,), ()])
def test_a_tensor_that_cannot_hold_the_blocks_is_refused(shape):
    with pytest.raises(GroupTableError, match=r"here: a tensor of shape .* cannot hold 6 blocks"):
        byte_view(torch.zeros(shape), 6, "here")


def test_strides_that_overlap_are_refused():
    tensor = torch.as_strided(torch.zeros(100, dtype=torch.uint8), (6, 4, 8), (16, 4, 1))
    with pytest.raises(GroupTableError, match=r"here: strides .* overlap"):
        byte_view(tensor, 6, "here")


# Several parts, as a recurrent layer has.

BLOCKS, BLOCK_BYTES = 6, 128
"""Of the allocation; a page has 96 bytes, the rest of a block is padding."""


def parts_of(raw: torch.Tensor) -> list[torch.Tensor]:
    """``float16 [6, 2, 8]``, ``float32 [6, 4, 3]`` and ``int8 [6, 16]``, one after the other."""
    return [
        raw[:, :32].view(torch.float16).unflatten(1, (2, 8)),
        raw[:, 32:80].view(torch.float32).unflatten(1, (4, 3)),
        raw[:, 80:96].view(torch.int8),
    ]


def allocation(seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    shape = (BLOCKS, BLOCK_BYTES)
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)


def test_parts_of_a_page_are_one_run_without_a_copy():
    raw = allocation()
    view = page_view(parts_of(raw), BLOCKS, "here")
    assert (tuple(view.shape), view.stride()) == ((BLOCKS, 96), (BLOCK_BYTES, 1))
    assert view.data_ptr() == raw.data_ptr()
    assert torch.equal(view, raw[:, :96])


def test_every_part_is_written_through_and_the_padding_is_not():
    raw = torch.zeros(BLOCKS, BLOCK_BYTES, dtype=torch.uint8)
    page_view(parts_of(raw), BLOCKS, "here")[4] = 1
    assert all(part[4].flatten().view(torch.uint8).all() for part in parts_of(raw))
    assert not any(part[3].any() or part[5].any() for part in parts_of(raw))
    assert not raw[4, 96:].any()


def test_parts_may_begin_anywhere_in_a_block():
    raw = allocation()
    parts = [raw[:, 16:48].view(torch.float16), raw[:, 48:64]]
    view = page_view(parts, BLOCKS, "here")
    assert torch.equal(view, raw[:, 16:64])


def test_one_part_is_the_page_and_may_have_kernel_blocks():
    tensor = torch.zeros(2 * BLOCKS, 8, dtype=torch.float16)
    view = page_view([tensor], BLOCKS, "here")
    assert tuple(view.shape) == (BLOCKS, 32)
    assert view.data_ptr() == tensor.data_ptr()


def _another_allocation(raw: torch.Tensor) -> list[torch.Tensor]:
    return [raw[:, :32], allocation(1)[:, 32:64]]


def _another_stride(raw: torch.Tensor) -> list[torch.Tensor]:
    return [raw[:, :32], raw.flatten().as_strided((BLOCKS, 32), (64, 1), 32)]


REFUSED = {
    "nothing": (lambda raw: [], "here: registered as no tensors"),
    "no tensor": (lambda raw: [raw, None], "here: registered as NoneType, which is no tensor"),
    "another allocation": (_another_allocation, "here, part 1: in another allocation than part 0"),
    "another stride": (
        _another_stride,
        "here, part 1: its blocks are 64 bytes apart, those of part 0 128",
    ),
    "an overlap": (
        lambda raw: [raw[:, :32], raw[:, 24:56]],
        "here, part 1: begins at byte 24 of the page, expected 32",
    ),
    "a hole": (
        lambda raw: [raw[:, :32], raw[:, 40:72]],
        "here, part 1: begins at byte 40 of the page, expected 32",
    ),
    "another order": (
        lambda raw: [raw[:, 32:64], raw[:, :32]],
        "here, part 1: begins at byte -32 of the page, expected 32",
    ),
    "a hole in a part": (
        lambda raw: [raw[:, :32], raw[:, 32:64:2]],
        "here, part 1: strides .* leave gaps in a block",
    ),
    "fewer blocks": (
        lambda raw: [raw[:, :32], raw[:5, 32:64]],
        r"here, part 1: a tensor of shape \(5, 32\) instead of 6 blocks",
    ),
    "more blocks": (
        lambda raw: [raw[:, :32], raw.view(12, 64)[:, 32:64]],
        r"here, part 1: a tensor of shape \(12, 32\) instead of 6 blocks",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_parts_that_are_no_page_are_refused_with_what_was_seen_and_expected(name):
    parts, message = REFUSED[name]
    with pytest.raises(GroupTableError, match=message):
        page_view(parts(allocation()), BLOCKS, "here")


def test_parts_that_reach_into_the_next_block_are_refused():
    raw = torch.zeros(BLOCKS * BLOCK_BYTES + 64, dtype=torch.uint8)
    parts = [raw.as_strided((BLOCKS, 96), (BLOCK_BYTES, 1), start) for start in (0, 96)]
    with pytest.raises(GroupTableError, match=r"here: its 2 parts take 192 .* after 128"):
        page_view(parts, BLOCKS, "here")
