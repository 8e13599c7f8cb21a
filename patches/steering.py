"""Keep LMCache's server from copying with operations that this GPU cannot run.

Without them LMCache falls back to torch operations without stopping. Where the server
drives the copies, which is its default on CUDA, those are not ordered with the engine's
streams; where the engine drives them, they are.
"""

import logging
import os
from collections.abc import Callable

from lmc_grouped.adapters import lmcache_device, lmcache_ops
from lmc_grouped.adapters.lmcache_device import MODE_VARIABLE
from lmc_grouped.adapters.lmcache_ops import Extension, ExtensionError
from lmc_grouped.host import devices
from lmc_grouped.host.devices import Driver, DriverError
from patches.base import LOGGER

logger = logging.getLogger(LOGGER)

ENGINE_DRIVEN = "engine_driven"
CUDA_BACKEND = "cuda"
"""From LMCache 0.5.4 on another backend brings operations of its own."""


def steer(
    *,
    find_driver: Callable[[], Driver] = devices.find,
    find_extension: Callable[[], Extension] = lmcache_ops.installed,
    is_loaded: Callable[[Extension], bool] = lmcache_ops.is_loaded,
) -> str | None:
    """Have the engine drive the copies where LMCache's operations cannot run; says so once.

    To be called after LMCache was imported: what it then has loaded is all it will have.
    A mode that the user has set is left as it is, with a warning.

    Returns:
        Why the operations cannot run; None where they can, where no CUDA device is visible,
        and where the engine drives already.
    """
    mode = os.environ.get(MODE_VARIABLE)
    backend = lmcache_device.selected()
    if backend not in ("", CUDA_BACKEND) or (mode or "").strip().lower() == ENGINE_DRIVEN:
        return None
    try:
        driver = find_driver()
    except DriverError as error:
        logger.debug("LMCache's operations are not asked about: %s", error)
        return None
    reason = _why_not(driver, find_extension, is_loaded)
    if reason is None:
        return None
    if mode is None:
        os.environ[MODE_VARIABLE] = ENGINE_DRIVEN
        logger.warning(
            "%s is set to %s: %s. That mode takes models of one KV-cache group; the module path "
            "lmc_grouped.connector takes every model",
            MODE_VARIABLE,
            ENGINE_DRIVEN,
            reason,
        )
    else:
        logger.warning(
            "%s=%s is left as it was set, but copies may be wrong: %s. Set %s, or use the module "
            "path lmc_grouped.connector",
            MODE_VARIABLE,
            mode,
            reason,
            ENGINE_DRIVEN,
        )
    return reason


def _why_not(
    driver: Driver,
    find_extension: Callable[[], Extension],
    is_loaded: Callable[[Extension], bool],
) -> str | None:
    """One answer for all visible devices, because all ranks must copy the same way."""
    if not driver.devices:
        return None
    try:
        extension = find_extension()
    except ExtensionError as error:
        return str(error)
    for device in driver.devices:
        answer = extension.code_for(device.capability)
        if not answer.can_run:
            return f"device {device.index} is a {device.name}, and {answer.reason}"
    if not is_loaded(extension):
        return f"LMCache could not load {extension.module}, and falls back to torch operations"
    return None
