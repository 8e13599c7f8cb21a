"""Only page-locked pools are copied to and from, and pieces are cut between pages."""

import pytest
import torch

from lmc_grouped.transfer.copies import TransferError
from lmc_grouped.transfer.cuda.pinned import check_borders, check_pinned, span_bytes
from lmc_grouped.transfer.cuda.registrar import CudaRegistrar
from lmc_grouped.transfer.plan import HostPool
from tests.transfer.cuda.lab import BLOCKS, RUNGS, Lab
from tests.transfer.cuda.shapes import SHAPES, contiguous

CPU = torch.device("cpu")


@pytest.mark.parametrize("rung", RUNGS)
def test_a_pool_that_was_not_registered_is_refused(rung):
    lab = Lab(SHAPES["contiguous"](BLOCKS, CPU), is_pinned=False)
    with pytest.raises(TransferError, match=r"group 3: byte 0 of its pool of 2560 .*page-locked"):
        lab.rung(rung)
    lab.finish()


@pytest.mark.parametrize("missing", [0, 1, 3])
def test_one_piece_that_was_forgotten_is_noticed(missing):
    lab = Lab(contiguous(2**20)(2, CPU))
    first_asked = {0: 0, 1: 8 * 2**20, 3: 16 * 2**20}[missing]  # extents of 5 MiB, asked every 4
    assert CudaRegistrar(lab.driver).unregister(lab.extents[missing]) == 0
    with pytest.raises(TransferError, match=rf"byte {first_asked} of its pool"):
        check_pinned(lab.driver, 3, lab.pool)
    lab.finish()


def test_a_short_last_piece_is_noticed():
    lab = Lab(SHAPES["contiguous"](BLOCKS, CPU))
    lab.fake.registered[lab.extents[-1]] -= 1
    with pytest.raises(TransferError, match=r"byte 2559 of its pool of 2560 bytes"):
        check_pinned(lab.driver, 3, lab.pool)
    lab.finish()


def test_device_memory_is_no_pool():
    lab = Lab(SHAPES["one layer"](BLOCKS, CPU))
    pool = HostPool(lab.views[0].data_ptr(), 4, 4, 96 * 4, 96)
    with pytest.raises(TransferError, match="is not page-locked"):
        check_pinned(lab.driver, 3, pool)
    lab.finish()


def test_another_error_of_the_question_is_given_as_it_is():
    lab = Lab(SHAPES["contiguous"](BLOCKS, CPU))
    lab.fake.fail("cuPointerGetAttribute", 700)
    with pytest.raises(TransferError, match="its pool: cuPointerGetAttribute failed with 700"):
        check_pinned(lab.driver, 3, lab.pool)


@pytest.mark.parametrize("border", [1000 + 1, 1000 + 150, 1000 + 440 + 399])
def test_a_piece_that_begins_inside_a_page_is_refused(border):
    with pytest.raises(TransferError, match=rf"begins at 0x{border:x}, inside a page of 100 bytes"):
        check_borders(3, HostPool(1000, 12, 4, 440, 100), [1000, border])


def test_borders_between_pages_in_the_gap_of_an_extent_and_outside_are_taken():
    pool = HostPool(1000, 12, 4, 440, 100)
    assert span_bytes(pool) == 2 * 440 + 400
    given = [2280, 1420, 1440, 900, 1300, 1000, 99999]
    assert check_borders(3, pool, given).tolist() == [1300, 1420, 1440]
    assert span_bytes(HostPool(1000, 0, 4, 440, 100)) == 0


def test_a_registration_is_for_every_device_and_mapped():
    lab = Lab(SHAPES["contiguous"](BLOCKS, CPU), is_pinned=False)
    registrar = CudaRegistrar(lab.driver)
    address = lab.memory.ctypes.data
    assert registrar.register(address, lab.memory.nbytes) == 0
    assert lab.fake.named("cuMemHostRegister")[-1][1:] == (address, lab.memory.nbytes, 3)
    assert registrar.unregister(address) == 0
    assert lab.fake.registered == {}


def test_a_refused_registration_answers_the_drivers_code_and_raises_nothing():
    lab = Lab(SHAPES["contiguous"](BLOCKS, CPU), is_pinned=False)
    registrar = CudaRegistrar(lab.driver)
    lab.fake.fail("cuMemHostRegister", 2)
    assert registrar.register(lab.memory.ctypes.data, 4096) == 2
    registrar.clear_error()
    assert registrar.unregister(lab.memory.ctypes.data) == 713
    assert registrar.register(lab.memory.ctypes.data, 4096) == 0
    assert registrar.register(lab.memory.ctypes.data + 8, 4096) == 712
