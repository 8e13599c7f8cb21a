"""Handing copies to the driver: in batches, or one by one."""

import ctypes
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from lmc_grouped.transfer.copies import Copies
from lmc_grouped.transfer.cuda import abi
from lmc_grouped.transfer.cuda.driver import Driver
from lmc_grouped.transfer.cuda.merging import Addresses
from lmc_grouped.transfer.cuda.stream import CopyStream, check_stream

BATCH_COPIES = 1024
"""Most copies of one batch. A batch of 51,828 crashed inside a driver of the 580 family
(https://github.com/vllm-project/vllm/issues/49276); at a thousand what the call itself costs
is spread thin enough. An estimate, not measured on a GPU."""


@dataclass(frozen=True, slots=True)
class Directed:
    """Copies with their direction."""

    targets: Addresses
    sources: Addresses
    sizes_bytes: Addresses

    @classmethod
    def of(cls, copies: Copies, *, to_host: bool) -> "Directed":
        """Copies out of the engine's cache, or into it; contiguous, as the driver reads them."""
        device = np.ascontiguousarray(copies.device_addresses, dtype=np.int64)
        host = np.ascontiguousarray(copies.host_addresses, dtype=np.int64)
        sizes = np.ascontiguousarray(copies.sizes_bytes, dtype=np.int64)
        return cls(host, device, sizes) if to_host else cls(device, host, sizes)

    def describe(self, index: int) -> str:
        """One copy, for messages."""
        return (
            f" of copy {index} of {len(self.sizes_bytes)} ({self.sizes_bytes[index]} bytes "
            f"from 0x{self.sources[index]:x} to 0x{self.targets[index]:x})"
        )


class Submit(Protocol):
    """Begins copies on a stream."""

    def __call__(self, stream: CopyStream, copies: Directed, where: str) -> None:
        """Begin all copies.

        Raises:
            TransferError: one was refused; earlier ones may have been begun.
        """
        ...


def submit_batches(stream: CopyStream, copies: Directed, where: str) -> None:
    """Begin the copies with ``cuMemcpyBatchAsync``, which needs a driver of 12.8.

    Sources are read in stream order, out and in. For stores it has to be so: the source is
    what the forward pass before wrote. For loads the driver could be let off, for the slot was
    complete before the load was planned; nobody has measured here what that would gain. The
    copies are marked as meant to run beside compute, which the driver may ignore.

    Raises:
        TransferError: a batch was refused, with the copy that the driver blames.
    """
    check_stream(stream.handle, where)
    attributes = abi.CopyAttributes(
        source_access_order=abi.SOURCE_IN_STREAM_ORDER, flags=abi.PREFER_OVERLAP_WITH_COMPUTE
    )
    first_of_attributes = ctypes.c_size_t(0)
    for first in range(0, len(copies.sizes_bytes), BATCH_COPIES):
        count = min(BATCH_COPIES, len(copies.sizes_bytes) - first)
        blamed = ctypes.c_size_t(abi.NO_INDEX)
        code = stream.driver.code(
            "cuMemcpyBatchAsync",
            _from(copies.targets, first),
            _from(copies.sources, first),
            _from(copies.sizes_bytes, first),
            count,
            ctypes.byref(attributes),
            ctypes.byref(first_of_attributes),
            1,
            ctypes.byref(blamed),
            stream.handle,
        )
        if code:
            detail = (
                copies.describe(first + blamed.value)
                if blamed.value < count
                else f" of copies {first} to {first + count - 1} of {len(copies.sizes_bytes)}"
            )
            raise stream.driver.error(code, "cuMemcpyBatchAsync", where, detail)


def submit_runs(stream: CopyStream, copies: Directed, where: str) -> None:
    """Begin the copies with one ``cuMemcpyAsync`` each, which every driver has.

    Raises:
        TransferError: a copy was refused, and which.
    """
    check_stream(stream.handle, where)
    driver: Driver = stream.driver
    rows = zip(
        copies.targets.tolist(), copies.sources.tolist(), copies.sizes_bytes.tolist(), strict=True
    )
    for index, (target, source, size_bytes) in enumerate(rows):
        if code := driver.code("cuMemcpyAsync", target, source, size_bytes, stream.handle):
            raise driver.error(code, "cuMemcpyAsync", where, copies.describe(index))


def _from(addresses: Addresses, first: int) -> int:
    """Where an element of a contiguous array lies, as the driver wants arrays."""
    return addresses.ctypes.data + first * addresses.itemsize
