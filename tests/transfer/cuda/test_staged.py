"""Gathered pages: bounded room on the device, chunks and ids that do not mix, torch's errors."""

from dataclasses import replace

import pytest

from lmc_grouped.transfer.copies import TransferError
from lmc_grouped.transfer.cuda.stream import CopyStream
from tests.transfer.cuda.lab import BLOCKS, SLOTS, ids, new_lab, scattered


@pytest.mark.parametrize("staging_pages", [1, 2, 3, 7, SLOTS, 3 * SLOTS])
def test_staging_is_bounded_and_chunks_do_not_mix(staging_pages):
    lab = new_lab("layers inside heads")
    way = lab.rung("staged", staging_pages=staging_pages)
    before = [lab.block(b) for b in range(BLOCKS)]
    blocks, slots = scattered(SLOTS)
    way.store(blocks, slots).wait()
    assert [lab.slot(s) for s in slots] == [before[b] for b in blocks]
    assert len(lab.fake.batches) == -(-SLOTS // staging_pages)
    staged = [source for batch in lab.fake.batches for _, source, _ in batch]
    assert max(staged) - min(staged) < staging_pages * lab.plan.page_bytes
    lab.fill(0)
    way.load(blocks, slots).wait()
    assert [lab.block(b) for b in blocks] == [before[b] for b in blocks]
    lab.finish()


def test_torch_failing_on_the_copy_stream_is_an_error_of_the_operation():
    def out_of_memory(work: object) -> None:
        raise RuntimeError("CUDA out of memory")

    lab = new_lab()
    lab.device = replace(lab.device, run_on=lambda stream: out_of_memory)
    way = lab.rung("staged")
    with pytest.raises(TransferError, match="group 3: storing 2 pages: CUDA out of memory"):
        way.store(ids(1, 2), ids(0, 1))
    assert not any(lab.fake.streams.queues.values())


def test_ids_are_not_overwritten_before_the_device_has_read_them(monkeypatch):
    monkeypatch.setattr("lmc_grouped.transfer.cuda.device.ID_ROOM", 5)
    lab = new_lab("layers inside heads")
    way = lab.rung("staged", staging_pages=SLOTS)
    before = [lab.block(b) for b in range(BLOCKS)]
    blocks, slots = scattered(12)
    tickets = [way.store(blocks[i : i + 3], slots[i : i + 3]) for i in range(0, 12, 3)]
    for ticket in tickets:
        ticket.wait()
    assert [lab.slot(s) for s in slots] == [before[b] for b in blocks]
    way.store(*scattered(12)).wait()  # more than there is room for
    assert [lab.slot(s) for s in slots] == [before[b] for b in blocks]
    lab.finish()


def test_without_the_wait_ids_would_be_overwritten(monkeypatch):
    monkeypatch.setattr("lmc_grouped.transfer.cuda.device.ID_ROOM", 5)
    monkeypatch.setattr(CopyStream, "wait", lambda self: None)
    lab = new_lab("layers inside heads")
    way = lab.rung("staged", staging_pages=SLOTS)
    before = [lab.block(b) for b in range(BLOCKS)]
    blocks, slots = scattered(12)
    for i in range(0, 12, 3):
        way.store(blocks[i : i + 3], slots[i : i + 3])
    lab.finish()
    assert [lab.slot(s) for s in slots] != [before[b] for b in blocks]
