"""Bytes as wider integers, which torch copies faster."""

import torch

_WORDS = (torch.int64, torch.int32, torch.int16)


def widest(one: torch.Tensor, other: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The same bytes as the widest integers that sizes, strides and offsets of both allow.

    Args:
        one: ``uint8`` ``[..., run_bytes]``, runs contiguous.
        other: the same shape but for the first dimensions, other strides.
    """
    for word in _WORDS:
        numbers = [one.shape[-1]]
        for view in (one, other):
            numbers += [view.storage_offset(), *view.stride()[:-1]]
        if all(number % word.itemsize == 0 for number in numbers):
            return one.view(word), other.view(word)
    return one, other
