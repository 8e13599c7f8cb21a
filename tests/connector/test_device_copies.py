"""The worker half with copies that a device makes beside the engine (a fake driver's)."""

from collections.abc import Callable

import pytest

from lmc_grouped.connector import worker
from lmc_grouped.host.pinning import PinningError
from lmc_grouped.transfer.build import Transfers, Views
from lmc_grouped.transfer.cuda import kernel_module, kernel_nvrtc
from lmc_grouped.transfer.ladder import LadderError
from tests.connector.scripted import ScriptedEngine
from tests.specs import full_spec, ring_spec, state_spec, window_spec
from tests.transfer.cuda.lab import fake_device
from tests.transfer.fake_cuda import FakeCuda

SPECS = (full_spec(32), window_spec(16, 40), ring_spec(), state_spec(64, state_bytes=200))
NewEngine = Callable[..., ScriptedEngine]


@pytest.fixture
def fake() -> FakeCuda:
    fake = FakeCuda()
    fake.is_eager = True
    return fake


@pytest.fixture
def on_device(fake: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> NewEngine:
    """Makes engines whose caches lie on the fake's device, copied by the way that is named."""

    device = fake_device(fake)

    def of(views: Views, forced: str | None, open_lmcache: object) -> Transfers:
        for layers in views.values():
            fake.device(*layers)
        return Transfers(views, forced, device)

    monkeypatch.setattr(worker.Transfers, "of", of)
    return lambda way, **more: ScriptedEngine(*SPECS, extra={"lmc_grouped.transfer": way}, **more)


@pytest.mark.parametrize("partition", ["static", "auto", "off"])
@pytest.mark.parametrize("way", ["batch", "runs", "kernel", "staged", "auto"])
def test_a_stored_prefix_comes_back_byte_for_byte(way, partition, on_device, fake, monkeypatch):
    monkeypatch.setattr(kernel_module, "compiled", lambda capability: b"\x7fELF")
    engine = on_device(way, partition=partition, units=400)
    engine.finish(engine.prefill("first", 300))
    engine.wipe()
    second = engine.request("second", 300)
    assert engine.start(second) == 256
    assert engine.wrong_pages(second, 256) == []
    assert fake.batches or fake.named("cuMemcpyAsync") or fake.launches
    assert fake.broken == []


def test_a_store_is_acknowledged_and_visible_only_when_the_device_has_made_it(on_device, fake):
    fake.is_eager = False
    engine = on_device("batch")
    first = engine.request("first", 300)
    engine.start(first)
    engine.compute(first, 256)
    waiting = engine.request("waiting", 300)
    assert engine.ask(waiting) == 0
    engine.step()
    assert engine.ask(waiting) == 0
    fake.streams.run_all()
    engine.step()
    assert engine.ask(waiting) == 256
    assert fake.broken == []


def test_a_load_is_received_only_when_the_device_has_made_it(on_device, fake):
    engine = on_device("batch")
    engine.finish(engine.prefill("first", 300))
    engine.wipe()
    fake.is_eager = False
    second = engine.request("second", 300)
    engine.allocate(second, engine.ask(second))
    assert engine.step().received == set()
    assert engine.wrong_pages(second, 256)
    fake.streams.run_all()
    assert engine.step().received == {"second"}
    assert engine.wrong_pages(second, 256) == []
    assert fake.broken == []


def test_a_store_that_the_device_refuses_or_fails_is_never_visible(on_device, fake):
    engine = on_device("runs")
    fake.fail("cuMemcpyAsync", 1, at=2)
    engine.finish(engine.prefill("refused", 300, prompt="a"))
    assert engine.ask(engine.request("again", 300, prompt="a")) == 0
    fake.fault_at_copy(1)
    engine.finish(engine.prefill("failed", 300, prompt="b"))
    assert engine.ask(engine.request("again", 300, prompt="b")) == 0
    assert engine.stats.counter("failed_stores") >= 2
    assert fake.broken == []


def test_the_order_around_loads_and_stores_is_kept_once_a_step(on_device, fake):
    engine = on_device("batch")
    first = engine.request("first", 300)
    engine.start(first)
    fake.calls.clear()
    engine.compute(first, 256)
    calls = [call[0] for call in fake.calls]
    assert calls[:3] == ["cuEventRecord", "cuStreamWaitEvent", "cuStreamWaitEvent"]
    copies = [i for i, name in enumerate(calls) if name == "cuMemcpyBatchAsync"]
    waits = [i for i, name in enumerate(calls) if name == "cuStreamWaitEvent"]
    assert len(copies) == 3
    assert waits[-1] > copies[-1]
    assert len(waits) == 3


@pytest.mark.parametrize("partition", ["static", "auto", "off"])
def test_the_whole_region_is_page_locked_for_the_device_and_let_go_at_the_end(
    partition, on_device, fake
):
    engine = on_device("batch", partition=partition, units=400)
    half = engine.workers[0].worker_half
    assert sum(fake.registered.values()) == half.region.size_bytes
    engine.workers[0].shutdown()
    assert fake.registered == {}
    assert fake.broken == []


def test_nothing_is_page_locked_for_torchs_own_copies(on_device, fake):
    engine = on_device("torch")
    assert fake.registered == {}
    engine.finish(engine.prefill("first", 300))
    engine.wipe()
    second = engine.request("second", 300)
    assert engine.start(second) == 256
    assert engine.wrong_pages(second, 256) == []


def test_a21_memory_that_cannot_be_page_locked_stops_the_start(on_device, fake):
    fake.fail("cuMemHostRegister", 2, at=1)
    with pytest.raises(PinningError, match=r"cannot be pinned: .* driver code 2"):
        on_device("batch")
    assert fake.registered == {}


def test_a_way_that_cannot_be_had_stops_the_start_with_those_that_can(on_device, monkeypatch):
    monkeypatch.setattr(kernel_nvrtc, "_places", lambda: iter(()))
    with pytest.raises(LadderError, match=r"is 'kernel', .*; allowed here are auto, batch, runs"):
        on_device("kernel")


def test_on_the_cpu_the_way_may_be_named_too():
    engine = ScriptedEngine(*SPECS, extra={"lmc_grouped.transfer": "torch"})
    engine.finish(engine.prefill("first", 300))
    engine.wipe()
    second = engine.request("second", 300)
    assert engine.start(second) == 256
    assert engine.wrong_pages(second, 256) == []
    with pytest.raises(LadderError, match=r"is 'batch', .*on a cpu device; allowed .* cpu, torch"):
        ScriptedEngine(*SPECS, extra={"lmc_grouped.transfer": "batch"})
