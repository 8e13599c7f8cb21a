"""A device of LMCache 0.5.4 and newer for GPUs that its extension has no code for.

Entry point ``cuda-sm70`` of the group ``lmcache.device_plugins``; nothing but LMCache
imports this module. LMCache does so in every process, and refuses to start where a
device type has two available devices: this one is available only where
``LMCACHE_DEVICE_BACKEND`` names it. Otherwise LMCache chooses as if it were not there.

Not accepted on GPU: its operations have run on CPU tensors only.
"""

from typing import Any

from lmc_grouped.adapters import lmcache_device
from lmc_grouped.adapters.lmcache_device import BACKEND_NAME, MODE_VARIABLE, cuda_module


class CudaSm70Spec(cuda_module().CudaDeviceSpec):  # type: ignore[misc]
    """CUDA as LMCache knows it, with operations of ours and copies made by the engine."""

    @property
    def backend_name(self) -> str:
        """What ``LMCACHE_DEVICE_BACKEND`` must say."""
        return BACKEND_NAME

    @property
    def ops_cls(self) -> Any:
        """Our operations."""
        from lmc_grouped.adapters.lmcache_device_ops import CudaSm70Ops

        return CudaSm70Ops

    @property
    def ipc_wrapper_cls(self) -> Any:
        """Refused: 0.5.4 and 0.5.5 let the server drive copies on CUDA unless told otherwise.

        Raises:
            ValueError: always.
        """
        raise ValueError(
            f"the device {BACKEND_NAME} does not let LMCache's server drive copies; "
            f"set {MODE_VARIABLE}=engine_driven"
        )

    def is_available(self) -> bool:
        """Whether the user named it and torch has CUDA."""
        return lmcache_device.is_selected() and bool(super().is_available())

    def is_lmcache_driven_available(self) -> bool:
        """No: 0.5.6 asks this, and lets the engine copy."""
        return False

    def is_handle_transfer_available(self) -> bool:
        """No: 0.5.4 and 0.5.5 ask this before they let the server copy by order."""
        return False
