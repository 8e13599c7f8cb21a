"""The compiled ``gather.cu`` on one device: loaded once, launched by every group."""

import ctypes
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch

from lmc_grouped.transfer.copies import TransferError
from lmc_grouped.transfer.cuda.driver import Driver
from lmc_grouped.transfer.cuda.kernel_block import THREADS
from lmc_grouped.transfer.cuda.kernel_nvrtc import KernelError, compiled, entry
from lmc_grouped.transfer.cuda.stream import CopyStream, check_stream


class Kernels:
    """The entries of the kernel.

    Args:
        driver: with the device's context.
        image: machine code for the device, of ``kernel_nvrtc.compiled``.
        memory: gives ``uint8`` ``[bytes]`` on the device.

    Raises:
        TransferError: the driver refuses the image, for instance that of another architecture.
    """

    def __init__(self, driver: Driver, image: bytes, memory: Callable[[int], torch.Tensor]) -> None:
        self.driver = driver
        self._memory = memory
        self._module = ctypes.c_void_p()
        where = f"loading the gather kernel of {len(image)} bytes"
        text = ctypes.create_string_buffer(image)
        driver.call("cuModuleLoadData", ctypes.byref(self._module), text, where=where)

    def function(self, word_bytes: int) -> int:
        """The entry for words of this many bytes.

        Raises:
            TransferError: the image has no such entry.
        """
        function = ctypes.c_void_p()
        name = entry(word_bytes)
        self.driver.call(
            "cuModuleGetFunction",
            ctypes.byref(function),
            self._module,
            name.encode(),
            where=f"looking for {name}",
        )
        return function.value or 0

    def on_device(self, numbers: npt.NDArray[np.int64]) -> torch.Tensor:
        """A copy of these numbers in device memory, complete on return."""
        flat = np.ascontiguousarray(numbers).view(np.uint8).ravel()
        memory = self._memory(len(flat))
        memory.copy_(torch.from_numpy(flat))  # pageable memory: torch waits for the copy
        return memory

    def launch(
        self,
        function: int,
        grid: tuple[int, int, int],
        operation: npt.NDArray[np.int64],
        stream: CopyStream,
        where: str,
    ) -> None:
        """Begin one launch. The driver has read ``operation`` on return.

        Args:
            function: of ``function``.
            grid: of ``Geometry.grid``.
            operation: of ``kernel_block.operation``.
            stream: that it is ordered on.
            where: begins the message of an error.

        Raises:
            TransferError: it was refused.
        """
        check_stream(stream.handle, where)
        parameters = (ctypes.c_void_p * 1)(operation.ctypes.data)
        code = self.driver.code(
            "cuLaunchKernel", function, *grid, THREADS, 1, 1, 0, stream.handle, parameters, None
        )
        if code:
            detail = f" of {grid[2]} pages with {grid[1]} runs each"
            raise self.driver.error(code, "cuLaunchKernel", where, detail)


def load_kernels(
    driver: Driver, capability: tuple[int, int], memory: Callable[[int], torch.Tensor]
) -> Kernels | str:
    """The kernel, compiled for a device and loaded, or why there is none.

    Args:
        driver: with the device's context.
        capability: of the device.
        memory: gives ``uint8`` ``[bytes]`` on the device.
    """
    try:
        return Kernels(driver, compiled(capability), memory)
    except (KernelError, TransferError) as error:
        return str(error)
