"""The connector vLLM loads: ``kv_connector_module_path: lmc_grouped.connector``."""

from lmc_grouped.adapters.engine import check_version

# Before anything is imported from vLLM that an older one does not have.
check_version()

from lmc_grouped.connector.facade import LMCacheConnectorV1  # noqa: E402

__all__ = ["LMCacheConnectorV1"]
