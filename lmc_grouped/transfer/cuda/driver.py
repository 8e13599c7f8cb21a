"""The CUDA driver through ctypes: nothing compiled, and every result is read."""

import ctypes
from collections.abc import Callable
from typing import Any

from lmc_grouped.transfer.copies import TransferError
from lmc_grouped.transfer.cuda import abi
from lmc_grouped.transfer.ladder import version_text

LIBRARY = "libcuda.so.1"


class CudaError(TransferError):
    """A call of the driver failed."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class Driver:
    """The functions of ``abi.SYMBOLS``, resolved once.

    Args:
        library: has the bootstrap functions as attributes, as ``ctypes.CDLL`` does.

    Raises:
        TransferError: no driver, or one that lacks a function.
        CudaError: the driver refuses to start, for instance without a device.
    """

    def __init__(self, library: Any = None) -> None:
        self._functions: dict[str, Callable[..., int]] = {}
        self._library = _load() if library is None else library
        for name, symbol in abi.BOOTSTRAP.items():
            if hasattr(self._library, name):
                address = ctypes.cast(getattr(self._library, name), ctypes.c_void_p).value
                assert address is not None
                self._functions[name] = symbol.function(address)
            elif symbol.is_required:
                raise TransferError(f"{LIBRARY} has no {name}: it is no CUDA driver")
        version = ctypes.c_int()
        self.call("cuInit", 0)
        self.call("cuDriverGetVersion", ctypes.byref(version))
        self.version = version.value
        """12080 is 12.8: the CUDA that the driver serves, not its own number."""
        for name, symbol in abi.SYMBOLS.items():
            if (address := self._resolve(name, symbol.version)) is not None:
                self._functions[name] = symbol.function(address)
            elif symbol.is_required:
                raise TransferError(
                    f"the CUDA driver ({version_text(self.version)}) has no {name}; "
                    "install a driver for CUDA 11.8 or newer, or set lmc_grouped.transfer: torch"
                )

    def has(self, name: str) -> bool:
        """Whether the driver has an optional function."""
        return name in self._functions

    def code(self, name: str, *arguments: Any) -> int:
        """Call a function.

        Raises:
            TransferError: this driver has no such function.
        """
        if name not in self._functions:
            raise TransferError(
                f"the CUDA driver ({version_text(self.version)}) has no {name}, which came with "
                f"{version_text(abi.SYMBOLS[name].version)}"
            )
        return self._functions[name](*arguments)

    def call(self, name: str, *arguments: Any, where: str = "starting CUDA") -> None:
        """Call a function whose result must be success.

        Args:
            name: of the function.
            arguments: as in C.
            where: begins the message of the error.

        Raises:
            CudaError: it was not.
        """
        if code := self.code(name, *arguments):
            raise self.error(code, name, where)

    def error(self, code: int, name: str, where: str, detail: str = "") -> CudaError:
        """The error for a result: where, call, detail, code, and the driver's words for it."""
        words = ": ".join(filter(None, (self._text("Name", code), self._text("String", code))))
        return CudaError(code, f"{where}: {name}{detail} failed with {code} ({words or 'no name'})")

    def use_context(self, device: int) -> None:
        """See to a context of this thread: the one torch made, else the device's primary one.

        Raises:
            CudaError: there is none to be had.
        """
        context = ctypes.c_void_p()
        self.call("cuCtxGetCurrent", ctypes.byref(context))
        if context.value:
            return
        where = f"this thread has no CUDA context, and taking that of device {device}"
        ordinal = ctypes.c_int()
        self.call("cuDeviceGet", ctypes.byref(ordinal), device, where=where)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), ordinal.value, where=where)
        self.call("cuCtxSetCurrent", context, where=where)

    def attribute(self, device: int, attribute: int) -> int:
        """``cuDeviceGetAttribute`` of the device with this number.

        Raises:
            CudaError: no such device or attribute.
        """
        ordinal, value = ctypes.c_int(), ctypes.c_int()
        where = f"asking device {device}"
        self.call("cuDeviceGet", ctypes.byref(ordinal), device, where=where)
        self.call(
            "cuDeviceGetAttribute", ctypes.byref(value), attribute, ordinal.value, where=where
        )
        return value.value

    def _resolve(self, name: str, version: int) -> int | None:
        address, status = ctypes.c_void_p(), ctypes.c_int()
        asked = (name.encode(), ctypes.byref(address), version, 0)
        if self.has("cuGetProcAddress_v2"):
            code = self.code("cuGetProcAddress_v2", *asked, ctypes.byref(status))
        elif self.has("cuGetProcAddress"):
            code = self.code("cuGetProcAddress", *asked)
        else:
            raise TransferError(
                f"the CUDA driver ({version_text(self.version)}) is older than 11.3 and has no "
                "cuGetProcAddress; install a newer one, or set lmc_grouped.transfer: torch"
            )
        return address.value if code == abi.SUCCESS else None

    def _text(self, what: str, code: int) -> str:
        text = ctypes.c_char_p()
        name = f"cuGetError{what}"
        if not self.has(name) or self.code(name, code, ctypes.byref(text)):
            return ""
        return (text.value or b"").decode(errors="replace")


def _load() -> ctypes.CDLL:
    try:
        return ctypes.CDLL(LIBRARY)
    except OSError as error:
        raise TransferError(
            f"{LIBRARY} cannot be loaded, so there is no CUDA driver: {error}"
        ) from (error)
