"""Modules and launches of the fake driver: the gather kernel, read from its parameters.

What a launch does is written down a second time, from the words at the head of
``gather.cu``. That shows what Python hands over, not what the machine code does with it.
"""

import ctypes
import struct
from typing import Any

from tests.transfer.fake_device import INVALID_VALUE, FakeDevice
from tests.transfer.fake_streams import Policy

INVALID_IMAGE, NOT_FOUND, ILLEGAL_ADDRESS, MISALIGNED_ADDRESS = 200, 500, 700, 716
BLOCK_BYTES = 4096
ENTRIES = {f"copy_pages_{word}": word for word in (16, 8, 4, 2, 1)}


class FakeKernels(FakeDevice):
    """A device that runs ``gather.cu``."""

    def __init__(self, policy: Policy = min) -> None:
        super().__init__(policy)
        self.launches: list[tuple[str, tuple[int, ...], int]] = []
        """Entry, grid, threads."""
        self._entries: dict[int, str] = {}

    def _cuModuleLoadData(self, module: Any, image: int) -> int:
        if ctypes.string_at(image, 4) != b"\x7fELF":
            return INVALID_IMAGE
        module[0] = 0x4D00
        return 0

    def _cuModuleGetFunction(self, function: Any, module: int, name: bytes) -> int:
        if module != 0x4D00 or name.decode() not in ENTRIES:
            return NOT_FOUND
        function[0] = 0x4D00 + ENTRIES[name.decode()]
        self._entries[function[0]] = name.decode()
        return 0

    def _cuLaunchKernel(self, function: int, *given: Any) -> int:
        grid, block, (shared, stream, parameters, extra) = given[:3], given[3:6], given[6:]
        limits = (2**31 - 1, 65535, 65535)
        if (
            not all(0 < n <= limit for n, limit in zip(grid, limits, strict=True))
            or not 0 < block[0] <= 1024
            or block[1:] != (1, 1)
            or shared
            or extra
            or not stream
        ):
            return INVALID_VALUE
        name = self._entries[function]
        self.launches.append((name, grid, block[0]))
        passed = ctypes.string_at(parameters[0], BLOCK_BYTES)  # by value, now
        self.streams.enqueue(stream, lambda: self.run_kernel(name, grid, block[0], passed))
        return 0

    def run_kernel(self, name: str, grid: tuple[int, ...], threads: int, passed: bytes) -> None:
        """Do what a launch does."""
        table, to_host = struct.unpack_from("<qq", passed)
        for page in range(grid[2]):
            block_id, host_page = struct.unpack_from("<qq", passed, 16 + 16 * page)
            for run in range(grid[1]):
                if self._kind(table + 32 * run, 32) != "device":
                    self.fault = self.fault or ILLEGAL_ADDRESS
                    return
                address, stride, offset, size = struct.unpack(
                    "<qqqq", ctypes.string_at(table + 32 * run, 32)
                )
                device, host = address + block_id * stride, host_page + offset
                self._copy_run(ENTRIES[name], device, host, size, to_host=bool(to_host))

    def _copy_run(self, word: int, device: int, host: int, size: int, *, to_host: bool) -> None:
        if any(number % word for number in (device, host, size)):
            self.fault = self.fault or MISALIGNED_ADDRESS
        elif (self._kind(device, size), self._kind(host, size)) != ("device", "host"):
            self.fault = self.fault or ILLEGAL_ADDRESS
        else:
            self._copy(*((host, device) if to_host else (device, host)), size)
