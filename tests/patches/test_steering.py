"""LMCache's server is kept from driving copies that its operations cannot do."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from lmc_grouped.adapters.lmcache_device import BACKEND_VARIABLE, MODE_VARIABLE
from lmc_grouped.adapters.lmcache_ops import Extension, ExtensionError
from lmc_grouped.host.devices import Device, Driver, DriverError
from lmc_grouped.host.libraries import read_library
from patches import plugin, steering
from patches.plugin import PATCHES_VARIABLE
from patches.steering import steer
from tests.binaries import fat_binary, library, sass

V100, H200 = ("Tesla V100-SXM2-32GB", (7, 0)), ("NVIDIA H200", (9, 0))


@pytest.fixture(autouse=True)
def unset(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither variable is set, and what a test sets is undone."""
    for name in (MODE_VARIABLE, BACKEND_VARIABLE):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)


@pytest.fixture
def steer_with(tmp_path: Path) -> Callable[..., str | None]:
    """Steer on a machine with these devices and a release-like extension."""
    path = tmp_path / "cuda_ops.so"
    path.write_bytes(library(fat_binary(sass(75), sass(80), sass(90))))
    extension = Extension("lmcache.cuda_ops", read_library(path))

    def run(*found: tuple[str, tuple[int, int]], loaded: bool = True) -> str | None:
        visible = tuple(Device(index, *each) for index, each in enumerate(found))
        return steer(
            find_driver=lambda: Driver(12080, visible),
            find_extension=lambda: extension,
            is_loaded=lambda asked: loaded and asked is extension,
        )

    return run


def test_on_volta_the_engine_drives_and_one_line_says_why(
    steer_with: Callable[..., str | None], lines: list[str]
):
    assert steer_with(V100) is not None
    assert os.environ[MODE_VARIABLE] == "engine_driven"
    (line,) = lines
    for part in ("LMCACHE_MP_TRANSFER_MODE is set to engine_driven", "device 0 is a Tesla V100",
                 "SASS sm_75, sm_80, sm_90; PTX none: nothing for sm_70",
                 "lmc_grouped.connector"):  # fmt: skip
        assert part in line


def test_the_mode_is_read_by_lmcache_after_it_was_set(steer_with: Callable[..., str | None]):
    from lmcache.v1.multiprocess.transfer_context import worker_transfer

    assert worker_transfer._resolve_mode(None).value == "auto"
    steer_with(V100)
    assert worker_transfer._resolve_mode(None).value == "engine_driven"


def test_where_the_extension_has_code_and_loaded_nothing_changes(
    steer_with: Callable[..., str | None], lines: list[str]
):
    assert steer_with(H200, H200) is None
    assert MODE_VARIABLE not in os.environ
    assert lines == []


def test_one_device_without_code_is_enough_because_ranks_must_agree(
    steer_with: Callable[..., str | None], lines: list[str]
):
    steer_with(H200, V100)
    assert os.environ[MODE_VARIABLE] == "engine_driven"
    assert "device 1 is a Tesla V100" in lines[0]


def test_an_extension_that_did_not_load_is_no_better_than_none(
    steer_with: Callable[..., str | None], lines: list[str]
):
    steer_with(H200, loaded=False)
    assert os.environ[MODE_VARIABLE] == "engine_driven"
    assert "LMCache could not load lmcache.cuda_ops" in lines[0]


def test_a_build_without_the_extension_is_steered(lines: list[str]):
    def none() -> Extension:
        raise ExtensionError("LMCache has no compiled CUDA operations")

    steer(find_driver=lambda: Driver(12080, (Device(0, *H200),)), find_extension=none)
    assert os.environ[MODE_VARIABLE] == "engine_driven"
    assert "no compiled CUDA operations" in lines[0]


@pytest.mark.parametrize("mode", ["auto", "lmcache_driven"])
def test_what_the_user_has_set_stays_and_is_warned_about(
    steer_with: Callable[..., str | None],
    monkeypatch: pytest.MonkeyPatch,
    lines: list[str],
    mode: str,
):
    monkeypatch.setenv(MODE_VARIABLE, mode)
    steer_with(V100)
    assert os.environ[MODE_VARIABLE] == mode
    (line,) = lines
    assert f"{MODE_VARIABLE}={mode} is left as it was set" in line
    assert "nothing for sm_70" in line


def test_a_user_who_chose_the_right_mode_hears_nothing(
    steer_with: Callable[..., str | None], monkeypatch: pytest.MonkeyPatch, lines: list[str]
):
    monkeypatch.setenv(MODE_VARIABLE, "Engine_driven")
    assert steer_with(V100) is None
    assert os.environ[MODE_VARIABLE] == "Engine_driven"
    assert lines == []


def test_another_backend_of_lmcache_is_left_alone(
    steer_with: Callable[..., str | None], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv(BACKEND_VARIABLE, "cuda-sm70")
    assert steer_with(V100) is None
    assert MODE_VARIABLE not in os.environ
    monkeypatch.setenv(BACKEND_VARIABLE, "CUDA")
    assert steer_with(V100) is not None


def test_without_a_driver_or_a_device_nothing_is_asked_of_lmcache(
    steer_with: Callable[..., str | None], lines: list[str]
):
    def no_driver() -> Driver:
        raise DriverError("no NVIDIA driver here")

    nobody = lambda: pytest.fail("LMCache was asked")  # noqa: E731
    assert steer(find_driver=no_driver, find_extension=nobody) is None
    assert steer(find_driver=lambda: Driver(12080, ()), find_extension=nobody) is None
    assert MODE_VARIABLE not in os.environ
    assert lines == []


@pytest.mark.parametrize(
    ("value", "steered"), [(None, True), ("auto", True), ("none", False), ("P1", False)]
)
def test_the_plugin_steers_where_it_patches_on_its_own(
    monkeypatch: pytest.MonkeyPatch, value: str | None, steered: bool
):
    asked: list[bool] = []
    monkeypatch.setattr(steering, "steer", lambda: asked.append(True))
    monkeypatch.setattr(plugin, "apply", lambda names: None)
    monkeypatch.setattr(plugin, "when_imported", lambda name, callback: callback())
    if value is None:
        monkeypatch.delenv(PATCHES_VARIABLE, raising=False)
    else:
        monkeypatch.setenv(PATCHES_VARIABLE, value)
    plugin.register()
    assert bool(asked) is steered
