"""A group-aware LMCacheConnectorV1 for hybrid models in vLLM.

Importing this package loads nothing else; the connector that vLLM loads is
the module ``lmc_grouped.connector``.
"""

__version__ = "0.1.0"
