"""What copies need of one CUDA device: its driver, and torch on it."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from lmc_grouped.transfer.copies import TransferError
from lmc_grouped.transfer.cuda import abi
from lmc_grouped.transfer.cuda.driver import Driver
from lmc_grouped.transfer.cuda.stream import CopyStream
from lmc_grouped.transfer.cuda.torch_work import ID_ROOM, IdRing, Run, TorchLane, on_stream
from lmc_grouped.transfer.ladder import DeviceFacts


@dataclass(frozen=True, slots=True)
class CudaDevice:
    """A device whose driver answers."""

    driver: Driver
    facts: DeviceFacts
    compute: Callable[[], int]
    """The stream that the engine submits to at the moment of the call."""
    run_on: Callable[[CopyStream], Run]
    memory: Callable[[int], torch.Tensor]
    """``uint8`` ``[bytes]`` on the device."""
    pinned_memory: Callable[[int], torch.Tensor]
    """``uint8`` ``[bytes]`` on the host, page-locked."""

    def lane(self, stream: CopyStream) -> TorchLane:
        """torch's work on a stream."""
        run = self.run_on(stream)
        host, device = (make(8 * ID_ROOM) for make in (self.pinned_memory, self.memory))
        ids = IdRing(host.view(torch.int64), device.view(torch.int64), run, stream.wait)
        return TorchLane(stream, run, ids)


def open_device(device: torch.device) -> CudaDevice | DeviceFacts:
    """The device, or what is known of it where its driver does not answer.

    That is so with a ROCm build of torch, which calls its devices ``cuda`` too.
    """
    try:
        driver = Driver()
        number = torch.cuda.current_device() if device.index is None else device.index
        driver.use_context(number)
        facts = device_facts(driver, number)
    except TransferError as error:
        return DeviceFacts(device.type, driver_missing=str(error))
    return CudaDevice(
        driver,
        facts,
        compute=lambda: torch.cuda.current_stream(device).cuda_stream,
        run_on=lambda stream: on_stream(stream, device),
        memory=lambda size_bytes: torch.empty(size_bytes, dtype=torch.uint8, device=device),
        pinned_memory=lambda size_bytes: torch.empty(
            size_bytes, dtype=torch.uint8, pin_memory=True
        ),
    )


def device_facts(driver: Driver, number: int) -> DeviceFacts:
    """What the driver says of the device with this number.

    Raises:
        TransferError: the driver does not know it.
    """
    return DeviceFacts(
        "cuda",
        capability=(
            driver.attribute(number, abi.COMPUTE_CAPABILITY_MAJOR),
            driver.attribute(number, abi.COMPUTE_CAPABILITY_MINOR),
        ),
        driver_version=driver.version,
        has_host_addresses=bool(
            driver.attribute(number, abi.CAN_USE_HOST_POINTER_FOR_REGISTERED_MEMORY)
        ),
    )
