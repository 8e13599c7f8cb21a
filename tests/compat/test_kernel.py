"""What NVRTC makes of the gather kernel, on a machine without a GPU.

The library comes in a throw-away wheel of 90 MB. That the machine code runs is
not shown: not accepted on GPU.
"""

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from compat.environments import unpacked
from lmc_grouped.transfer.cuda import kernel_nvrtc
from lmc_grouped.transfer.cuda.kernel_block import OPERATION_BYTES
from lmc_grouped.transfer.cuda.kernel_nvrtc import ENTRY_WORDS_BYTES, KernelError, Nvrtc
from tests.transfer.cuda.cubin import E_MACHINE_CUDA, Cubin, parse

ROOT = Path(__file__).parents[2]
REGISTERS = 32
"""65,536 of a multiprocessor of 7.0 divided by its 2,048 threads: no launch is held back."""
TAIL = "py3-none-manylinux2010_x86_64.manylinux_2_12_x86_64.whl"


@dataclass(frozen=True)
class Wheel:
    """A wheel of NVRTC, as ``compat.environments`` asks for one."""

    distribution: str
    version: str
    sha256: str
    library: str
    python_tag: str = "py3"
    pip_options: tuple[str, ...] = ("--platform", "manylinux_2_12_x86_64")
    beside: tuple[str, ...] = ()
    wheels: dict[str, str] = field(init=False)

    def __post_init__(self) -> None:
        name = f"{self.distribution.replace('-', '_')}-{self.version}-{TAIL}"
        object.__setattr__(self, "wheels", {name: self.sha256})

    def load(self) -> Nvrtc:
        folder = unpacked(self, ROOT / ".compat")
        (library,) = kernel_nvrtc.installed([str(folder / "nvidia" / self.library)])
        return library


CUDA_12 = Wheel(
    "nvidia-cuda-nvrtc-cu12",
    "12.9.86",
    "210cf05005a447e29214e9ce50851e83fc5f4358df8b453155d5e1918094dcb4",
    "cuda_nvrtc/lib/libnvrtc.so.12",
)
CUDA_13 = Wheel(
    "nvidia-cuda-nvrtc",
    "13.0.88",
    "ad9b6d2ead2435f11cbb6868809d2adeeee302e9bb94bcf0539c7a40d80e8575",
    "cu13/lib/libnvrtc.so.13",
)


@pytest.fixture(scope="module")
def nvrtc() -> Nvrtc:
    return CUDA_12.load()


@pytest.fixture(scope="module")
def volta(nvrtc: Nvrtc) -> Cubin:
    return parse(kernel_nvrtc.compiled((7, 0), [nvrtc]))


def test_it_is_machine_code_for_compute_capability_7_0_and_nothing_else(volta: Cubin) -> None:
    assert volta.machine == E_MACHINE_CUDA == 190
    assert volta.architecture == 70
    assert [name for name in volta.sections if "ptx" in name.lower()] == []


def test_it_has_one_entry_per_word_and_no_other_function(volta: Cubin) -> None:
    assert sorted(volta.kernels) == sorted(map(kernel_nvrtc.entry, ENTRY_WORDS_BYTES))


def test_its_parameters_are_the_block_that_python_fills(volta: Cubin) -> None:
    assert set(volta.parameter_bytes.values()) == {OPERATION_BYTES}
    assert set(volta.parameter_bytes) == set(volta.kernels)


def test_its_registers_hold_back_no_thread_and_nothing_spills(volta: Cubin) -> None:
    assert set(volta.registers) == set(volta.kernels)
    assert 0 < max(volta.registers.values()) <= REGISTERS
    assert [name for name in volta.sections if ".nv.local" in name or ".nv.global" in name] == []


def test_it_compiles_for_every_architecture_from_volta_on(nvrtc: Nvrtc) -> None:
    newer = [each for each in nvrtc.capabilities if each >= kernel_nvrtc.LOWEST_CAPABILITY]
    assert newer[0] == (7, 0)
    for capability in newer:
        cubin = parse(nvrtc.compile(kernel_nvrtc.source(), capability))
        assert divmod(cubin.architecture, 10) == capability
        assert sorted(cubin.kernels) == sorted(map(kernel_nvrtc.entry, ENTRY_WORDS_BYTES))


def test_the_cubin_of_another_architecture_is_told_apart(nvrtc: Nvrtc) -> None:
    assert parse(kernel_nvrtc.compiled((7, 5), [nvrtc])).architecture == 75


def test_a_kernel_that_needs_more_registers_is_noticed(nvrtc: Nvrtc) -> None:
    source = """
    extern "C" __global__ void many(double* data) {
      double held[64];
    #pragma unroll
      for (int i = 0; i < 64; ++i) held[i] = data[i * blockDim.x + threadIdx.x];
      __syncthreads();
    #pragma unroll
      for (int i = 0; i < 64; ++i) data[(63 - i) * blockDim.x + threadIdx.x] = held[i];
    }"""
    assert parse(nvrtc.compile(source, (7, 0))).registers["many"] > REGISTERS


def test_the_log_of_the_compiler_is_in_the_error(nvrtc: Nvrtc) -> None:
    with pytest.raises(KernelError, match=r"gather\.cu\(1\): error: .*nonsense"):
        nvrtc.compile("nonsense a;", (7, 0))


@pytest.mark.compat
def test_the_library_of_cuda_13_refuses_volta_in_words() -> None:
    library = CUDA_13.load()
    assert library.version == (13, 0)
    with pytest.raises(KernelError, match=r"found: NVRTC 13\.0 .* 7\.5 to 12\.1.*nvrtc-cu12"):
        kernel_nvrtc.compiled((7, 0), [library])
    assert parse(kernel_nvrtc.compiled((7, 5), [library])).architecture == 75
