"""What the driver refuses is an error with its code; nothing here makes the device fault."""

import numpy as np
import pytest
import torch

from lmc_grouped.transfer.copies import TransferError
from lmc_grouped.transfer.cuda import abi
from lmc_grouped.transfer.cuda.driver import CudaError
from lmc_grouped.transfer.cuda.registrar import CudaRegistrar
from lmc_grouped.transfer.cuda.stream import CopyStream
from lmc_grouped.transfer.cuda.submit import Directed, submit_batches, submit_runs
from lmc_grouped.transfer.ladder import BATCH, refusal
from tests.gpu import machine

ALREADY_REGISTERED, NOT_REGISTERED, INVALID_DEVICE = 712, 713, 101


def test_a_pool_that_was_not_registered_is_refused(worker):
    views = [torch.zeros(4, 4096, dtype=torch.uint8, device=machine.DEVICE)]
    pool = np.zeros((1, 4, 4096), dtype=np.uint8)
    with pytest.raises(TransferError, match=r"group 3: byte 0 of its pool .* is not page-locked"):
        worker.transfers(views).rungs({3: pool})


def test_copies_on_the_null_stream_are_refused_by_us():
    stream = CopyStream(machine.device().driver)
    stream.handle = 0
    nothing = np.zeros(0, dtype=np.int64)
    for submit in (submit_batches, submit_runs):
        with pytest.raises(TransferError, match="the NULL stream was given"):
            submit(stream, Directed(nothing, nothing, nothing), "here")


def test_a_batch_that_the_driver_refuses_has_its_code(host, monkeypatch):
    if (why_not := refusal(BATCH, machine.device().facts)) is not None:
        machine.report.append(f"a refused batch was not tried: {why_not}")
        return
    monkeypatch.setattr(abi, "SOURCE_IN_STREAM_ORDER", 0)  # no order is no valid order
    cache = torch.zeros(4096, dtype=torch.uint8, device=machine.DEVICE)
    memory = host.pinned(4096)
    rows = (memory.data_ptr(), cache.data_ptr(), memory.numel())
    copies = Directed(*(np.array([number]) for number in rows))
    with pytest.raises(CudaError, match=r"cuMemcpyBatchAsync of cop.* failed with 1 ") as caught:
        submit_batches(CopyStream(machine.device().driver), copies, "here")
    assert caught.value.code == abi.INVALID_VALUE


def test_registrations_answer_the_drivers_codes_and_leave_no_error_behind(host):
    registrar = CudaRegistrar(machine.device().driver)
    memory = host.pinned(1 << 20)
    assert registrar.register(memory.data_ptr(), memory.numel()) == ALREADY_REGISTERED
    unknown = torch.zeros(1 << 20, dtype=torch.uint8)
    codes = (NOT_REGISTERED, abi.INVALID_VALUE)
    assert registrar.unregister(unknown.data_ptr()) in codes
    registrar.clear_error()
    total = torch.ones(1000, device=machine.DEVICE).sum()  # torch is not blamed for it
    assert total.item() == 1000


def test_a_device_that_does_not_exist_is_an_error():
    with pytest.raises(CudaError, match="asking device 999: cuDeviceGet failed with 101") as caught:
        machine.device().driver.attribute(999, abi.COMPUTE_CAPABILITY_MAJOR)
    assert caught.value.code == INVALID_DEVICE
