"""The file tier: pages on disk, one store per namespace and rank."""

from lmc_grouped.host.disk.directory import StoreInUseError
from lmc_grouped.host.disk.format import DiskError
from lmc_grouped.host.disk.quota import Quota
from lmc_grouped.host.disk.reading import ReadOutcome
from lmc_grouped.host.disk.stats import DiskStats, GroupUse, PutAnswer, StoredPage, WriteEnd
from lmc_grouped.host.disk.tier import DiskTier

__all__ = [
    "DiskError",
    "DiskStats",
    "DiskTier",
    "GroupUse",
    "PutAnswer",
    "Quota",
    "ReadOutcome",
    "StoreInUseError",
    "StoredPage",
    "WriteEnd",
]
