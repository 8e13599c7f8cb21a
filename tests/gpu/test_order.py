"""Copies keep their order with a stream that is made to be late; each wait is needed."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from lmc_grouped.transfer.copies import Rung
from lmc_grouped.transfer.cuda.stream import CopyStream, CudaStreams
from tests.gpu import machine

BLOCKS, RUNS, RUN_BYTES = 8, 4, 65_536
OLD, WRITTEN, REUSED, STORED = 0x11, 0x77, 0x99, 0x42
IDS, SLOT, OTHER = (np.array([number]) for number in (5, 2, 4))


class Group:
    """A group whose pool is page-locked, and the engine's stream of the moment."""

    def __init__(self, worker: machine.Worker) -> None:
        self.cache = torch.full(
            (BLOCKS, RUNS, 2 * RUN_BYTES), OLD, dtype=torch.uint8, device=machine.DEVICE
        )
        self.pool = worker.pinned(BLOCKS * RUNS * RUN_BYTES).view(1, BLOCKS, RUNS * RUN_BYTES)
        transfers = worker.transfers([self.cache[..., :RUN_BYTES]])
        assert transfers.stream is not None
        self.streams: CudaStreams = transfers.stream
        self.rung: Rung = transfers.rungs({3: self.pool.numpy()})[3]
        # Kernels are loaded when they are first used, and that can make streams wait.
        for move in (self.rung.store, self.rung.load):
            move(IDS, SLOT).wait()
        self.cache.fill_(OLD)
        self.block(5)
        self.cache[5, :, :RUN_BYTES].clone()
        late(self.streams.stores)
        torch.cuda.synchronize(machine.DEVICE)

    def slot(self, slot: int) -> set[int]:
        return set(self.pool[0, slot].unique().tolist())

    def block(self, block: int) -> set[int]:
        torch.cuda.synchronize(machine.DEVICE)
        return set(self.cache[block, :, :RUN_BYTES].unique().tolist())


def late(stream: CopyStream) -> None:
    """Keep a copy stream busy."""
    with torch.cuda.stream(torch.cuda.ExternalStream(stream.handle, device=machine.DEVICE)):
        machine.busy()


@pytest.fixture(params=[False, True], ids=["engine on the NULL stream", "on its own stream"])
def group(request: pytest.FixtureRequest, worker: machine.Worker) -> Iterator[Group]:
    if not request.param:
        yield Group(worker)
        return
    with torch.cuda.stream(torch.cuda.Stream(machine.DEVICE)):
        yield Group(worker)


def store_behind_a_late_pass(group: Group) -> set[int]:
    machine.busy()
    group.cache.fill_(WRITTEN)
    group.streams.after_compute()
    group.rung.store(IDS, SLOT).wait()
    return group.slot(2)


def store_late_before_a_pass(group: Group) -> set[int]:
    group.cache.fill_(WRITTEN)
    torch.cuda.synchronize(machine.DEVICE)
    late(group.streams.stores)
    ticket = group.rung.store(IDS, SLOT)
    group.streams.before_compute()
    group.cache.fill_(REUSED)
    ticket.wait()
    return group.slot(2)


def load_behind_a_late_reader(group: Group) -> set[int]:
    group.pool.fill_(STORED)
    machine.busy()
    read = group.cache[5, :, :RUN_BYTES].clone()
    group.streams.after_compute()
    group.rung.load(IDS, OTHER).wait()
    assert group.block(5) == {STORED}
    return set(read.unique().tolist())


def load_into_a_block_being_stored(group: Group) -> set[int]:
    group.pool.fill_(STORED)
    late(group.streams.stores)
    ticket = group.rung.store(IDS, SLOT)
    group.streams.after_compute()
    group.rung.load(IDS, OTHER).wait()
    ticket.wait()
    assert group.block(5) == {STORED}
    return group.slot(2)


def test_copies_and_the_engine_wait_for_each_other(group):
    assert store_behind_a_late_pass(group) == {WRITTEN}
    assert store_late_before_a_pass(group) == {WRITTEN}
    group.cache.fill_(OLD)
    assert load_behind_a_late_reader(group) == {OLD}
    group.cache.fill_(OLD)
    torch.cuda.synchronize(machine.DEVICE)
    assert load_into_a_block_being_stored(group) == {OLD}


def test_without_the_wait_for_the_engine_copies_come_too_early(group, monkeypatch):
    monkeypatch.setattr(CudaStreams, "after_compute", lambda self: None)
    assert store_behind_a_late_pass(group) == {OLD}
    torch.cuda.synchronize(machine.DEVICE)
    group.cache.fill_(OLD)
    torch.cuda.synchronize(machine.DEVICE)
    assert load_behind_a_late_reader(group) == {STORED}
    group.cache.fill_(OLD)
    torch.cuda.synchronize(machine.DEVICE)
    assert load_into_a_block_being_stored(group) == {STORED}


def test_without_the_engines_wait_a_store_reads_what_the_next_pass_wrote(group, monkeypatch):
    monkeypatch.setattr(CudaStreams, "before_compute", lambda self: None)
    assert store_late_before_a_pass(group) == {REUSED}


def test_the_host_does_not_wait_for_copies(group):
    late(group.streams.loads)
    ticket = group.rung.load(IDS, OTHER)
    assert not ticket.is_done()
    ticket.wait()
    assert ticket.is_done()
