"""Compile ``gather.cu`` for the device at hand, with whichever NVRTC knows its architecture.

NVRTC is a library of CUDA: a wheel brings it (``nvidia-cuda-nvrtc-cu12``, which
a torch for CUDA 12 depends on and the extra ``volta`` names), or the system. No
device, driver, header or compiler is needed.
"""

import ctypes
import importlib.util
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

SOURCE = "gather.cu"
ENTRY_WORDS_BYTES = (16, 8, 4, 2, 1)
"""Words for which the source has an entry ``copy_pages_<bytes>``."""
LOWEST_CAPABILITY = (7, 0)
"""``__grid_constant__`` needs it."""

_REMEDY = (
    "install one of CUDA 12: pip install nvidia-cuda-nvrtc-cu12 "
    "(the extra lmc-grouped[volta]); those of CUDA 13 know nothing older than 7.5"
)
# Wheels of CUDA 12 and 13 put the library at these places of the package `nvidia`.
_IN_WHEELS = ("cuda_nvrtc/lib/libnvrtc.so.12", "cu13/lib/libnvrtc.so.13")
_ON_THE_SYSTEM = ("libnvrtc.so.12", "libnvrtc.so.13")


class KernelError(RuntimeError):
    """The kernel cannot be had on this machine: says what is missing."""


@dataclass(frozen=True, slots=True)
class Nvrtc:
    """One NVRTC library."""

    path: str
    version: tuple[int, int]
    capabilities: tuple[tuple[int, int], ...]
    """Compute capabilities that it compiles for, ascending."""
    library: Any
    """The loaded library: what ``ctypes.CDLL`` returns."""

    @classmethod
    def of(cls, path: str, library: Any) -> "Nvrtc":
        """Ask a loaded library what it is.

        Raises:
            KernelError: one of the questions failed.
        """
        major, minor, count = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
        _check(library, "nvrtcVersion", ctypes.byref(major), ctypes.byref(minor))
        _check(library, "nvrtcGetNumSupportedArchs", ctypes.byref(count))
        archs = (ctypes.c_int * count.value)()
        _check(library, "nvrtcGetSupportedArchs", archs)
        capabilities = tuple(sorted(divmod(arch, 10) for arch in archs))
        return cls(path, (major.value, minor.value), capabilities, library)

    def compile(self, source: str, capability: tuple[int, int]) -> bytes:
        """Machine code of ``source`` for exactly one compute capability, no PTX.

        Raises:
            KernelError: it does not compile; the compiler's log is in the message.
        """
        program = ctypes.c_void_p()
        name = SOURCE.encode()
        arguments = (ctypes.byref(program), source.encode(), name, 0, None, None)
        _check(self.library, "nvrtcCreateProgram", *arguments)
        try:
            options = (b"--gpu-architecture=sm_%d%d" % capability, b"--std=c++17")
            argv = (ctypes.c_char_p * len(options))(*options)
            code = self.library.nvrtcCompileProgram(program, len(options), argv)
            if code:
                log = self._bytes(program, "nvrtcGetProgramLog").rstrip(b"\0").decode()
                raise KernelError(f"{self} does not compile {SOURCE} (code {code}): {log.strip()}")
            return self._bytes(program, "nvrtcGetCUBIN")
        finally:
            self.library.nvrtcDestroyProgram(ctypes.byref(program))

    def _bytes(self, program: ctypes.c_void_p, what: str) -> bytes:
        size = ctypes.c_size_t()
        _check(self.library, f"{what}Size", program, ctypes.byref(size))
        buffer = ctypes.create_string_buffer(size.value)
        _check(self.library, what, program, buffer)
        return buffer.raw

    def __str__(self) -> str:
        first, last = (f"{major}.{minor}" for major, minor in self._range())
        numbers = ".".join(map(str, self.version))
        return f"NVRTC {numbers} ({self.path}: compute capability {first} to {last})"

    def _range(self) -> tuple[tuple[int, int], tuple[int, int]]:
        return self.capabilities[0], self.capabilities[-1]


def source() -> str:
    """The kernel, as shipped."""
    return resources.files(__package__).joinpath(SOURCE).read_text()


def entry(word_bytes: int) -> str:
    """The kernel's symbol for words of this many bytes."""
    return f"copy_pages_{word_bytes}"


def choose(capability: tuple[int, int], libraries: Iterable[Nvrtc]) -> Nvrtc:
    """The first library that compiles for this compute capability.

    Raises:
        KernelError: none does; names those that were found.
    """
    device = "{}.{}".format(*capability)
    if capability < LOWEST_CAPABILITY:
        raise KernelError(
            f"the kernel needs compute capability {'{}.{}'.format(*LOWEST_CAPABILITY)} or higher, "
            f"the device has {device}"
        )
    seen: list[Nvrtc] = []
    for library in libraries:
        if capability in library.capabilities:
            return library
        seen.append(library)
    found = "; ".join(map(str, seen)) or "none"
    raise KernelError(
        f"no NVRTC compiles for compute capability {device}; found: {found}; {_REMEDY}"
    )


def installed(paths: Iterable[str] | None = None) -> Iterator[Nvrtc]:
    """The NVRTC libraries of this machine that load, wheels first, loaded one by one.

    Args:
        paths: look here instead.

    Raises:
        KernelError: one loads and does not answer.
    """
    for path in _places() if paths is None else paths:
        try:
            library = _load(path)
        except OSError:
            continue
        yield Nvrtc.of(path, library)


def compiled(capability: tuple[int, int], libraries: Iterable[Nvrtc] | None = None) -> bytes:
    """The kernel as machine code for this compute capability.

    Raises:
        KernelError: no library knows the architecture, or it does not compile.
    """
    chosen = choose(capability, installed() if libraries is None else libraries)
    return chosen.compile(source(), capability)


def _places() -> Iterator[str]:
    spec = importlib.util.find_spec("nvidia")
    folders = [] if spec is None else list(spec.submodule_search_locations or ())
    for name in _IN_WHEELS:
        for folder in folders:
            if (Path(folder) / name).is_file():
                yield str(Path(folder) / name)
    yield from _ON_THE_SYSTEM


def _load(path: str) -> ctypes.CDLL:
    # That of 13.0 does not find its second half in the folder of its own wheel,
    # unless that is loaded already.
    for builtins in Path(path).parent.glob("libnvrtc-builtins.so.*"):
        ctypes.CDLL(str(builtins))
    return ctypes.CDLL(path)


def _check(library: Any, name: str, *arguments: Any) -> None:
    code = getattr(library, name)(*arguments)
    if code:
        raise KernelError(f"{name} of NVRTC failed with code {code}")
