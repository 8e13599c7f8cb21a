"""The driver and its devices, with a library that plays the driver."""

import ctypes
import subprocess
import sys
from pathlib import Path

import pytest

from lmc_grouped.host import devices
from lmc_grouped.host.devices import Device, Driver, DriverError


class FakeDriver:
    """A driver library with these devices; one call may fail."""

    def __init__(self, *found: tuple[str, int, int], failing: str = "", code: int = 0) -> None:
        self._found = found
        self._failing, self._code = failing, code
        self.called: list[str] = []

    def __getattr__(self, name: str):
        answer = getattr(type(self), f"_{name}")

        def call(*arguments: object) -> int:
            self.called.append(name)
            if name == self._failing:
                return self._code
            answer(self, *(getattr(each, "_obj", each) for each in arguments))
            return 0

        return call

    def _cuInit(self, flags: ctypes.c_uint) -> None:
        assert flags.value == 0

    def _cuDriverGetVersion(self, version: ctypes.c_int) -> None:
        version.value = 12080

    def _cuDeviceGetCount(self, count: ctypes.c_int) -> None:
        count.value = len(self._found)

    def _cuDeviceGet(self, handle: ctypes.c_int, index: ctypes.c_int) -> None:
        handle.value = index.value + 100

    def _cuDeviceGetName(self, name: ctypes.Array, size: ctypes.c_int, handle: ctypes.c_int):
        name.value = self._found[handle.value - 100][0].encode()

    def _cuDeviceGetAttribute(
        self, value: ctypes.c_int, attribute: ctypes.c_int, handle: ctypes.c_int
    ) -> None:
        value.value = self._found[handle.value - 100][{75: 1, 76: 2}[attribute.value]]


def test_version_names_and_capabilities_are_read():
    driver = FakeDriver(("Tesla V100-SXM2-32GB", 7, 0), ("NVIDIA H200", 9, 0))
    assert devices.ask(driver) == {
        "version": 12080,
        "devices": [
            {"index": 0, "name": "Tesla V100-SXM2-32GB", "capability": [7, 0]},
            {"index": 1, "name": "NVIDIA H200", "capability": [9, 0]},
        ],
    }
    assert {name for name in driver.called if not name.startswith("cuDeviceGet")} == {
        "cuInit",
        "cuDriverGetVersion",
    }


def test_a_driver_without_devices_is_a_driver():
    assert devices.ask(FakeDriver())["devices"] == []


@pytest.mark.parametrize(
    ("name", "code", "said"),
    [
        ("cuInit", 100, "cuInit answered 100 (no device)"),
        ("cuInit", 803, "cuInit answered 803 (the driver and its library"),
        ("cuDriverGetVersion", 7, "cuDriverGetVersion answered 7"),
        ("cuDeviceGetAttribute", 101, "cuDeviceGetAttribute answered 101 (no such device)"),
    ],
)
def test_every_answer_of_the_driver_is_read(name: str, code: int, said: str):
    with pytest.raises(DriverError) as error:
        devices.ask(FakeDriver(("V100", 7, 0), failing=name, code=code))
    assert said in str(error.value)


def played(monkeypatch: pytest.MonkeyPatch, program: str) -> None:
    """Run this program instead of the one that asks the driver."""
    run = subprocess.run
    monkeypatch.setattr(
        subprocess, "run", lambda command, **options: run([command[0], "-c", program], **options)
    )


def test_the_answer_of_the_other_process_becomes_devices(monkeypatch: pytest.MonkeyPatch):
    played(
        monkeypatch,
        'print(\'{"version": 11040, "devices": '
        '[{"index": 0, "name": "Tesla V100", "capability": [7, 0]}]}\')',
    )
    driver = devices.find()
    assert driver == Driver(11040, (Device(0, "Tesla V100", (7, 0)),))
    assert driver.cuda_version == "11.4"


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("import os; os.abort()", "exit status -6"),
        ("raise SystemExit('strange')", "strange"),
        ('print(\'{"failure": "cuInit answered 999"}\')', "cuInit answered 999"),
    ],
)
def test_a_driver_that_ends_its_process_harms_nobody_else(
    monkeypatch: pytest.MonkeyPatch, program: str, said: str
):
    played(monkeypatch, program)
    with pytest.raises(DriverError, match=said):
        devices.find()


def test_a_driver_that_never_answers_is_given_up(monkeypatch: pytest.MonkeyPatch):
    played(monkeypatch, "import time; time.sleep(60)")
    monkeypatch.setattr(devices, "TIMEOUT_SECONDS", 0.2)
    with pytest.raises(DriverError, match="did not answer within"):
        devices.find()


def test_the_program_loads_nothing_but_the_standard_library_and_needs_no_path(tmp_path: Path):
    """It names the missing library where there is none, and is alone where there is one."""
    done = subprocess.run(
        [sys.executable, "-I", devices.__file__],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=True,
    )
    assert done.stdout.startswith("{")
    assert done.stderr == ""
