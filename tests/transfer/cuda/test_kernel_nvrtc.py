"""Which NVRTC compiles the kernel, and what is said when none does.

What the compiler makes of the source: ``tests/compat/test_kernel.py``.
"""

import ctypes
from typing import Any

import pytest

from lmc_grouped.transfer.cuda import kernel_nvrtc
from lmc_grouped.transfer.cuda.kernel_nvrtc import KernelError, Nvrtc

ARCHS_12 = [50, 52, 53, 60, 61, 62, 70, 72, 75, 80, 86, 87, 89, 90, 100, 101, 103, 120, 121]
ARCHS_13 = [75, 80, 86, 87, 88, 89, 90, 100, 103, 110, 120, 121]


class FakeNvrtc:
    """Answers the calls of NVRTC through the pointers that ctypes would pass."""

    def __init__(self, version: tuple[int, int], archs: list[int], failing: str = "") -> None:
        self.version, self.archs, self.failing = version, archs, failing
        self.options: list[bytes] = []
        self.alive = 0

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any) -> int:
            if name == self.failing:
                return 6
            getattr(self, f"_{name}")(*arguments)
            return 0

        return call

    def _nvrtcVersion(self, major: Any, minor: Any) -> None:
        major._obj.value, minor._obj.value = self.version

    def _nvrtcGetNumSupportedArchs(self, count: Any) -> None:
        count._obj.value = len(self.archs)

    def _nvrtcGetSupportedArchs(self, archs: Any) -> None:
        archs[:] = self.archs

    def _nvrtcCreateProgram(self, program: Any, source: bytes, name: bytes, *_: Any) -> None:
        assert b"copy_pages_" in source
        assert name == b"gather.cu"
        program._obj.value = 7
        self.alive += 1

    def _nvrtcCompileProgram(self, program: Any, count: int, options: Any) -> None:
        self.options = list(options)[:count]

    def _nvrtcGetProgramLogSize(self, program: Any, size: Any) -> None:
        size._obj.value = 12

    def _nvrtcGetProgramLog(self, program: Any, buffer: Any) -> None:
        ctypes.memmove(buffer, b"line 3: no!\0", 12)

    def _nvrtcGetCUBINSize(self, program: Any, size: Any) -> None:
        size._obj.value = 4

    def _nvrtcGetCUBIN(self, program: Any, buffer: Any) -> None:
        ctypes.memmove(buffer, b"\x7fELF", 4)

    def _nvrtcDestroyProgram(self, program: Any) -> None:
        self.alive -= 1


def nvrtc(version: tuple[int, int], archs: list[int], failing: str = "") -> Nvrtc:
    return Nvrtc.of(f"libnvrtc.so.{version[0]}", FakeNvrtc(version, archs, failing))


def test_the_first_library_that_knows_the_device_compiles_for_exactly_its_architecture() -> None:
    libraries = [nvrtc((13, 0), ARCHS_13), nvrtc((12, 9), ARCHS_12), nvrtc((12, 8), ARCHS_12)]
    assert kernel_nvrtc.compiled((7, 0), libraries) == b"\x7fELF"
    assert [each.library.options for each in libraries] == [
        [],
        [b"--gpu-architecture=sm_70", b"--std=c++17"],
        [],
    ]
    assert [each.library.alive for each in libraries] == [0, 0, 0]


def test_volta_with_the_library_of_cuda_13_is_told_what_to_install() -> None:
    with pytest.raises(KernelError) as error:
        kernel_nvrtc.choose((7, 0), [nvrtc((13, 0), ARCHS_13)])
    assert str(error.value) == (
        "no NVRTC compiles for compute capability 7.0; found: NVRTC 13.0 (libnvrtc.so.13: compute "
        "capability 7.5 to 12.1); install one of CUDA 12: pip install "
        "nvidia-cuda-nvrtc-cu12 (the extra lmc-grouped[volta]); those of CUDA 13 know "
        "nothing older than 7.5"
    )


def test_no_library_at_all_is_told_so() -> None:
    with pytest.raises(KernelError, match=r"for compute capability 8\.0; found: none; install"):
        kernel_nvrtc.choose((8, 0), [])


def test_a_device_older_than_the_source_is_refused_before_any_library_is_loaded() -> None:
    def never() -> Any:
        pytest.fail("a library was asked for")
        yield

    with pytest.raises(KernelError, match=r"needs compute capability 7\.0 .* device has 6\.1"):
        kernel_nvrtc.choose((6, 1), never())


def test_a_source_that_does_not_compile_shows_the_log_and_leaves_no_program() -> None:
    library = nvrtc((12, 9), ARCHS_12, "nvrtcCompileProgram")
    with pytest.raises(KernelError, match=r"does not compile gather\.cu \(code 6\): line 3: no!$"):
        kernel_nvrtc.compiled((7, 0), [library])
    assert library.library.alive == 0


@pytest.mark.parametrize(
    "failing", ["nvrtcCreateProgram", "nvrtcGetCUBINSize", "nvrtcGetCUBIN", "nvrtcGetProgramLog"]
)
def test_every_call_that_fails_is_named_and_leaves_no_program(failing: str) -> None:
    library = nvrtc((12, 9), ARCHS_12, failing)
    if failing == "nvrtcGetProgramLog":
        assert kernel_nvrtc.compiled((7, 0), [library])  # the log is read when compiling fails
    else:
        with pytest.raises(KernelError, match=f"{failing} of NVRTC failed with code 6"):
            kernel_nvrtc.compiled((7, 0), [library])
    assert library.library.alive == 0


def test_a_library_that_does_not_say_what_it_is_is_not_used() -> None:
    with pytest.raises(KernelError, match="nvrtcVersion of NVRTC failed with code 6"):
        nvrtc((12, 9), ARCHS_12, "nvrtcVersion")


def test_paths_that_do_not_load_are_passed_over(tmp_path: Any) -> None:
    broken = tmp_path / "libnvrtc.so.12"
    broken.write_bytes(b"not a library")
    assert list(kernel_nvrtc.installed([str(broken), "libnone-of-this-name.so.12"])) == []


def test_why_a_device_gets_no_kernel_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_nvrtc, "_places", lambda: iter(()))
    with pytest.raises(KernelError, match=r"^no NVRTC compiles for .* 7\.0; found: none"):
        kernel_nvrtc.compiled((7, 0))
    known = [nvrtc((12, 9), ARCHS_12)]
    monkeypatch.setattr(kernel_nvrtc, "installed", lambda: iter(known))
    assert kernel_nvrtc.compiled((7, 0))
