"""The streams that a worker's copies run on, ordered with the engine's by events.

Nothing here makes the host wait except ``EventTicket.wait`` and a refused copy.
"""

import ctypes
from collections.abc import Callable

from lmc_grouped.transfer.copies import TransferError
from lmc_grouped.transfer.cuda import abi
from lmc_grouped.transfer.cuda.driver import Driver


class CopyStream:
    """Copies of one direction, one after the other.

    Raises:
        TransferError: the stream cannot be made.
    """

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        stream = ctypes.c_void_p()
        driver.call("cuStreamCreate", ctypes.byref(stream), abi.STREAM_NON_BLOCKING)
        self.handle: int = stream.value or 0
        check_stream(self.handle, "making a copy stream")
        self.has_begun = False
        """Whether copies were begun since somebody was last made to wait for them."""
        self._idle_events: list[int] = []

    def begin(self, where: str, submit: Callable[[], None]) -> "EventTicket":
        """Have ``submit`` begin copies on this stream, and mark their end.

        Raises:
            TransferError: something was refused. What had been begun before it has ended
                by then, so that nothing is written later into pages given to others.
        """
        self.has_begun = True
        try:
            submit()
            event = self._idle_events.pop() if self._idle_events else new_event(self.driver)
            self.driver.call("cuEventRecord", event, self.handle, where=where)
        except RuntimeError as error:  # a TransferError, or torch's own
            text = str(error)
            message = text if text.startswith(where) else f"{where}: {text}"
            try:
                self.wait()
            except TransferError as second:
                message += f"; {second}"
            raise TransferError(message) from error
        return EventTicket(self, event, where)

    def wait(self) -> None:
        """Return when everything begun on this stream has ended.

        Raises:
            TransferError: it failed.
        """
        where = "waiting for a copy stream"
        self.driver.call("cuStreamSynchronize", self.handle, where=where)

    def release(self, event: int) -> None:
        """The event marks nothing any more."""
        self._idle_events.append(event)


class CudaStreams:
    """The streams of one worker, and their order with the engine's.

    Stores and loads have one each, so that the engine, which waits for stores, does not
    wait for loads that lie before them. Its methods are called by the engine's thread.

    Args:
        driver: whose calls the copies are.
        compute: the engine's stream of the moment; 0 is the legacy default stream, which is
            a stream like any other to events.

    Raises:
        TransferError: a stream or an event cannot be made.
    """

    def __init__(self, driver: Driver, compute: Callable[[], int]) -> None:
        self.driver = driver
        self._compute = compute
        self.stores = CopyStream(driver)
        self.loads = CopyStream(driver)
        self._computed = new_event(driver)
        self._stored = new_event(driver)

    def of(self, *, to_host: bool) -> CopyStream:
        """The stream of one direction."""
        return self.stores if to_host else self.loads

    def after_compute(self) -> None:
        """Copies begun from now on start after all that the engine has submitted.

        What a store reads has been written then, and what a load overwrites has been read,
        by the engine and by the stores begun so far.

        Raises:
            TransferError: the order cannot be kept; nothing may be copied.
        """
        call, where = self.driver.call, "ordering copies behind the engine"
        call("cuEventRecord", self._computed, self._compute(), where=where)
        for stream in (self.stores, self.loads):
            call("cuStreamWaitEvent", stream.handle, self._computed, 0, where=where)
        if self.stores.has_begun:
            call("cuEventRecord", self._stored, self.stores.handle, where=where)
            call("cuStreamWaitEvent", self.loads.handle, self._stored, 0, where=where)

    def before_compute(self) -> None:
        """All that the engine submits from now on starts after the stores begun so far.

        It may overwrite their sources. Loads are not waited for: their blocks are nobody's
        until the ticket is done, and work submitted after the host has seen that comes later.

        Raises:
            TransferError: the order cannot be kept; the engine must not go on.
        """
        if not self.stores.has_begun:
            return
        call, where = self.driver.call, "ordering the engine behind the stores"
        call("cuEventRecord", self._stored, self.stores.handle, where=where)
        call("cuStreamWaitEvent", self._compute(), self._stored, 0, where=where)
        self.stores.has_begun = False


class EventTicket:
    """Copies that have ended when an event of their stream has."""

    def __init__(self, stream: CopyStream, event: int, where: str) -> None:
        self._stream = stream
        self._event = event
        self._where = where
        self._is_open = True
        self._failure: TransferError | None = None

    def is_done(self) -> bool:
        """Whether all bytes have arrived; does not wait.

        Raises:
            TransferError: they never will.
        """
        return self._has_ended("cuEventQuery")

    def wait(self) -> None:
        """Return when all bytes have arrived.

        Raises:
            TransferError: they never will.
        """
        self._has_ended("cuEventSynchronize")

    def _has_ended(self, call: str) -> bool:
        if self._is_open:
            driver = self._stream.driver
            code = driver.code(call, self._event)
            if code == abi.NOT_READY:
                return False
            if code:
                self._failure = driver.error(code, call, self._where)
            self._is_open = False
            self._stream.release(self._event)
        if self._failure is not None:
            raise self._failure
        return True


def operation_name(group_id: int, pages: int, *, to_host: bool) -> str:
    """What is being done, for messages."""
    return f"group {group_id}: {'storing' if to_host else 'loading'} {pages} pages"


def new_event(driver: Driver) -> int:
    """An event without a time.

    Raises:
        TransferError: it cannot be made.
    """
    event = ctypes.c_void_p()
    driver.call("cuEventCreate", ctypes.byref(event), abi.EVENT_DISABLE_TIMING)
    return event.value or 0


def check_stream(handle: int, where: str) -> None:
    """Refuse the NULL stream: batches do not run on it, and it is ordered with everything.

    Raises:
        TransferError: it is the NULL stream.
    """
    if not handle:
        raise TransferError(
            f"{where}: the NULL stream was given; copies need a stream of their own"
        )
