"""Layouts of a group's layers, with torch alone, on any device."""

from collections.abc import Callable, Mapping

import torch

Shape = Callable[[int, torch.device], list[torch.Tensor]]
"""(blocks, device) -> per layer ``uint8`` ``[blocks, *outer, run_bytes]``, random bytes."""


def noise(device: torch.device, *shape: int) -> torch.Tensor:
    return torch.randint(0, 256, shape, dtype=torch.uint8).to(device)


def contiguous(*sizes: int) -> Shape:
    return lambda blocks, device: [noise(device, blocks, size) for size in sizes]


def strided(outer: tuple[int, ...], run: int, padding: int) -> Shape:
    """Rows that lie ``run + padding`` bytes apart."""
    return lambda blocks, device: [noise(device, blocks, *outer, run + padding)[..., :run]]


def heads_outermost(blocks: int, device: torch.device) -> list[torch.Tensor]:
    return [noise(device, 4, blocks, 48).transpose(0, 1)]


def layers_inside_heads(blocks: int, device: torch.device) -> list[torch.Tensor]:
    cache = noise(device, blocks, 4, 3, 40)
    return [cache[:, :, layer] for layer in range(3)]


def layers_inside_blocks(blocks: int, device: torch.device) -> list[torch.Tensor]:
    """One run per page as soon as neighbours are merged."""
    cache = noise(device, blocks, 3, 64)
    return [cache[:, layer] for layer in range(3)]


def odd_start(blocks: int, device: torch.device) -> list[torch.Tensor]:
    return [noise(device, blocks * 64 + 1)[1:].view(blocks, 64)]


SHAPES: Mapping[str, Shape] = {
    "contiguous": contiguous(64, 64),
    "one layer": contiguous(96),
    "layers of different sizes": contiguous(8, 3),
    "padded pages": strided((), 96, 32),
    "padded to an odd stride": strided((), 96, 5),
    "int8 states with a larger stride": strided((), 1000, 24),
    "two outer dimensions": strided((3, 2), 16, 8),
    "heads outermost": heads_outermost,
    "layers inside heads": layers_inside_heads,
    "layers inside blocks": layers_inside_blocks,
    "offset by an odd byte": odd_start,
    "one byte": contiguous(1),
}
