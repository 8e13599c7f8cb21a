"""Page-locking for ``host/pinning.py``, by the driver's own calls."""

from lmc_grouped.transfer.cuda import abi
from lmc_grouped.transfer.cuda.driver import Driver


class CudaRegistrar:
    """A ``HostRegistrar``: answers the driver's codes, and raises nothing."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    def register(self, address: int, size_bytes: int) -> int:
        """Page-lock a range for all devices, and map it for them; the driver's code."""
        flags = abi.HOST_REGISTER_PORTABLE | abi.HOST_REGISTER_DEVICE_MAP
        return self._driver.code("cuMemHostRegister", address, size_bytes, flags)

    def unregister(self, address: int) -> int:
        """Let go of the range registered at this address; the driver's code."""
        return self._driver.code("cuMemHostUnregister", address)

    def clear_error(self) -> None:
        """Nothing to forget.

        A call of the driver leaves its error in its result and nowhere else. It is
        ``cudaHostRegister``, the runtime's call, that leaves one behind for torch to
        find after a later kernel; that call is not made.
        """
