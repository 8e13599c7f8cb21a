"""``gather.cu`` itself, compiled for the host: every thread of every launch, one by one.

Shows that the source reads the parameters that Python fills and moves each byte once,
whatever the grid. Not that its machine code does: not accepted on GPU.
"""

import ctypes
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch

from lmc_grouped.transfer.cuda import kernel_block, kernel_nvrtc
from tests.transfer.cuda.lab import BLOCKS, SLOTS, Lab, ids
from tests.transfer.cuda.shapes import SHAPES, noise
from tests.transfer.fake_cuda import FakeCuda

CPU = torch.device("cpu")
COMPILER = next(filter(None, map(shutil.which, ("c++", "g++", "clang++"))), None)
pytestmark = pytest.mark.skipif(COMPILER is None, reason="needs a C++ compiler for the host")

CUDA_ON_A_HOST = """
struct Place { unsigned x, y, z; };
static Place threadIdx, blockIdx, blockDim, gridDim;
struct alignas(16) uint4 { unsigned x, y, z, w; };
#define __global__
#define __device__
#define __grid_constant__
"""
EVERY_THREAD = """
static_assert(sizeof(Operation) == 4096, "the parameters of a launch");
extern "C" void launch(int word, const unsigned* grid, unsigned threads, const Operation* passed) {
  gridDim = {grid[0], grid[1], grid[2]};
  blockDim = {threads, 1, 1};
  for (blockIdx.z = 0; blockIdx.z < grid[2]; ++blockIdx.z)
    for (blockIdx.y = 0; blockIdx.y < grid[1]; ++blockIdx.y)
      for (blockIdx.x = 0; blockIdx.x < grid[0]; ++blockIdx.x)
        for (threadIdx.x = 0; threadIdx.x < threads; ++threadIdx.x) switch (word) {
            case 16: copy_pages_16(*passed); break;
            case 8: copy_pages_8(*passed); break;
            case 4: copy_pages_4(*passed); break;
            case 2: copy_pages_2(*passed); break;
            case 1: copy_pages_1(*passed); break;
          }
}
"""


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    return built(kernel_nvrtc.source(), tmp_path_factory.mktemp("kernel"))


def built(source: str, folder: Path) -> ctypes.CDLL:
    assert COMPILER is not None
    text, library = folder / "kernel.cpp", folder / "kernel.so"
    text.write_text(CUDA_ON_A_HOST + source + EVERY_THREAD)
    subprocess.run(
        [COMPILER, "-std=c++17", "-O1", "-fPIC", "-shared", str(text), "-o", str(library)],
        check=True,
    )
    return ctypes.CDLL(str(library))


class SourceCuda(FakeCuda):
    """A device whose kernel is the compiled source, with a grid of the test's choice."""

    def __init__(self, kernel: ctypes.CDLL, pieces: int | None = None, threads: int | None = None):
        super().__init__()
        self._kernel, self._pieces, self._threads = kernel, pieces, threads

    def run_kernel(self, name: str, grid: tuple[int, ...], threads: int, passed: bytes) -> None:
        numbers = (ctypes.c_uint * 3)(self._pieces or grid[0], *grid[1:])
        block = np.frombuffer(passed, dtype=np.int64).copy()
        word = int(name.removeprefix("copy_pages_"))
        pointer = ctypes.c_void_p(block.ctypes.data)
        self._kernel.launch(word, numbers, self._threads or threads, pointer)


def round_trip(lab: Lab) -> bool:
    """Whether pages come back, nothing else is written, and what was not asked for stays."""
    way = lab.rung("kernel")
    blocks, slots, targets = ids(3, 9, 4, 20), ids(7, 0, 19, 4), ids(1, 2, 23, 11)
    before = [lab.block(block) for block in range(BLOCKS)]
    lab.memory[:] = 0x55
    way.store(blocks, slots).wait()
    stored = dict(zip(slots.tolist(), (before[b] for b in blocks), strict=True))
    empty = b"\x55" * lab.plan.page_bytes
    if [lab.slot(s) for s in range(SLOTS)] != [stored.get(s, empty) for s in range(SLOTS)]:
        return False
    if [lab.block(block) for block in range(BLOCKS)] != before:
        return False
    lab.fill(0xEE)
    way.load(targets, slots).wait()
    loaded = dict(zip(targets.tolist(), (before[b] for b in blocks), strict=True))
    empty = b"\xee" * lab.plan.page_bytes
    lab.finish()
    return [lab.block(b) for b in range(BLOCKS)] == [loaded.get(b, empty) for b in range(BLOCKS)]


@pytest.mark.parametrize("shape", SHAPES)
def test_the_source_moves_every_byte_in_every_layout(shape: str, kernel: ctypes.CDLL) -> None:
    lab = Lab(SHAPES[shape](BLOCKS, CPU), SourceCuda(kernel), extent_padding_bytes=64)
    assert round_trip(lab)
    assert (lab.memory[:, -64:] == 0x55).all()


@pytest.mark.parametrize("word", kernel_nvrtc.ENTRY_WORDS_BYTES)
@pytest.mark.parametrize(("pieces", "threads"), [(1, 1), (1, 32), (3, 7), (64, 256), (2, 256)])
def test_the_source_is_right_with_any_grid_and_word(
    word: int, pieces: int, threads: int, kernel: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch
) -> None:
    # 16-byte borders throughout, and a number of words that no grid here divides.
    room = noise(CPU, BLOCKS * 2 * 1136 + 64)
    start = -room.data_ptr() % 64
    view = room[start : start + BLOCKS * 2 * 1136].view(BLOCKS, 2, 1136)[:, :, :1104]
    fake = SourceCuda(kernel, pieces, threads)
    lab = Lab([view], fake)
    monkeypatch.setattr(kernel_block, "_widest", lambda runs, pool: word)
    assert round_trip(lab)
    assert {name for name, *_ in fake.launches} == {kernel_nvrtc.entry(word)}


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("i += 4 * step", "i += 5 * step"),
        ("i < words; i += step", "i + 1 < words; i += step"),
        ("block_id * run.block_stride_bytes", "block_id * run.size_bytes"),
        ("run.page_offset_bytes)", "0 * run.page_offset_bytes)"),
        ("target[i + 2 * step] = third", "target[i + 2 * step] = second"),
    ],
)
def test_a_mistake_in_the_source_is_noticed(right: str, wrong: str, tmp_path: Path) -> None:
    source = kernel_nvrtc.source()
    assert source.count(right) == 1
    kernel = built(source.replace(right, wrong), tmp_path)
    cache = noise(CPU, BLOCKS, 3, 1136)[:, :, :1104]  # 69 words
    assert not round_trip(Lab([cache], SourceCuda(kernel, 1, 4)))
