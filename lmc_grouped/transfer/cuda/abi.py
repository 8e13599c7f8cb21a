"""The driver's C interface as far as it is used: versions, prototypes, constants.

A symbol is asked for by the version that introduced the form used here, so a newer
driver gives the same form: ``cuMemcpyBatchAsync`` takes nine arguments at 12.8 and
eight, without ``failIdx``, at 13.0.
"""

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

_handle = ctypes.c_void_p
_out = ctypes.c_void_p
_address = ctypes.c_uint64
_flags = ctypes.c_uint

SUCCESS = 0
INVALID_VALUE = 1
NOT_READY = 600

STREAM_NON_BLOCKING = 1
"""Not ordered with the legacy default stream: only events order it."""
EVENT_DISABLE_TIMING = 2
HOST_REGISTER_PORTABLE = 1
HOST_REGISTER_DEVICE_MAP = 2
POINTER_MEMORY_TYPE = 2
MEMORY_TYPE_HOST = 1
CAN_USE_HOST_POINTER_FOR_REGISTERED_MEMORY = 91
COMPUTE_CAPABILITY_MAJOR, COMPUTE_CAPABILITY_MINOR = 75, 76

SOURCE_IN_STREAM_ORDER = 1
PREFER_OVERLAP_WITH_COMPUTE = 1
NO_INDEX = ctypes.c_size_t(-1).value
"""``failIdx`` of an error that belongs to no copy in particular."""


class MemoryLocation(ctypes.Structure):
    """``CUmemLocation``; all zero: no hint."""

    _fields_ = (("type", ctypes.c_int), ("id", ctypes.c_int))


class CopyAttributes(ctypes.Structure):
    """``CUmemcpyAttributes``."""

    _fields_ = (
        ("source_access_order", ctypes.c_int),
        ("source_hint", MemoryLocation),
        ("target_hint", MemoryLocation),
        ("flags", _flags),
    )


@dataclass(frozen=True, slots=True)
class Symbol:
    """A function of the driver."""

    version: int
    """That introduced this form, as ``cuGetProcAddress`` wants it."""
    arguments: tuple[Any, ...]
    is_required: bool = True

    def function(self, address: int) -> Callable[..., int]:
        """The function at an address, called without the interpreter's lock."""
        prototype = ctypes.CFUNCTYPE(ctypes.c_int, *self.arguments)
        return prototype(address)  # type: ignore[no-any-return]


BOOTSTRAP = {
    "cuInit": Symbol(2000, (_flags,)),
    "cuDriverGetVersion": Symbol(2020, (_out,)),
    "cuGetProcAddress": Symbol(
        11030, (ctypes.c_char_p, _out, ctypes.c_int, ctypes.c_uint64), is_required=False
    ),
    "cuGetProcAddress_v2": Symbol(
        12000, (ctypes.c_char_p, _out, ctypes.c_int, ctypes.c_uint64, _out), is_required=False
    ),
}
"""Taken from the library by name; everything else comes from ``cuGetProcAddress``."""

SYMBOLS = {
    "cuGetErrorName": Symbol(6000, (ctypes.c_int, _out)),
    "cuGetErrorString": Symbol(6000, (ctypes.c_int, _out)),
    "cuDeviceGet": Symbol(2000, (_out, ctypes.c_int)),
    "cuDeviceGetAttribute": Symbol(2000, (_out, ctypes.c_int, ctypes.c_int)),
    "cuDevicePrimaryCtxRetain": Symbol(7000, (_out, ctypes.c_int)),
    "cuCtxGetCurrent": Symbol(4000, (_out,)),
    "cuCtxSetCurrent": Symbol(4000, (_handle,)),
    "cuStreamCreate": Symbol(2000, (_out, _flags)),
    "cuStreamSynchronize": Symbol(2000, (_handle,)),
    "cuStreamWaitEvent": Symbol(3020, (_handle, _handle, _flags)),
    "cuEventCreate": Symbol(2000, (_out, _flags)),
    "cuEventRecord": Symbol(2000, (_handle, _handle)),
    "cuEventQuery": Symbol(2000, (_handle,)),
    "cuEventSynchronize": Symbol(2000, (_handle,)),
    "cuMemHostRegister": Symbol(6050, (_handle, ctypes.c_size_t, _flags)),
    "cuMemHostUnregister": Symbol(4000, (_handle,)),
    "cuPointerGetAttribute": Symbol(4000, (_out, ctypes.c_int, _address)),
    "cuMemcpyAsync": Symbol(4000, (_address, _address, ctypes.c_size_t, _handle)),
    "cuModuleLoadData": Symbol(2000, (_out, _out), is_required=False),
    "cuModuleGetFunction": Symbol(2000, (_out, _handle, ctypes.c_char_p), is_required=False),
    "cuLaunchKernel": Symbol(
        4000,
        (
            _handle,
            *(ctypes.c_uint,) * 3,  # blocks of the grid
            *(ctypes.c_uint,) * 3,  # threads of a block
            ctypes.c_uint,  # bytes of shared memory
            _handle,  # stream
            _out,  # an address per parameter
            _out,  # extra
        ),
        is_required=False,
    ),
    "cuMemcpyBatchAsync": Symbol(
        12080,
        (
            _out,  # targets
            _out,  # sources
            _out,  # sizes
            ctypes.c_size_t,  # copies
            _out,  # attributes
            _out,  # the first copy of each of them
            ctypes.c_size_t,  # how many attributes
            _out,  # failIdx
            _handle,  # stream
        ),
        is_required=False,
    ),
}
