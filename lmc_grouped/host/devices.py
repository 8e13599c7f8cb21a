"""The CUDA driver and its devices, asked in a process of its own.

A process that has initialised CUDA cannot fork into one that uses it, and an engine forks;
a broken driver may also end the process that asks. So this file is run as a program, by
its path and with nothing but the standard library, and answers with one line of JSON.
"""

import ctypes
import json
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

LIBRARY = "libcuda.so.1"
TIMEOUT_SECONDS = 60
_NAME_BYTES = 256
_CAPABILITY_MAJOR, _CAPABILITY_MINOR = 75, 76
"""Of ``CUdevice_attribute``."""
_MEANINGS = {
    3: "the driver is not initialised",
    34: "a stub library instead of a driver",
    100: "no device",
    101: "no such device",
    803: "the driver and its library are of different versions",
    804: "a compatibility library on a device that does not support it",
    999: "unknown; is the kernel module loaded?",
}
"""Of ``CUresult``, those seen where a driver is broken."""


class DriverError(RuntimeError):
    """There is no driver, or it does not work: says what was asked and answered."""


@dataclass(frozen=True, slots=True)
class Device:
    """One visible device."""

    index: int
    name: str
    capability: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Driver:
    """A working driver."""

    version: int
    """As ``cuDriverGetVersion`` has it: 12080 is the driver of CUDA 12.8."""
    devices: tuple[Device, ...]

    @property
    def cuda_version(self) -> str:
        """The newest CUDA that it serves."""
        return f"{self.version // 1000}.{self.version % 1000 // 10}"


def find() -> Driver:
    """The driver and the devices that ``CUDA_VISIBLE_DEVICES`` leaves visible.

    Raises:
        DriverError: there is no driver, or it does not work.
    """
    try:
        done = subprocess.run(
            [sys.executable, "-P", __file__],
            capture_output=True,
            text=True,
            timeout=TIMEOUT_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise DriverError(f"{LIBRARY} did not answer within {TIMEOUT_SECONDS} s") from None
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or [f"exit status {done.returncode}"]
        raise DriverError(f"asking {LIBRARY} failed: {last[0]}")
    answer = json.loads(done.stdout)
    if "failure" in answer:
        raise DriverError(answer["failure"])
    devices = (Device(d["index"], d["name"], tuple(d["capability"])) for d in answer["devices"])
    return Driver(answer["version"], tuple(devices))


def ask(library: Any) -> dict[str, Any]:
    """What the driver library says, as ``find`` reads it.

    Raises:
        DriverError: a call answered something else than 0.
    """
    version, count = ctypes.c_int(), ctypes.c_int()
    _call(library, "cuInit", ctypes.c_uint(0))
    _call(library, "cuDriverGetVersion", ctypes.byref(version))
    _call(library, "cuDeviceGetCount", ctypes.byref(count))
    devices = [_device(library, index) for index in range(count.value)]
    return {"version": version.value, "devices": devices}


def _device(library: Any, index: int) -> dict[str, Any]:
    handle, name = ctypes.c_int(), ctypes.create_string_buffer(_NAME_BYTES)
    _call(library, "cuDeviceGet", ctypes.byref(handle), ctypes.c_int(index))
    _call(library, "cuDeviceGetName", name, ctypes.c_int(_NAME_BYTES), handle)
    capability = []
    for attribute in (_CAPABILITY_MAJOR, _CAPABILITY_MINOR):
        value = ctypes.c_int()
        _call(library, "cuDeviceGetAttribute", ctypes.byref(value), ctypes.c_int(attribute), handle)
        capability.append(value.value)
    return {"index": index, "name": name.value.decode("utf-8", "replace"), "capability": capability}


def _call(library: Any, name: str, *arguments: Any) -> None:
    code = getattr(library, name)(*arguments)
    if code:
        meaning = _MEANINGS.get(code)
        raise DriverError(f"{name} answered {code}" + (f" ({meaning})" if meaning else ""))


def main() -> int:
    """The program: one line of JSON."""
    try:
        answer = ask(ctypes.CDLL(LIBRARY))
    except OSError as error:
        answer = {"failure": f"no NVIDIA driver here: {error}"}
    except DriverError as error:
        answer = {"failure": str(error)}
    sys.stdout.write(json.dumps(answer) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
