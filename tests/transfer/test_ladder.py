"""The ladder: one way per group, with a reason, decided without torch."""

import subprocess
import sys

import pytest

from lmc_grouped.transfer.ladder import (
    LONG_RUN_BYTES,
    RUNGS,
    Choice,
    DeviceFacts,
    LadderError,
    check_name,
    choose,
    refusal,
)

CPU = DeviceFacts("cpu")
VOLTA = DeviceFacts("cuda", (7, 0), 12080)
OLD = DeviceFacts("cuda", (7, 0), 12040)
WITH_KERNEL = DeviceFacts("cuda", (7, 0), 12080, kernel_missing=None)
WSL2 = DeviceFacts("cuda", (8, 6), 13000, kernel_missing=None, has_host_addresses=False)
XPU = DeviceFacts("xpu")
NO_DRIVER = DeviceFacts("cuda", (9, 0), None)


@pytest.mark.parametrize(
    ("facts", "run_bytes", "rung"),
    [
        (CPU, 8192, "cpu"),
        (CPU, 2**20, "cpu"),
        (VOLTA, LONG_RUN_BYTES, "batch"),
        (VOLTA, LONG_RUN_BYTES - 1, "staged"),
        (WITH_KERNEL, LONG_RUN_BYTES - 1, "staged"),
        (WITH_KERNEL, LONG_RUN_BYTES, "batch"),
        (OLD, LONG_RUN_BYTES, "runs"),
        (OLD, 8192, "staged"),
        (WSL2, LONG_RUN_BYTES, "runs"),
        (WSL2, 8192, "staged"),
        (XPU, 8192, "torch"),
        (XPU, 2**20, "torch"),
        (NO_DRIVER, 2**20, "torch"),
    ],
)
def test_run_size_driver_and_device_decide(facts, run_bytes, rung):
    assert choose(run_bytes, facts).rung == rung
    assert choose(run_bytes, facts, "auto") == choose(run_bytes, facts)


def test_the_reason_says_what_was_missing():
    assert "CUDA 12.4, and cuMemcpyBatchAsync came with 12.8" in choose(2**20, OLD).reason
    assert "not measured on a GPU" in choose(8192, VOLTA).reason
    assert "as in WSL2" in choose(2**20, WSL2).reason
    assert "xpu" in choose(8192, XPU).reason
    assert "libcuda.so.1" in choose(8192, NO_DRIVER).reason


@pytest.mark.parametrize(
    ("facts", "possible"),
    [
        (CPU, {"cpu", "torch"}),
        (VOLTA, {"batch", "runs", "staged", "torch"}),
        (WITH_KERNEL, {"batch", "runs", "kernel", "staged", "torch"}),
        (OLD, {"runs", "staged", "torch"}),
        (WSL2, {"runs", "staged", "torch"}),
        (XPU, {"torch"}),
        (NO_DRIVER, {"torch"}),
    ],
)
def test_a_forced_way_is_taken_where_it_can_be_and_refused_elsewhere(facts, possible):
    for rung in RUNGS:
        if rung in possible:
            assert choose(1, facts, rung) == Choice(rung, "asked for by lmc_grouped.transfer")
            continue
        with pytest.raises(LadderError) as caught:
            choose(1, facts, rung)
        message = str(caught.value)
        assert message.startswith(f"lmc_grouped.transfer is {rung!r}, which cannot be had here: ")
        assert str(refusal(rung, facts)) in message
        allowed = message.rpartition("allowed here are auto, ")[2].split(", ")
        assert set(allowed) == possible


@pytest.mark.parametrize("name", ["", "gpu", "Batch"])
def test_a_name_that_is_no_way_is_refused_with_what_is(name):
    with pytest.raises(LadderError, match=rf"is {name!r}; allowed are auto .*batch, runs"):
        check_name(name)
    with pytest.raises(LadderError, match="allowed are auto"):
        choose(1, CPU, name)


def test_the_decision_needs_neither_torch_nor_numpy():
    code = "import sys, lmc_grouped.transfer.ladder; print({'torch', 'numpy'} & sys.modules.keys())"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "set()"
