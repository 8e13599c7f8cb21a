"""A CUDA driver without a device: real C functions, host memory as device memory.

The prototypes are written down here a second time, from the driver's documentation,
so a wrong one in the package shows. Copies are checked when they are begun, made when
their stream comes to them, and refused where a real driver would refuse them or quietly
be synchronous: outside the cache, in host memory not registered, across two pieces of it.
"""

import ctypes
from collections import Counter
from collections.abc import Callable
from typing import Any

from tests.transfer.fake_device import INVALID_CONTEXT, INVALID_VALUE
from tests.transfer.fake_kernels import FakeKernels
from tests.transfer.fake_streams import Policy

P = ctypes.POINTER
INT, UINT, SIZE, U64, VOID = (
    ctypes.c_int,
    ctypes.c_uint,
    ctypes.c_size_t,
    ctypes.c_ulonglong,
    ctypes.c_void_p,
)
NOT_FOUND = 500
ERRORS = {
    INVALID_VALUE: (b"CUDA_ERROR_INVALID_VALUE", b"invalid argument"),
    2: (b"CUDA_ERROR_OUT_OF_MEMORY", b"out of memory"),
    INVALID_CONTEXT: (b"CUDA_ERROR_INVALID_CONTEXT", b"invalid device context"),
    700: (b"CUDA_ERROR_ILLEGAL_ADDRESS", b"an illegal memory access was encountered"),
}


class Location(ctypes.Structure):
    _fields_ = (("type", INT), ("id", INT))


class Attributes(ctypes.Structure):
    _fields_ = (("order", INT), ("src", Location), ("dst", Location), ("flags", UINT))


ABI: dict[str, tuple[int, tuple[Any, ...]]] = {
    "cuInit": (2000, (UINT,)),
    "cuDriverGetVersion": (2020, (P(INT),)),
    "cuGetProcAddress": (11030, (ctypes.c_char_p, P(VOID), INT, U64)),
    "cuGetProcAddress_v2": (12000, (ctypes.c_char_p, P(VOID), INT, U64, P(INT))),
    "cuGetErrorName": (6000, (INT, P(ctypes.c_char_p))),
    "cuGetErrorString": (6000, (INT, P(ctypes.c_char_p))),
    "cuDeviceGet": (2000, (P(INT), INT)),
    "cuDeviceGetAttribute": (2000, (P(INT), INT, INT)),
    "cuDevicePrimaryCtxRetain": (7000, (P(VOID), INT)),
    "cuCtxGetCurrent": (4000, (P(VOID),)),
    "cuCtxSetCurrent": (4000, (VOID,)),
    "cuStreamCreate": (2000, (P(VOID), UINT)),
    "cuStreamSynchronize": (2000, (VOID,)),
    "cuStreamWaitEvent": (3020, (VOID, VOID, UINT)),
    "cuEventCreate": (2000, (P(VOID), UINT)),
    "cuEventRecord": (2000, (VOID, VOID)),
    "cuEventQuery": (2000, (VOID,)),
    "cuEventSynchronize": (2000, (VOID,)),
    "cuMemHostRegister": (6050, (VOID, SIZE, UINT)),
    "cuMemHostUnregister": (4000, (VOID,)),
    "cuPointerGetAttribute": (4000, (P(UINT), INT, U64)),
    "cuMemcpyAsync": (4000, (U64, U64, SIZE, VOID)),
    "cuModuleLoadData": (2000, (P(VOID), VOID)),
    "cuModuleGetFunction": (2000, (P(VOID), VOID, ctypes.c_char_p)),
    "cuLaunchKernel": (4000, (VOID, *[UINT] * 7, VOID, P(VOID), P(VOID))),
    "cuMemcpyBatchAsync": (
        12080,
        (P(U64), P(U64), P(SIZE), SIZE, P(Attributes), P(SIZE), SIZE, P(SIZE), VOID),
    ),
}
NEED_A_CONTEXT = ("cuStream", "cuEvent", "cuMem", "cuPointer", "cuModule", "cuLaunch")


class FakeCuda(FakeKernels):
    """The library; hand it to ``Driver``.

    Args:
        version: what the driver serves.
        missing: functions it lacks.
        policy: which stream goes on.
    """

    def __init__(
        self, version: int = 12080, missing: tuple[str, ...] = (), policy: Policy = min
    ) -> None:
        super().__init__(policy)
        self.version = version
        self.calls: list[tuple[Any, ...]] = []
        """Every call with its plain numbers; pointers are left out."""
        self.asked_versions: dict[str, int] = {}
        self.broken: list[BaseException] = []
        """What went wrong inside the fake itself; a test that leaves any has failed."""
        self._counts: Counter[str] = Counter()
        self._planned: dict[tuple[str, int], tuple[int, int | None]] = {}
        self._functions = {
            name: self._callback(name, arguments)
            for name, (introduced, arguments) in ABI.items()
            if name not in missing and introduced <= version
        }
        for name in ("cuInit", "cuDriverGetVersion", "cuGetProcAddress", "cuGetProcAddress_v2"):
            if name in self._functions:
                setattr(self, name, self._functions[name])

    def fail(self, name: str, code: int, *, at: int = 1, index: int | None = None) -> None:
        """Have the call number ``at`` from now on fail; a batch blames copy ``index``."""
        self._planned[name, self._counts[name] + at] = code, index

    def named(self, name: str) -> list[tuple[Any, ...]]:
        return [call for call in self.calls if call[0] == name]

    def _callback(self, name: str, arguments: tuple[Any, ...]) -> Any:
        function: Callable[..., int] = getattr(self, f"_{name}")

        def called(*given: Any) -> int:
            try:
                return self._called(name, function, given)
            except BaseException as error:  # noqa: BLE001  (ctypes would print and go on)
                self.broken.append(error)
                return 999

        return ctypes.CFUNCTYPE(INT, *arguments)(called)

    def _called(self, name: str, function: Callable[..., int], given: tuple[Any, ...]) -> int:
        self._counts[name] += 1
        self.calls.append((name, *(v for v in given if isinstance(v, int | bytes | None))))
        code, index = self._planned.pop((name, self._counts[name]), (0, None))
        if code:
            if index is not None:
                given[7][0] = index
            return code
        if name.startswith(NEED_A_CONTEXT):
            if self.context is None:
                return INVALID_CONTEXT
            if self.fault:
                return self.fault
        return function(*given)

    # Bootstrap and errors.

    def _cuInit(self, flags: int) -> int:
        return INVALID_VALUE if flags else 0

    def _cuDriverGetVersion(self, version: Any) -> int:
        version[0] = self.version
        return 0

    def _cuGetProcAddress(self, name: bytes, address: Any, version: int, flags: int) -> int:
        known = self._functions.get(name.decode())
        self.asked_versions[name.decode()] = version
        if known is None or version < ABI[name.decode()][0]:
            return NOT_FOUND
        if name == b"cuMemcpyBatchAsync" and version >= 13000:
            known = self._eight_argument_batch
        address[0] = ctypes.cast(known, VOID).value
        return 0

    def _cuGetProcAddress_v2(
        self, name: bytes, address: Any, version: int, flags: int, status: Any
    ) -> int:
        code = self._cuGetProcAddress(name, address, version, flags)
        status[0] = 1 if code else 0
        if code:  # the newer form reports it in the status and an empty address
            address[0] = None
        return 0

    @property
    def _eight_argument_batch(self) -> Any:
        """The form of 13.0: the stream where ``failIdx`` was."""
        nine = ABI["cuMemcpyBatchAsync"][1]

        def refuse(*given: Any) -> int:
            self.broken.append(AssertionError("the form of 13.0 was resolved"))
            return INVALID_VALUE

        self._kept = ctypes.CFUNCTYPE(INT, *nine[:7], VOID)(refuse)
        return self._kept

    def _cuGetErrorName(self, code: int, text: Any) -> int:
        return self._error_text(code, text, 0)

    def _cuGetErrorString(self, code: int, text: Any) -> int:
        return self._error_text(code, text, 1)

    def _error_text(self, code: int, text: Any, which: int) -> int:
        if code not in ERRORS:
            return INVALID_VALUE
        text[0] = ERRORS[code][which]
        return 0
