"""vLLM's general plugin: called once in every process of an engine.

``LMC_GROUPED_PATCHES``: ``auto`` (default), ``none``, or names such as
``P1,P2``. Nothing of LMCache is imported here: patches are applied when its
multi-process connector is, and an engine without it never hears of them.
With ``auto`` that connector is also kept off copies that the GPU cannot do.

``LMC_GROUPED_TAKEOVER=1``: a connector called ``LMCacheConnectorV1`` without a
module path is ours, for deployments that cannot write a module path.
"""

import logging
import os

from patches.base import LOGGER
from patches.hooks import when_imported
from patches.registry import AUTO, apply, chosen

logger = logging.getLogger(LOGGER)

PATCHES_VARIABLE, TAKEOVER_VARIABLE = "LMC_GROUPED_PATCHES", "LMC_GROUPED_TAKEOVER"
CONNECTOR_MODULE = "lmcache.integration.vllm.lmcache_mp_connector"
TAKEN_NAME, OUR_MODULE = "LMCacheConnectorV1", "lmc_grouped.connector"


class SettingError(ValueError):
    """An environment variable that cannot be read."""


def register() -> None:
    """The entry point.

    Raises:
        UnknownPatch: ``LMC_GROUPED_PATCHES`` names something that is no patch.
        SettingError: ``LMC_GROUPED_TAKEOVER`` is neither 0 nor 1.
    """
    names = os.environ.get(PATCHES_VARIABLE) or AUTO
    if chosen(names):
        when_imported(CONNECTOR_MODULE, lambda: _apply(names))
    if _takeover_wanted():
        take_over()


def _apply(names: str) -> None:
    from lmc_grouped.adapters.engine import log_like_the_engine

    log_like_the_engine()
    apply(names)
    if names.strip().lower() == AUTO:
        from patches.steering import steer

        steer()


def _takeover_wanted() -> bool:
    value = os.environ.get(TAKEOVER_VARIABLE) or "0"
    if value not in ("0", "1"):
        raise SettingError(f"{TAKEOVER_VARIABLE} is {value!r}; allowed are 0 and 1")
    return value == "1"


def take_over() -> None:
    """Let vLLM resolve the plain connector name to ours; says so in one log line."""
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

    from lmc_grouped.adapters.engine import log_like_the_engine

    log_like_the_engine()
    # The factory refuses to register a name twice, and has no way to take one back.
    KVConnectorFactory._registry.pop(TAKEN_NAME, None)
    KVConnectorFactory.register_connector(TAKEN_NAME, OUR_MODULE, TAKEN_NAME)
    logger.info(
        "%s=1: the connector %s without a module path is %s.%s",
        TAKEOVER_VARIABLE,
        TAKEN_NAME,
        OUR_MODULE,
        TAKEN_NAME,
    )
