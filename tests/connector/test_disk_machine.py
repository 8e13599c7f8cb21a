"""The connector under random load with a file tier: slow disks, lost pages, damage, restarts.

The same promises as without one: every byte that comes back is right on every
rank, and in the end nothing is held. The disks move only when the machine lets
them, so that a failing run can be repeated.
"""

import tempfile
from concurrent.futures import wait
from pathlib import Path
from random import Random
from threading import Event
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule

from lmc_grouped.host.disk.groupfile import GroupFile
from tests.connector.disk_lab import DiskEngine
from tests.connector.scripted import Request
from tests.connector.test_connector_machine import RANKS, ConnectorMachine

RANK = st.integers(0, RANKS - 1)
SEED = st.integers(0, 2**32 - 1)


class DiskMachine(ConnectorMachine):
    """Host memory is small, the disk is not, and the disk is late."""

    engine: DiskEngine

    def make_engine(self, specs: list[Any], **options: Any) -> DiskEngine:
        if not hasattr(self, "patch"):
            self.patch = pytest.MonkeyPatch()
            self.directory = tempfile.TemporaryDirectory()
            self.gate = Event()
            self._gate("read_pages")
            self._gate("write_pages")
        self.options: tuple[list[Any], dict[str, Any]] = specs, options
        return DiskEngine(Path(self.directory.name), *specs, **options)

    def _gate(self, name: str) -> None:
        real, gate = getattr(GroupFile, name), self.gate

        def late(file: GroupFile, *arguments: Any) -> Any:
            assert gate.wait(60)
            return real(file, *arguments)

        self.patch.setattr(GroupFile, name, late)

    def ask(self, request: Request) -> int | None:
        return self.engine.connector.get_num_new_matched_tokens(request, 0)[0]

    def start_alone(self, request: Request) -> None:
        engine = self.engine
        self.gate.set()
        restored = engine.ask_until_answered(request)
        engine.allocate(request, restored)
        if restored:
            engine.step()
            engine.announce(request, 0)
        request.num_computed_tokens = restored
        self.catch_up()

    @rule()
    def catch_up(self) -> None:
        """The disks do all that they were asked for; nobody has been told yet."""
        self.gate.set()
        for worker in self.engine.workers:
            disk = worker.worker_half.disk
            disk.tier.flush()
            wait([outcomes for _, _, outcomes in disk._reads])
        self.gate.clear()

    @rule()
    def memory_is_lost(self) -> None:
        """As after a flood, but at once: everything is on disk only."""
        self.engine.index.clear()

    @rule(rank=RANK, seed=SEED)
    def a_disk_loses_a_page(self, rank: int, seed: int) -> None:
        keys = self._keys(rank)
        if keys:
            self.engine.tiers[rank].drop([Random(seed).choice(keys)])
            self.catch_up()

    @rule(rank=RANK, seed=SEED)
    def a_page_is_damaged(self, rank: int, seed: int) -> None:
        keys = self._keys(rank)
        if not keys:
            return
        key = Random(seed).choice(keys)
        store = self.engine.tiers[rank]._store
        page_bytes = store.files[key[0]].page_bytes
        start = store.catalog.entries[key].slot * page_bytes
        with (store.directory / f"group_{key[0]}.pages").open("r+b") as file:
            file.seek(start)
            (byte,) = file.read(1)
            file.seek(start)
            file.write(bytes([byte ^ 1]))

    @rule()
    def restart(self) -> None:
        """A clean stop and a start with empty memory, when nobody is there."""
        if self.waiting or self.running or self.loading:
            return
        self.deliver()
        self.gate.set()
        self.engine.close()
        self.gate.clear()
        self.engine = self.make_engine(self.options[0], **self.options[1])

    def _keys(self, rank: int) -> list[tuple[int, bytes]]:
        pages = self.engine.tiers[rank].stored_pages()
        return sorted((page.group_id, page.block_hash) for page in pages)

    @invariant()
    def what_waits_is_counted(self) -> None:
        writes = self.engine.disk.writes
        held = sum(writes._page_bytes[group_id] for group_id, _ in writes._writing)
        assert held == writes.writing_bytes

    def teardown(self) -> None:
        if not hasattr(self, "engine"):
            return
        self.deliver()
        self.gate.set()
        for request in self.waiting + self.running:
            self.engine.finish(request)
        self.waiting, self.running = [], []
        promotions = self.engine.disk.promotions
        self.engine.until(lambda: not promotions._reading)
        self.engine.settle()
        assert not self.engine.disk._written
        assert not self.engine.disk._read
        assert not self.engine.disk._lost
        super().teardown()
        self.engine.close()
        self.patch.undo()
        self.directory.cleanup()


TestDiskMachine = DiskMachine.TestCase
TestDiskMachine.settings = settings(
    max_examples=25,
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
