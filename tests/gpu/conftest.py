"""Skips everything where there is no CUDA device; prints a short report where there is."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from lmc_grouped.transfer.ladder import RUNGS, RUNS, refusal, version_text
from tests.gpu import machine

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    reason = machine.why_no_device()
    if reason is not None:
        for item in items:
            if HERE in item.path.parents:
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(params=machine.rungs_here())
def worker(request: pytest.FixtureRequest) -> Iterator[machine.Worker]:
    """A worker for each way of copying that the device can take."""
    made = machine.Worker(request.param)
    yield made
    made.close()


@pytest.fixture
def host() -> Iterator[machine.Worker]:
    """A worker of which only the page-locked memory is used."""
    made = machine.Worker(RUNS)
    yield made
    made.close()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    terminalreporter.section("copies on a CUDA device")
    if (reason := machine.why_no_device()) is not None:
        terminalreporter.line(f"nothing was tested: {reason}")
        return
    facts = machine.facts()
    assert facts.capability is not None
    assert facts.driver_version is not None
    terminalreporter.line(
        f"{torch.cuda.get_device_name(machine.DEVICE)}, compute capability "
        f"{facts.capability[0]}.{facts.capability[1]}, driver for CUDA "
        f"{version_text(facts.driver_version)}, torch {torch.__version__}"
    )
    for rung in RUNGS:
        why_not = refusal(rung, facts)
        terminalreporter.line(f"  {rung}: {why_not or 'possible'}")
    for line in machine.report:
        terminalreporter.line(line)
