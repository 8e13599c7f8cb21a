"""The connector hooks that differ between engines, as a base class of the connector.

vLLM asks a worker once for what was received and what failed, by request: its
scheduler stops on failed *blocks* of a model with several groups. ReVolta asks
for both apart and knows failed blocks only; a request with one of them in any of
its groups is recomputed from its start.
"""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1 import base

from lmc_grouped.adapters import engine


@dataclass(frozen=True, slots=True)
class Receives:
    """Loads that are over."""

    requests: set[str] = field(default_factory=set)
    """All of them, well or badly."""
    failed: set[str] = field(default_factory=set)
    failed_blocks: set[int] = field(default_factory=set)
    """Blocks that were given to the failed ones for their load, and to nobody else."""


class _Hooks:
    @abstractmethod
    def take_receives(self) -> Receives:
        """What this worker has received since the last call."""

    @abstractmethod
    def accept_ranks(self, reports: Mapping[tuple[int, int], Any]) -> None:
        """All workers' reports, by ``(pipeline stage, tensor-parallel rank)``."""


class VllmHooks(_Hooks):
    """vLLM 0.30 to 0.33."""

    def get_transfer_results(self, finished_req_ids: set[str]) -> Any:
        """Loads that are over; a failed one is in both sets."""
        receives = self.take_receives()
        return base.KVConnectorTransferResults(
            finished_recving=receives.requests, failed_recving=receives.failed
        )

    def set_xfer_handshake_metadata_pp_aware(self, metadata: Mapping[tuple[int, int], Any]) -> None:
        """All workers have registered: compare their tables, open the pools."""
        self.accept_ranks(metadata)


class RevoltaHooks(_Hooks):
    """ReVolta 0.1.4."""

    _failed_blocks: frozenset[int] = frozenset()

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:
        """Loads that are over, well or badly; nothing is ever sent."""
        receives = self.take_receives()
        self._failed_blocks |= receives.failed_blocks
        return None, receives.requests or None

    def get_block_ids_with_load_errors(self) -> set[int]:
        """Blocks of the failed ones; the engine asks after ``get_finished``."""
        failed, self._failed_blocks = self._failed_blocks, frozenset()
        return set(failed)

    def set_xfer_handshake_metadata(self, metadata: Mapping[int, Any]) -> None:
        """The same, of an engine that tells its workers apart by tensor-parallel rank only."""
        self.accept_ranks({(0, rank): report for rank, report in metadata.items()})


def bases() -> tuple[type, ...]:
    """What the connector inherits for the installed engine.

    ``SupportsVmmSafeTransfers``: device memory is only ever addressed while a copy
    runs and never registered anywhere, so its pages may be remapped between copies.

    Raises:
        EngineError: it has the hooks of no engine we know.
    """
    if engine.surface().name == "vLLM":
        return (VllmHooks,)
    return (RevoltaHooks, base.SupportsVmmSafeTransfers)
