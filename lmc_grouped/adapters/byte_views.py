"""What an engine registered for a layer, seen as the bytes of its pages. Nothing is copied."""

from collections.abc import Sequence

import torch

from lmc_grouped.core.groups import GroupTableError


def page_view(parts: Sequence[torch.Tensor], num_blocks: int, where: str) -> torch.Tensor:
    """The bytes of a page whose parts lie back to back in each block.

    Args:
        parts: in the order of the page, each ``[num_blocks, ...]`` of any dtype; a
            single part may be ``[num_blocks * ratio, ...]``.
        num_blocks: of the engine.
        where: group and layer, for messages.

    Returns:
        ``uint8`` of shape ``[num_blocks, *outer, run_bytes]``; of several parts
        ``[num_blocks, run_bytes]``, from the first byte of the first to the last of the last.

    Raises:
        GroupTableError: something that is no tensor, a tensor that cannot hold the
            blocks, or parts that are not one stretch of bytes within each block.
    """
    for part in parts:
        if not isinstance(part, torch.Tensor):
            raise GroupTableError(
                f"{where}: registered as {type(part).__name__}, which is no tensor of pages"
            )
    if len(parts) == 1:
        return byte_view(parts[0], num_blocks, where)
    if not parts:
        raise GroupTableError(f"{where}: registered as no tensors; one or more make a page")
    views = [_part_view(part, num_blocks, f"{where}, part {i}") for i, part in enumerate(parts)]
    first, end = views[0], views[0].storage_offset()
    for index, view in enumerate(views):
        _check_follows(view, first, end, f"{where}, part {index}")
        end += view.shape[1]
    page_bytes = end - first.storage_offset()
    if page_bytes > first.stride(0):
        raise GroupTableError(
            f"{where}: its {len(parts)} parts take {page_bytes} bytes of a block, "
            f"but the next block begins after {first.stride(0)}"
        )
    return first.as_strided((num_blocks, page_bytes), (first.stride(0), 1))


def _part_view(part: torch.Tensor, num_blocks: int, where: str) -> torch.Tensor:
    if part.dim() == 0 or part.shape[0] != num_blocks:
        raise GroupTableError(
            f"{where}: a tensor of shape {tuple(part.shape)} instead of {num_blocks} blocks"
        )
    view = byte_view(part, num_blocks, where)
    if view.dim() != 2:
        raise GroupTableError(
            f"{where}: strides {part.stride()} of shape {tuple(part.shape)} leave gaps in a "
            "block; a part is one run of bytes"
        )
    return view


def _check_follows(view: torch.Tensor, first: torch.Tensor, end: int, where: str) -> None:
    """That the part is in the same blocks as the first, and begins where the last one ended."""
    if view.untyped_storage().data_ptr() != first.untyped_storage().data_ptr():
        raise GroupTableError(f"{where}: in another allocation than part 0; one holds a page")
    if view.stride(0) != first.stride(0):
        raise GroupTableError(
            f"{where}: its blocks are {view.stride(0)} bytes apart, those of part 0 "
            f"{first.stride(0)}"
        )
    if view.storage_offset() != end:
        raise GroupTableError(
            f"{where}: begins at byte {view.storage_offset() - first.storage_offset()} of the "
            f"page, expected {end - first.storage_offset()}, where the part before it ends"
        )


def byte_view(tensor: torch.Tensor, num_blocks: int, where: str) -> torch.Tensor:
    """View ``[num_blocks * ratio, ...]`` of any dtype as bytes per block.

    Dimensions that lie back to back in memory are merged into one run.

    Returns:
        ``uint8`` of shape ``[num_blocks, *outer, run_bytes]``; a page whose
        bytes are contiguous has no outer dimensions.

    Raises:
        GroupTableError: the first dimension is no multiple of ``num_blocks``,
            or the strides overlap.
    """
    if tensor.dim() == 0 or tensor.shape[0] % num_blocks:
        raise GroupTableError(
            f"{where}: a tensor of shape {tuple(tensor.shape)} cannot hold {num_blocks} blocks"
        )
    blocks = tensor.unflatten(0, (num_blocks, -1))
    item = tensor.element_size()
    block_stride = blocks.stride(0) * item
    inner = sorted(
        (stride * item, size)
        for stride, size in zip(blocks.stride()[1:], blocks.shape[1:], strict=True)
        if size > 1
    )
    run_bytes, reach = item, item
    outer: list[tuple[int, int]] = []
    for stride, size in inner:
        if stride < reach:
            raise GroupTableError(
                f"{where}: strides {tensor.stride()} of shape {tuple(tensor.shape)} overlap"
            )
        if stride == run_bytes and not outer:
            run_bytes *= size
        else:
            outer.append((stride, size))
        reach = stride * (size - 1) + reach
    outer.reverse()
    return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(
        tensor.untyped_storage(),
        tensor.storage_offset() * item,
        (num_blocks, *(size for _, size in outer), run_bytes),
        (block_stride, *(stride for stride, _ in outer), 1),
    )
