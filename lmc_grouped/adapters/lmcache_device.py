"""The name of our device for LMCache, and whether a user asked for it; imports nothing."""

import os

BACKEND_NAME = "cuda-sm70"
BACKEND_VARIABLE = "LMCACHE_DEVICE_BACKEND"
MODE_VARIABLE = "LMCACHE_MP_TRANSFER_MODE"


def is_selected() -> bool:
    """Whether the user named this device; read as LMCache reads it."""
    return os.environ.get(BACKEND_VARIABLE, "").strip().lower() == BACKEND_NAME
