"""What the fake driver's calls do: contexts, streams, registered memory, copies."""

import ctypes
import itertools
import random
from typing import Any

import torch

from tests.transfer.fake_streams import Policy, Streams

INVALID_VALUE, INVALID_CONTEXT, NOT_READY = 1, 201, 600
SOURCE_ANY_ORDER = 3
NO_INDEX = 2**64 - 1


class FakeDevice:
    """One device, whose memory is host memory.

    Args:
        policy: which stream goes on.
    """

    def __init__(self, policy: Policy = min) -> None:
        self.streams = Streams(policy)
        self.context: int | None = 0xC0
        self.attributes = {91: 1, 75: 7, 76: 0}
        self.device_ranges: list[tuple[int, int]] = []
        self.registered: dict[int, int] = {}
        self.batches: list[list[tuple[int, int, int]]] = []
        """Per batch its copies: target, source, bytes."""
        self.attributes_seen: set[tuple[int, int]] = set()
        """Source order and flags of batches."""
        self.is_eager = False
        """Whether the device has done everything when the host asks for the first time."""
        self.fault = 0
        """The error that every call answers once the device has met a bad copy."""
        self._fault_at_copy: tuple[int, int] | None = None
        self._copied = itertools.count(1)
        self._random = random.Random(5)

    def device(self, *tensors: torch.Tensor) -> None:
        """Take the memory of these tensors for the device's."""
        for tensor in tensors:
            storage = tensor.untyped_storage()
            self.device_ranges.append((storage.data_ptr(), storage.nbytes()))

    def fault_at_copy(self, number: int, code: int = 700) -> None:
        """Have this copy fail when the device comes to it, as a bad address does."""
        self._fault_at_copy = number, code

    # Devices and contexts.

    def _cuDeviceGet(self, ordinal: Any, number: int) -> int:
        ordinal[0] = number
        return 0

    def _cuDeviceGetAttribute(self, value: Any, attribute: int, device: int) -> int:
        if attribute not in self.attributes:
            return INVALID_VALUE
        value[0] = self.attributes[attribute]
        return 0

    def _cuDevicePrimaryCtxRetain(self, context: Any, device: int) -> int:
        context[0] = 0xC1
        return 0

    def _cuCtxGetCurrent(self, context: Any) -> int:
        context[0] = self.context
        return 0

    def _cuCtxSetCurrent(self, context: int | None) -> int:
        self.context = context
        return 0

    # Streams and events.

    def _cuStreamCreate(self, stream: Any, flags: int) -> int:
        if flags != 1:  # a blocking stream is ordered with the default stream by itself
            return INVALID_VALUE
        stream[0] = self.streams.new_stream()
        return 0

    def _cuStreamSynchronize(self, stream: int | None) -> int:
        queue = self.streams.queues[stream or 0]
        self.streams.run_until(lambda: not queue)
        return self.fault

    def _cuStreamWaitEvent(self, stream: int | None, event: int, flags: int) -> int:
        self.streams.wait(stream or 0, event)
        return 0

    def _cuEventCreate(self, event: Any, flags: int) -> int:
        event[0] = self.streams.new_event()
        return 0

    def _cuEventRecord(self, event: int, stream: int | None) -> int:
        self.streams.record(event, stream or 0)
        return 0

    def _cuEventQuery(self, event: int) -> int:
        if self.is_eager:
            self.streams.run_all()
        return self.fault or (0 if self.streams.has_reached(event) else NOT_READY)

    def _cuEventSynchronize(self, event: int) -> int:
        self.streams.run_until(lambda: self.streams.has_reached(event))
        return self.fault

    # Memory.

    def _cuMemHostRegister(self, address: int, size: int, flags: int) -> int:
        if any(address < a + n and a < address + size for a, n in self.registered.items()):
            return 712  # already registered
        self.registered[address] = size
        return 0

    def _cuMemHostUnregister(self, address: int) -> int:
        return 0 if self.registered.pop(address, None) else 713

    def _cuPointerGetAttribute(self, value: Any, attribute: int, address: int) -> int:
        kind = self._kind(address, 1)
        if attribute != 2 or kind is None:
            return INVALID_VALUE
        value[0] = 1 if kind == "host" else 2
        return 0

    def _kind(self, address: int, size: int) -> str | None:
        """Whose memory a range is, if it lies within one allocation or one registration."""

        def holds(start: int, length: int) -> bool:
            return start <= address and address + size <= start + length

        if any(holds(*r) for r in self.device_ranges):
            return "device"
        return "host" if any(holds(*r) for r in self.registered.items()) else None

    # Copies.

    def _cuMemcpyAsync(self, target: int, source: int, size: int, stream: int | None) -> int:
        if not self._is_allowed(target, source, size):
            return INVALID_VALUE
        self.streams.enqueue(stream or 0, lambda: self._copy(target, source, size))
        return 0

    def _cuMemcpyBatchAsync(
        self, targets: Any, sources: Any, sizes: Any, count: int, attributes: Any,
        first_copies: Any, kinds: int, fail_index: Any, stream: int | None,
    ) -> int:  # fmt: skip
        fail_index[0] = NO_INDEX
        if not count or kinds != 1 or first_copies[0]:
            return INVALID_VALUE
        given = attributes[0]
        hints = (given.src.type, given.src.id, given.dst.type, given.dst.id)
        self.attributes_seen.add((given.order, given.flags))
        if given.order not in (1, 2, 3) or any(hints) or given.flags > 1 or not stream:
            fail_index[0] = 0
            return INVALID_VALUE
        copies = [(targets[i], sources[i], sizes[i]) for i in range(count)]
        self.batches.append(copies)
        for index, copy in enumerate(copies):
            if not self._is_allowed(*copy):
                fail_index[0] = index
                return INVALID_VALUE
        early = {
            copy: ctypes.string_at(copy[1], copy[2])
            for copy in copies
            if given.order == SOURCE_ANY_ORDER  # the driver may read at once
        }

        def run() -> None:
            self._random.shuffle(copies)
            for copy in copies:
                self._copy(*copy, early.get(copy))

        self.streams.enqueue(stream, run)
        return 0

    def _is_allowed(self, target: int, source: int, size: int) -> bool:
        kinds = {self._kind(target, size), self._kind(source, size)}
        return size > 0 and kinds == {"device", "host"}

    def _copy(self, target: int, source: int, size: int, early: bytes | None = None) -> None:
        if self._fault_at_copy and next(self._copied) >= self._fault_at_copy[0]:
            self.fault = self._fault_at_copy[1]
        if not self.fault:
            ctypes.memmove(target, early or source, size)
