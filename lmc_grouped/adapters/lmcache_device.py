"""The name of our device for LMCache, whether a user asked for it, and LMCache's own CUDA device.

Imports nothing of LMCache by itself.
"""

import importlib
import importlib.util
import os
from typing import Any

BACKEND_NAME = "cuda-sm70"
BACKEND_VARIABLE = "LMCACHE_DEVICE_BACKEND"
MODE_VARIABLE = "LMCACHE_MP_TRANSFER_MODE"
# 0.5.6 moved its devices into a package of their own.
_CUDA_PACKAGES = ("lmcache.v1.platform.devices.cuda", "lmcache.v1.platform.cuda")


def selected() -> str:
    """The device that the user named, read as LMCache reads it; empty: none."""
    return os.environ.get(BACKEND_VARIABLE, "").strip().lower()


def is_selected() -> bool:
    """Whether the user named this device."""
    return selected() == BACKEND_NAME


def cuda_module(name: str = "") -> Any:
    """LMCache's own CUDA package, or a module of it.

    Raises:
        ImportError: this release has none where 0.5.4 to 0.5.6 have it.
    """
    for package in _CUDA_PACKAGES:
        if _exists(package):
            return importlib.import_module(f"{package}.{name}" if name else package)
    raise ImportError(f"LMCache has none of {', '.join(_CUDA_PACKAGES)}; 0.5.4 to 0.5.6 have")


def _exists(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:  # a parent of it is missing
        return False
