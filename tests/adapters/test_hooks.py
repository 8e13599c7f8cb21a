"""The hooks that differ between engines."""

from lmc_grouped.adapters import hooks
from lmc_grouped.adapters.hooks import Receives, RevoltaHooks, VllmHooks
from lmc_grouped.connector import LMCacheConnectorV1


class Received(RevoltaHooks):
    """A worker under ReVolta with these receives to report."""

    def __init__(self, *receives: Receives) -> None:
        self.receives = list(receives)
        self.reports = None

    def take_receives(self) -> Receives:
        return self.receives.pop(0) if self.receives else Receives()

    def accept_ranks(self, reports) -> None:
        self.reports = reports


def test_the_connector_has_the_hooks_of_the_installed_engine():
    assert hooks.bases() == (VllmHooks,)
    assert issubclass(LMCacheConnectorV1, VllmHooks)
    assert not issubclass(LMCacheConnectorV1, RevoltaHooks)


def test_revolta_hears_of_a_failed_load_by_its_blocks_once():
    worker = Received(Receives({"good", "bad"}, {"bad"}, {3, 4}))
    assert worker.get_finished(set()) == (None, {"good", "bad"})
    assert worker.get_block_ids_with_load_errors() == {3, 4}
    assert worker.get_finished(set()) == (None, None)
    assert worker.get_block_ids_with_load_errors() == set()


def test_revoltas_workers_are_all_of_the_first_pipeline_stage():
    worker = Received()
    worker.set_xfer_handshake_metadata({0: "a", 1: "b"})
    assert worker.reports == {(0, 0): "a", (0, 1): "b"}
