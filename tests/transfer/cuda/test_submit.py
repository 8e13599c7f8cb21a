"""Batches of bounded size, and a named error for each refusal; never a wrong byte."""

import re

import pytest
import torch

from lmc_grouped.transfer.copies import TransferError
from lmc_grouped.transfer.cuda import kernel_block, submit
from lmc_grouped.transfer.cuda.stream import CudaStreams, check_stream
from lmc_grouped.transfer.cuda.submit import submit_batches, submit_runs
from tests.transfer.cuda.lab import BLOCKS, RUNGS, Lab, ids, new_lab, scattered
from tests.transfer.cuda.shapes import SHAPES
from tests.transfer.fake_cuda import FakeCuda

COPY_CALL = {
    "batch": "cuMemcpyBatchAsync",
    "runs": "cuMemcpyAsync",
    "staged": "cuMemcpyBatchAsync",
    "staged over runs": "cuMemcpyAsync",
    "kernel": "cuLaunchKernel",
}


@pytest.mark.parametrize("pages", [1, 3, 4, 5, 7, 8, 9])
def test_a_batch_holds_at_most_so_many_copies(pages, monkeypatch):
    monkeypatch.setattr(submit, "BATCH_COPIES", 8)
    lab = new_lab()  # two runs to a page
    way = lab.rung("batch")
    before = [lab.block(b) for b in range(BLOCKS)]
    blocks, slots = scattered(pages)
    way.store(blocks, slots).wait()
    counts = [len(batch) for batch in lab.fake.batches]
    assert sum(counts) == 2 * pages
    assert counts == [8] * (2 * pages // 8) + [2 * pages % 8] * (2 * pages % 8 > 0)
    assert [lab.slot(s) for s in slots] == [before[b] for b in blocks]
    lab.fill(0)
    way.load(blocks, slots).wait()
    assert [lab.block(b) for b in blocks] == [before[b] for b in blocks]
    lab.finish()


def test_by_default_a_batch_holds_a_thousand_copies_and_keeps_stream_order():
    views = SHAPES["one byte"](2500, torch.device("cpu"))
    lab = Lab([v.repeat(1, 2)[:, :1] for v in views])
    copies = submit.Directed.of(
        lab.plan.copies(lab.pool, ids(*range(2400)), ids(*([0, 2] * 1200))), to_host=True
    )
    submit_batches(lab.streams.stores, copies, "here")
    assert [len(batch) for batch in lab.fake.batches] == [1024, 1024, 352]
    assert lab.fake.attributes_seen == {(1, 1)}
    lab.finish()


@pytest.mark.parametrize("blamed", [0, 3, 7])
def test_a_refused_batch_names_the_copy_that_the_driver_blames(blamed, monkeypatch):
    monkeypatch.setattr(submit, "BATCH_COPIES", 8)
    lab = new_lab()
    lab.fake.fail("cuMemcpyBatchAsync", 1, at=2, index=blamed)
    blocks, slots = scattered(9)
    with pytest.raises(TransferError) as caught:
        lab.rung("batch").store(blocks, slots)
    page, run = divmod(8 + blamed, 2)
    source = lab.views[run].data_ptr() + int(blocks[page]) * 64
    target = lab.pages[divmod(int(slots[page]), 5)].ctypes.data + 64 * run
    assert str(caught.value) == (
        f"group 3: storing 9 pages: cuMemcpyBatchAsync of copy {8 + blamed} of 18 (64 bytes from "
        f"0x{source:x} to 0x{target:x}) failed with 1 (CUDA_ERROR_INVALID_VALUE: invalid argument)"
    )
    lab.finish()


def test_a_refused_batch_without_a_culprit_names_its_copies(monkeypatch):
    monkeypatch.setattr(submit, "BATCH_COPIES", 8)
    lab = new_lab()
    lab.fake.fail("cuMemcpyBatchAsync", 2, at=2)
    with pytest.raises(
        TransferError, match=r"of copies 8 to 15 of 18 failed with 2 \(CUDA_ERROR_O"
    ):
        lab.rung("batch").store(*scattered(9))
    lab.finish()


@pytest.mark.parametrize("at", [1, 2, 5])
def test_a_refused_run_is_named(at):
    lab = new_lab()
    lab.fake.fail("cuMemcpyAsync", 700, at=at)
    text = rf"loading 4 pages: cuMemcpyAsync of copy {at - 1} of 8 \(64 bytes from .* with 700 "
    with pytest.raises(TransferError, match=text):
        lab.rung("runs").load(*scattered(4))
    lab.finish()


@pytest.mark.parametrize("rung", RUNGS)
@pytest.mark.parametrize("direction", ["store", "load"])
def test_what_was_begun_before_a_refusal_has_ended_when_the_error_is_raised(
    rung, direction, monkeypatch
):
    monkeypatch.setattr(submit, "BATCH_COPIES", 2)
    monkeypatch.setattr(kernel_block, "PAGES_PER_LAUNCH", 2)
    lab = new_lab()
    way = lab.rung(rung, staging_pages=1)
    lab.fake.fail(COPY_CALL[rung], 2, at=3)
    with pytest.raises(TransferError, match="failed with 2"):
        getattr(way, direction)(*scattered(6))
    assert not any(lab.fake.streams.queues.values())
    way.store(ids(1), ids(0)).wait()
    assert lab.slot(0) == lab.block(1)
    lab.finish()


@pytest.mark.parametrize("rung", RUNGS)
@pytest.mark.parametrize("call", ["cuEventCreate", "cuEventRecord"])
def test_an_end_that_cannot_be_marked_is_an_error_of_the_operation(rung, call):
    lab = new_lab()
    way = lab.rung(rung)
    lab.fake.fail(call, 700)
    with pytest.raises(TransferError, match=rf"group 3: storing 2 pages: .*{call} failed with 700"):
        way.store(ids(1, 2), ids(0, 1))
    assert not any(lab.fake.streams.queues.values())
    lab.finish()


@pytest.mark.parametrize(
    ("call", "at"),
    [
        ("cuEventRecord", 1),
        ("cuStreamWaitEvent", 1),
        ("cuStreamWaitEvent", 2),
        ("cuEventRecord", 2),
        ("cuStreamWaitEvent", 3),
    ],
)
def test_an_order_that_cannot_be_kept_is_raised(call, at):
    lab = new_lab()
    lab.rung("batch").store(ids(1), ids(0))
    lab.fake.fail(call, 700, at=at)
    with pytest.raises(TransferError, match=f"ordering copies behind the engine: {call} failed"):
        lab.streams.after_compute()


def test_a_stream_that_cannot_be_waited_for_is_told_beside_the_first_error():
    lab = new_lab()
    lab.fake.fail("cuMemcpyBatchAsync", 2)
    lab.fake.fail("cuStreamSynchronize", 700)
    text = r"cuMemcpyBatchAsync .* failed with 2 .*; waiting for a copy stream: cuStreamSync.* 700"
    with pytest.raises(TransferError, match=text):
        lab.rung("batch").store(ids(1, 2), ids(0, 1))
    lab.finish()


@pytest.mark.parametrize("asked", ["is_done", "wait"])
@pytest.mark.parametrize("rung", RUNGS)
def test_a_copy_that_fails_on_the_device_is_an_error_of_its_ticket_for_ever(rung, asked):
    lab = new_lab()
    ticket = lab.rung(rung).load(ids(1, 2, 3), ids(4, 1, 2))
    lab.fake.fault_at_copy(2)
    lab.fake.streams.run_all()
    for _ in range(2):
        with pytest.raises(TransferError, match=r"group 3: loading 3 pages: cuEvent.* with 700 "):
            getattr(ticket, asked)()
    lab.finish()


def test_a_failed_order_before_compute_is_raised_and_asked_for_again():
    lab = new_lab()
    lab.rung("batch").store(ids(1), ids(0))
    lab.fake.fail("cuStreamWaitEvent", 700)
    with pytest.raises(TransferError, match="ordering the engine behind the stores: cuStreamWait"):
        lab.streams.before_compute()
    lab.fake.calls.clear()
    lab.streams.before_compute()
    assert len(lab.fake.named("cuStreamWaitEvent")) == 1
    lab.finish()


@pytest.mark.parametrize("submitting", [submit_batches, submit_runs])
def test_the_null_stream_is_refused_before_any_call(submitting):
    lab = new_lab()
    copies = submit.Directed.of(lab.plan.copies(lab.pool, ids(1), ids(0)), to_host=True)
    lab.streams.stores.handle = 0
    lab.fake.calls.clear()
    with pytest.raises(TransferError, match="here: the NULL stream was given"):
        submitting(lab.streams.stores, copies, "here")
    assert lab.fake.calls == []
    check_stream(1, "a stream is not refused")
    lab.finish()


@pytest.mark.parametrize("call", ["cuStreamCreate", "cuEventCreate"])
def test_a_stream_that_cannot_be_made_stops_the_start(call):
    lab = new_lab()
    lab.fake.fail(call, 2)
    with pytest.raises(TransferError, match=rf"starting CUDA: {call} failed with 2"):
        CudaStreams(lab.driver, lambda: 0)


def test_no_context_is_an_error_of_the_operation():
    lab = new_lab()
    way = lab.rung("batch")
    lab.fake.context = None
    with pytest.raises(TransferError, match=r"failed with 201 \(CUDA_ERROR_INVALID_CON"):
        way.store(ids(1), ids(0))
    lab.finish()


def test_a_driver_without_batches_refuses_the_batch_rung_where_it_is_used():
    lab = new_lab(fake=FakeCuda(12040))
    way = lab.rung("batch")
    with pytest.raises(
        TransferError, match=re.escape("the CUDA driver (12.4) has no cuMemcpyBatch")
    ):
        way.store(ids(1), ids(0))
    lab.rung("runs").store(ids(1), ids(0)).wait()
    assert lab.slot(0) == lab.block(1)
    lab.finish()
