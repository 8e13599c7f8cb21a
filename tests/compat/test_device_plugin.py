"""Our device for LMCache, in each release that has plugins: chosen only when it is named."""

import json
import os
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from compat.releases import newest
from lmc_grouped.adapters.lmcache_blocks import LAYOUTS
from tests.compat.conftest import ROOT, directory_of

GROUP = "lmcache.device_plugins"
RELEASES = [
    pytest.param("0.5.4", marks=pytest.mark.compat),
    "0.5.5",
    newest().version,
]
NEWER_LAYOUTS = {
    "0.5.4": {"NL_X_TWO_X_NB_BS_NH_HS", "NL_X_NB_BS_NH_HS"},
    "0.5.5": {"NL_X_NB_BS_NH_HS"},
}
"""Served by us, but not known to these releases."""


@pytest.fixture(scope="module")
def installed_as_declared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Metadata with the entry points of pyproject.toml, whatever was installed before."""
    points = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    folder = tmp_path_factory.mktemp("metadata")
    info = folder / "lmc_grouped-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: lmc-grouped\nVersion: 0.1.0\n")
    lines = [f"{name} = {target}" for name, target in points[GROUP].items()]
    (info / "entry_points.txt").write_text("\n".join([f"[{GROUP}]", *lines, ""]))
    return folder


@cache
def answers_of(version: str, metadata: Path) -> dict[str, Any]:
    release = directory_of(version)
    path = [*([] if release is None else [str(release)]), str(metadata), str(ROOT)]
    done = subprocess.run(
        [sys.executable, "-m", "tests.compat.device_plugin"],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(path), "LMCACHE_DISABLE_BANNER": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1]) | {"log": done.stderr}


@pytest.fixture(params=RELEASES)
def version(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def answers(version: str, installed_as_declared: Path) -> dict[str, Any]:
    return answers_of(version, installed_as_declared)


OURS_UNUSED = [
    "lmc_grouped.adapters",
    "lmc_grouped.adapters.lmcache_device",
    "lmc_grouped.adapters.lmcache_device_spec",
]


def unchanged(backend: str) -> dict[str, Any]:
    """What LMCache chooses for a user who did not name our device."""
    return {
        "type": backend,
        "backend": backend,
        "cuda": "cuda",
        "known": True,
        "ours": OURS_UNUSED,
        "failure": "",
    }


def test_without_cuda_lmcache_takes_the_cpu_as_before(answers: dict[str, Any]) -> None:
    assert answers["without_cuda"] == unchanged("cpu")


@pytest.mark.parametrize("question", ["with_cuda", "cuda_by_name"])
def test_with_cuda_lmcache_takes_its_own_device_as_before(
    answers: dict[str, Any], question: str
) -> None:
    assert answers[question] == unchanged("cuda")


def test_lmcache_loads_the_entry_point_without_a_warning(answers: dict[str, Any]) -> None:
    assert "Failed to load LMCache device plugin" not in answers["log"]
    assert "Ignoring DeviceSpec" not in answers["log"]


def test_a_device_that_does_not_wait_to_be_named_breaks_lmcache(answers: dict[str, Any]) -> None:
    failure = answers["always_available"]["failure"]
    assert failure.startswith("RuntimeError: Multiple LMCache backends are available for")


def test_named_it_is_chosen_with_our_operations_and_the_engine_copies(
    answers: dict[str, Any], version: str
) -> None:
    ours = answers["ours_by_name"]
    assert (ours["type"], ours["backend"], ours["cuda"]) == ("cuda", "cuda-sm70", "cuda-sm70")
    assert ours["ops"] == "CudaSm70Ops"
    assert ours["takes tensors"] is True
    assert ours["native"] is ours["plans"] is False
    assert ours["mode"] == ("engine_driven" if version == newest().version else "")


def test_the_server_cannot_drive_copies_and_says_what_to_set(answers: dict[str, Any]) -> None:
    assert answers["ours_by_name"]["wrapper"] == (
        "ValueError: the device cuda-sm70 does not let LMCache's server drive copies; "
        "set LMCACHE_MP_TRANSFER_MODE=engine_driven"
    )


def test_named_without_cuda_it_stops_lmcache_with_its_name(answers: dict[str, Any]) -> None:
    assert answers["ours_without_cuda"]["failure"] == (
        "RuntimeError: LMCACHE_DEVICE_BACKEND='cuda-sm70' is registered but not available on "
        "this host."
    )


def test_its_copies_leave_the_bytes_of_that_release_in_every_layout(
    answers: dict[str, Any], version: str
) -> None:
    served = answers["layouts"]["served"]
    assert set(served) == set(LAYOUTS) - NEWER_LAYOUTS.get(version, set())
    assert answers["layouts"]["disagreements"] == []
    assert answers["layouts"]["control"] == 6 * len(served)  # one block less, each time noticed
