"""The driver's functions: resolved by version, every result read, every refusal explained."""

import ctypes
import re

import pytest

from lmc_grouped.transfer.copies import TransferError
from lmc_grouped.transfer.cuda import abi
from lmc_grouped.transfer.cuda.driver import CudaError, Driver
from tests.transfer import fake_device
from tests.transfer.fake_cuda import ABI, Attributes, FakeCuda


def test_symbols_are_asked_for_by_the_version_that_brought_the_form_used_here():
    fake = FakeCuda(version=13000)
    assert Driver(fake).has("cuMemcpyBatchAsync")
    assert fake.asked_versions == {name: symbol.version for name, symbol in abi.SYMBOLS.items()}
    assert fake.asked_versions["cuMemcpyBatchAsync"] == 12080
    assert len(abi.SYMBOLS["cuMemcpyBatchAsync"].arguments) == 9


@pytest.mark.parametrize("name", [*abi.SYMBOLS, *abi.BOOTSTRAP])
def test_every_prototype_has_the_widths_of_the_documented_one(name):
    symbol = {**abi.SYMBOLS, **abi.BOOTSTRAP}[name]
    version, arguments = ABI[name]
    assert symbol.version == version
    assert [ctypes.sizeof(a) for a in symbol.arguments] == [ctypes.sizeof(a) for a in arguments]


def test_the_attributes_of_a_batch_have_the_documented_layout():
    fields = zip(abi.CopyAttributes._fields_, Attributes._fields_, strict=True)
    for (ours, _), (theirs, _) in fields:
        assert getattr(abi.CopyAttributes, ours).offset == getattr(Attributes, theirs).offset
    assert ctypes.sizeof(abi.CopyAttributes) == ctypes.sizeof(Attributes) == 24


@pytest.mark.parametrize(
    ("version", "has_batches"), [(12080, True), (12070, False), (11080, False)]
)
def test_an_old_driver_serves_without_batches_and_says_so_when_asked(version, has_batches):
    driver = Driver(FakeCuda(version))
    assert driver.version == version
    assert driver.has("cuMemcpyBatchAsync") == has_batches
    if not has_batches:
        with pytest.raises(TransferError, match=r"has no cuMemcpyBatchAsync, .* came with 12\.8"):
            driver.code("cuMemcpyBatchAsync")


def test_the_older_way_of_resolving_is_used_where_there_is_no_newer_one():
    driver = Driver(FakeCuda(missing=("cuGetProcAddress_v2",)))
    assert driver.has("cuMemcpyBatchAsync")


def test_a_driver_that_cannot_resolve_is_refused():
    with pytest.raises(TransferError, match=r"\(11\.2\) is older than 11\.3 and has no cuGetProc"):
        Driver(FakeCuda(version=11020))


@pytest.mark.parametrize("name", [name for name, s in abi.SYMBOLS.items() if s.is_required])
def test_a_missing_symbol_is_named(name):
    with pytest.raises(TransferError, match=rf"the CUDA driver \(12\.8\) has no {name}; install"):
        Driver(FakeCuda(missing=(name,)))


@pytest.mark.parametrize("name", ["cuInit", "cuDriverGetVersion"])
def test_a_library_that_is_no_driver_is_refused(name):
    with pytest.raises(TransferError, match=rf"libcuda.so.1 has no {name}"):
        Driver(FakeCuda(missing=(name,)))


def test_a_machine_without_a_driver_says_so(monkeypatch):
    monkeypatch.setattr("lmc_grouped.transfer.cuda.driver.LIBRARY", "libno-cuda-here.so.1")
    with pytest.raises(
        TransferError, match=r"libno-cuda-here\.so\.1 cannot be loaded, so there is"
    ):
        Driver()


def test_a_driver_that_does_not_start_gives_code_and_name():
    fake = FakeCuda()
    fake.fail("cuInit", 100)
    with pytest.raises(CudaError, match=r"starting CUDA: cuInit failed with 100") as caught:
        Driver(fake)
    assert caught.value.code == 100


def test_an_error_has_place_call_code_and_the_drivers_words():
    driver = Driver(FakeCuda())
    message = str(driver.error(700, "cuEventQuery", "group 3: storing 4 pages", " of copy 2"))
    assert message == (
        "group 3: storing 4 pages: cuEventQuery of copy 2 failed with 700 "
        "(CUDA_ERROR_ILLEGAL_ADDRESS: an illegal memory access was encountered)"
    )
    assert str(driver.error(12345, "cuEventQuery", "here")).endswith("failed with 12345 (no name)")


def test_the_context_of_the_thread_is_used_as_it_is():
    fake = FakeCuda()
    Driver(fake).use_context(0)
    assert fake.context == 0xC0
    assert not fake.named("cuDevicePrimaryCtxRetain")


def test_a_thread_without_a_context_takes_the_devices_primary_one():
    fake = FakeCuda()
    fake.context = None
    Driver(fake).use_context(3)
    assert fake.context == 0xC1
    assert fake.named("cuDevicePrimaryCtxRetain") == [("cuDevicePrimaryCtxRetain", 3)]


@pytest.mark.parametrize("call", ["cuDeviceGet", "cuDevicePrimaryCtxRetain", "cuCtxSetCurrent"])
def test_no_context_to_be_had_is_an_error(call):
    fake = FakeCuda()
    fake.context = None
    driver = Driver(fake)
    fake.fail(call, 2)
    text = f"this thread has no CUDA context, and taking that of device 3: {call} failed with 2 ("
    with pytest.raises(CudaError, match=re.escape(text)):
        driver.use_context(3)


def test_attributes_of_a_device_are_read_and_their_errors_too():
    driver = Driver(FakeCuda())
    assert driver.attribute(0, abi.COMPUTE_CAPABILITY_MAJOR) == 7
    with pytest.raises(CudaError, match="asking device 0: cuDeviceGetAttribute failed with 1 "):
        driver.attribute(0, 4711)
    assert fake_device.INVALID_VALUE == abi.INVALID_VALUE
