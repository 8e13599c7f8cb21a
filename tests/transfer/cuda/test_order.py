"""Copies and the engine's work keep their order on the device, and each wait is needed."""

import pytest
import torch

from lmc_grouped.transfer.cuda.stream import CudaStreams
from tests.transfer.cuda.lab import BLOCKS, RUNGS, Lab, ids
from tests.transfer.cuda.shapes import SHAPES
from tests.transfer.fake_cuda import FakeCuda
from tests.transfer.fake_streams import first_of, shuffled

COMPUTE = [False, True]
COMPUTE_IDS = ["engine on the NULL stream", "engine on its own stream"]


def new_lab(has_own_compute: bool) -> Lab:
    views = SHAPES["two outer dimensions"](BLOCKS, torch.device("cpu"))
    return Lab(views, FakeCuda(), has_own_compute=has_own_compute)


def race(lab: Lab, winner: str) -> None:
    stores, loads = lab.streams.stores.handle, lab.streams.loads.handle
    order = {
        "stores": first_of(stores, loads),
        "loads": first_of(loads, stores),
        "engine": first_of(lab.compute),
        "random": shuffled(1),
    }
    lab.fake.streams.policy = order[winner]


WINNERS = ["stores", "loads", "engine", "random"]


def store_what_a_forward_pass_writes(lab: Lab, rung: str) -> bytes:
    """What lies in the slot; ``0x77`` in all its bytes is right."""
    way = lab.rung(rung)
    lab.forward(lambda: lab.fill(0x77))
    lab.streams.after_compute()
    ticket = way.store(ids(5), ids(2))
    lab.streams.before_compute()
    lab.forward(lambda: lab.fill(0x99))  # the next pass reuses the block
    lab.finish()
    assert ticket.is_done()
    return lab.slot(2)


def load_behind_a_forward_pass(lab: Lab, rung: str) -> bytes:
    """What that pass still read of the block; ``0x11`` in all its bytes is right."""
    way = lab.rung(rung)
    lab.pages[:] = 0x77
    lab.fill(0x11)
    seen: list[bytes] = []
    lab.forward(lambda: seen.append(lab.block(5)))
    lab.streams.after_compute()
    way.load(ids(5), ids(2))
    lab.finish()
    assert set(lab.block(5)) == {0x77}
    return seen[0]


def load_into_a_block_being_stored(lab: Lab, rung: str) -> bytes:
    """What the slot of the store holds; ``0x11`` in all its bytes is right."""
    way = lab.rung(rung)
    lab.pages[:] = 0x77
    lab.fill(0x11)
    lab.streams.after_compute()
    way.store(ids(5), ids(2))
    lab.streams.after_compute()
    way.load(ids(5), ids(4))
    lab.finish()
    assert set(lab.block(5)) == {0x77}
    return lab.slot(2)


@pytest.mark.parametrize("winner", WINNERS)
@pytest.mark.parametrize("own", COMPUTE, ids=COMPUTE_IDS)
@pytest.mark.parametrize("rung", RUNGS)
def test_a_store_reads_what_the_pass_before_wrote_and_the_next_pass_waits(rung, own, winner):
    lab = new_lab(own)
    race(lab, winner)
    assert set(store_what_a_forward_pass_writes(lab, rung)) == {0x77}


@pytest.mark.parametrize("winner", WINNERS)
@pytest.mark.parametrize("own", COMPUTE, ids=COMPUTE_IDS)
@pytest.mark.parametrize("rung", RUNGS)
def test_a_load_waits_for_those_who_still_read_the_block(rung, own, winner):
    lab = new_lab(own)
    race(lab, winner)
    assert set(load_behind_a_forward_pass(lab, rung)) == {0x11}
    lab = new_lab(own)
    race(lab, winner)
    assert set(load_into_a_block_being_stored(lab, rung)) == {0x11}


@pytest.mark.parametrize("rung", RUNGS)
def test_without_the_wait_for_the_engine_copies_come_too_early(rung, monkeypatch):
    monkeypatch.setattr(CudaStreams, "after_compute", lambda self: None)
    for winner, copy, right in (
        ("stores", store_what_a_forward_pass_writes, 0x77),
        ("loads", load_behind_a_forward_pass, 0x11),
        ("loads", load_into_a_block_being_stored, 0x11),
    ):
        lab = new_lab(True)
        race(lab, winner)
        assert set(copy(lab, rung)) != {right}


@pytest.mark.parametrize("rung", RUNGS)
def test_without_the_engines_wait_a_store_reads_what_the_next_pass_wrote(rung, monkeypatch):
    monkeypatch.setattr(CudaStreams, "before_compute", lambda self: None)
    lab = new_lab(True)
    race(lab, "engine")
    assert set(store_what_a_forward_pass_writes(lab, rung)) == {0x99}


def test_a_source_read_out_of_stream_order_would_store_old_bytes(monkeypatch):
    monkeypatch.setattr("lmc_grouped.transfer.cuda.abi.SOURCE_IN_STREAM_ORDER", 3)
    lab = new_lab(True)
    race(lab, "random")
    assert set(store_what_a_forward_pass_writes(lab, "batch")) != {0x77}


def test_the_engine_is_not_held_by_a_load():
    lab = new_lab(True)
    race(lab, "engine")
    ticket = lab.rung("batch").load(ids(5), ids(2))
    lab.streams.before_compute()
    seen: list[bool] = []
    lab.forward(lambda: seen.append(ticket.is_done()))
    lab.finish()
    assert seen == [False]
    assert ticket.is_done()


def test_the_calls_that_keep_the_order_are_these():
    lab = new_lab(True)
    way = lab.rung("batch")
    stores, loads = lab.streams.stores.handle, lab.streams.loads.handle
    lab.fake.calls.clear()
    lab.streams.after_compute()
    record, *waits = lab.fake.calls
    assert (record[0], record[2]) == ("cuEventRecord", lab.compute)
    assert waits == [("cuStreamWaitEvent", stream, record[1], 0) for stream in (stores, loads)]

    way.store(ids(5), ids(2))
    lab.fake.calls.clear()
    lab.streams.after_compute()
    *_, record, wait = lab.fake.calls
    assert (record[0], record[2]) == ("cuEventRecord", stores)
    assert wait == ("cuStreamWaitEvent", loads, record[1], 0)

    lab.fake.calls.clear()
    lab.streams.before_compute()
    record, wait = lab.fake.calls
    assert (record[0], record[2]) == ("cuEventRecord", stores)
    assert wait == ("cuStreamWaitEvent", lab.compute, record[1], 0)
    lab.finish()


def test_a_copy_is_followed_by_its_event_on_the_same_stream():
    lab = new_lab(True)
    way = lab.rung("runs")
    for begin, stream in ((way.store, lab.streams.stores), (way.load, lab.streams.loads)):
        lab.fake.calls.clear()
        begin(ids(5), ids(2))
        copies = lab.fake.named("cuMemcpyAsync")
        assert {call[-1] for call in copies} == {stream.handle}
        assert lab.fake.calls[-1][0] == "cuEventRecord"
        assert lab.fake.calls[-1][2] == stream.handle
    lab.finish()


def test_without_stores_the_engine_is_not_held():
    lab = new_lab(True)
    lab.fake.calls.clear()
    lab.streams.before_compute()
    assert lab.fake.calls == []
    lab.rung("batch").store(ids(5), ids(2)).wait()
    lab.streams.before_compute()
    lab.fake.calls.clear()
    lab.streams.before_compute()
    assert lab.fake.calls == []
    lab.finish()


def test_nothing_but_wait_makes_the_host_wait():
    lab = new_lab(True)
    ticket = lab.rung("batch").store(ids(5), ids(2))
    lab.streams.before_compute()
    assert not ticket.is_done()
    assert not lab.fake.named("cuStreamSynchronize")
    assert not lab.fake.named("cuEventSynchronize")
    ticket.wait()
    assert len(lab.fake.named("cuEventSynchronize")) == 1
    lab.finish()


def test_events_of_tickets_that_ended_are_used_again():
    lab = new_lab(True)
    way = lab.rung("runs")
    for slot in range(10):
        way.store(ids(slot + 1), ids(slot)).wait()
    assert len(lab.fake.named("cuEventCreate")) == 2 + 1  # two of the order, one of all tickets
    lab.finish()
