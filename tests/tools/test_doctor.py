"""`lmc-grouped doctor` with made-up machines; its parts that look at files and processes are
in tests of their own, and tests/compat asks the installed packages."""

import json
import zipfile
from pathlib import Path

import pytest

from lmc_grouped.adapters import lmcache_ops
from lmc_grouped.cli import main
from lmc_grouped.host import devices
from lmc_grouped.host.devices import Device, Driver, DriverError
from lmc_grouped.host.libraries import read_library
from lmc_grouped.tools.doctor import command, gpus, rungs, software
from lmc_grouped.tools.doctor.findings import Finding, State
from lmc_grouped.tools.doctor.questions import (
    EngineFacts,
    PatchFacts,
    SettingsFacts,
    TorchFacts,
    Unanswered,
)
from lmc_grouped.tools.plan.layout import read_layout
from tests.binaries import fat_binary, library, ptx, sass

V100 = Device(0, "Tesla V100-SXM2-32GB", (7, 0))
H200 = Device(1, "NVIDIA H200", (9, 0))
OLD_TORCH = TorchFacts("2.10.0+cu128", "12.8", ("sm_70", "sm_75", "sm_90", "compute_90"))
NEW_TORCH = TorchFacts("2.13.0+cu130", "13.0", ("sm_75", "sm_80", "sm_90", "compute_120"))
CPU_TORCH = TorchFacts("2.13.0+cpu", None, ())
REPLIES = {
    "torch": OLD_TORCH,
    "engine": EngineFacts("0.32.0"),
    "settings": SettingsFacts(2**30, None, 0),
    "patches": PatchFacts({"P1": "applied", "P2": "not needed"}),
}


def states(findings: list[Finding]) -> list[State]:
    return [each.state for each in findings]


def only(findings: list[Finding]) -> Finding:
    (finding,) = findings
    return finding


@pytest.fixture
def volta(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict:
    """A V100 server where all is well; tests change the replies."""
    path = tmp_path / "cuda_ops.so"
    path.write_bytes(library(fat_binary(sass(75), sass(80)), needed=("libcudart.so.13",)))
    extension = lmcache_ops.Extension("lmcache.cuda_ops", read_library(path))
    replies = dict(REPLIES)
    monkeypatch.setattr(command, "ask_all", lambda names: {n: replies[n] for n in names})
    monkeypatch.setattr(devices, "find", lambda: Driver(12080, (V100,)))
    monkeypatch.setattr(lmcache_ops, "installed", lambda: extension)
    monkeypatch.setattr(lmcache_ops, "load_failure", lambda e: "ImportError: libcudart.so.13")
    return replies


def test_a_v100_server_with_the_right_torch_serves(volta: dict, capsys: pytest.CaptureFixture[str]):
    assert main(["doctor"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    for part in (
        "torch 2.10.0+cu128, CUDA 12.8: sm_70, sm_75, sm_90, compute_90",
        "SASS sm_75, sm_80; PTX none, needs CUDA runtime 13; does not load",
        "cannot run on device 0",
        "LMCACHE_MP_TRANSFER_MODE=engine_driven",
        "Tesla V100-SXM2-32GB, compute capability 7.0",
        "applied: P1; not needed: P2",
        "nothing found here stops serving",
    ):
        assert part in out


def test_the_same_as_json_has_a_verdict_and_every_finding(
    volta: dict, capsys: pytest.CaptureFixture[str]
):
    assert main(["doctor", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["serves"] is True
    titles = [section["title"] for section in report["sections"]]
    assert titles == ["software", "devices", "copies", "memory and disk"]
    found = {f["subject"]: f for section in report["sections"] for f in section["findings"]}
    assert found["device 0"]["state"] == "ok"
    assert found["LMCache's operations"]["state"] == "warn"
    assert found["LMCache's operations"]["remedy"]


def test_a_failing_line_ends_with_status_1_and_says_what_to_do(
    volta: dict, capsys: pytest.CaptureFixture[str]
):
    volta["torch"] = NEW_TORCH
    assert main(["doctor"]) == 1
    out = " ".join(capsys.readouterr().out.split())
    assert "torch 2.13.0+cu130 holds nothing for it -> install a torch with sm_70" in out
    assert out.count("serving would fail:") == 1
    assert "serving would fail: driver, device 0" in out


def test_every_failure_has_a_remedy():
    broken = Unanswered("ImportError: no")
    refused = Unanswered("vLLM 0.29 is too old", is_refusal=True)
    failing = [
        *software.check_torch(None),
        *software.check_torch(broken),
        *software.check_engine(None),
        *software.check_engine(broken),
        *software.check_engine(refused),
        *gpus.check_driver("no NVIDIA driver here", NEW_TORCH),
        *gpus.check_driver(Driver(12080, ()), OLD_TORCH),
        *gpus.check_driver(Driver(12080, (V100,)), NEW_TORCH),
        *gpus.check_devices(Driver(13000, (V100,)), NEW_TORCH),
    ]
    assert [f for f in failing if f.state is not State.FAIL or not f.remedy] == []


@pytest.mark.parametrize(
    ("driver", "torch", "state"),
    [
        (Driver(12080, (V100,)), OLD_TORCH, State.OK),
        (Driver(12040, (V100,)), OLD_TORCH, State.OK),  # minor versions are compatible
        (Driver(11080, (V100,)), OLD_TORCH, State.FAIL),
        (Driver(13000, (H200,)), OLD_TORCH, State.OK),
        (Driver(13000, (H200,)), CPU_TORCH, State.OK),
        (Driver(13000, (H200,)), None, State.OK),
        (Driver(13000, ()), OLD_TORCH, State.FAIL),
        ("no NVIDIA driver here", OLD_TORCH, State.FAIL),
        ("no NVIDIA driver here", CPU_TORCH, State.NOTE),
        ("no NVIDIA driver here", None, State.NOTE),
    ],
)
def test_the_driver_is_judged_by_what_torch_is_built_for(driver, torch, state: State):
    assert only(gpus.check_driver(driver, torch)).state is state


@pytest.mark.parametrize(
    ("device", "torch", "state"),
    [
        (V100, OLD_TORCH, State.OK),
        (V100, NEW_TORCH, State.FAIL),
        (V100, CPU_TORCH, State.WARN),
        (V100, None, State.NOTE),
        (H200, NEW_TORCH, State.OK),
        (Device(0, "a newer one", (12, 1)), NEW_TORCH, State.OK),  # by PTX
    ],
)
def test_a_device_is_judged_by_the_architectures_that_torch_holds(device, torch, state: State):
    assert only(gpus.check_devices(Driver(13000, (device,)), torch)).state is state


def test_a_broken_driver_is_a_finding(monkeypatch: pytest.MonkeyPatch):
    def broken() -> Driver:
        raise DriverError("cuInit answered 803")

    monkeypatch.setattr(devices, "find", broken)
    assert gpus.find_driver() == "cuInit answered 803"
    assert gpus.capabilities("cuInit answered 803") == {}


@pytest.mark.parametrize(
    ("driver", "torch", "short", "long"),
    [
        (Driver(12080, (V100,)), OLD_TORCH, "staged", "batch"),
        (Driver(12040, (V100,)), OLD_TORCH, "staged", "runs"),
    ],
)
def test_short_and_long_runs_are_told_with_their_way_and_its_reason(
    driver: Driver, torch: TorchFacts, short: str, long: str
):
    first, second = rungs.check_copies(driver, torch, None)
    assert (first.subject, second.subject) == ("runs below 60 KiB", "runs from 60 KiB")
    assert first.text.startswith(f"{short}: runs of 61439 bytes")
    assert second.text.startswith(f"{long}: runs of 61440 bytes")


def test_without_a_device_all_groups_take_the_same_way():
    found = only(rungs.check_copies("no driver", CPU_TORCH, None))
    assert (found.subject, found.text.split(":")[0]) == ("all groups", "cpu")
    assert only(rungs.check_copies("no driver", OLD_TORCH, None)).text.startswith("torch: ")


def test_the_groups_of_a_layout_are_told_one_by_one(tmp_path: Path):
    path = tmp_path / "layout.json"
    path.write_text(
        '{"max_model_len": 4096, "groups": ['
        '{"group_id": 0, "kind": "full", "span_tokens": 16, "page_bytes": 65536,'
        ' "layer_names": ["a", "b"]},'
        '{"group_id": 2, "kind": "recurrent", "span_tokens": 16, "page_bytes": 200000}]}'
    )
    found = rungs.check_copies(Driver(12080, (V100,)), OLD_TORCH, read_layout(path))
    assert [(f.subject, f.text.split(":")[0]) for f in found] == [
        ("group 0, full", "staged"),
        ("group 2, recurrent", "batch"),
    ]


def test_operations_that_run_on_every_device_are_fine(volta: dict, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(lmcache_ops, "load_failure", lambda extension: None)
    assert states(software.check_extension({0: (7, 5), 1: (8, 6)})) == [State.OK]
    lacking = only(software.check_extension({0: (7, 5), 1: (7, 0)}))
    assert lacking.state is State.WARN
    assert "cannot run on device 1" in lacking.text


def test_wheels_are_read_and_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = tmp_path / "lmcache-9.9.9-cp311-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(
            "lmcache/cuda_ops.so",
            library(fat_binary(sass(75), ptx(90)), needed=("libcudart.so.13",)),
        )
        archive.writestr("lmcache/lmcache_native.so", library())
    plain = tmp_path / "plain.so"
    plain.write_bytes(library())
    assert main(["doctor", "--wheel", str(path), str(plain)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[2].split() == ["lmcache-9.9.9", "lmcache/cuda_ops.so", "75", "90", "13"]
    assert lines[3:] == ["plain.so: no code for GPUs"]
    assert main(["doctor", "--wheel", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == [
        {
            "file": path.name,
            "library": "lmcache/cuda_ops.so",
            "fat_binaries": 1,
            "sass": ["sm_75"],
            "ptx": ["compute_90"],
            "needed": ["libcudart.so.13"],
            "cuda_major": 13,
        }
    ]


@pytest.mark.parametrize("content", [b"", b"no wheel at all"])
def test_a_file_that_cannot_be_read_ends_with_status_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes
):
    for name in ("broken.whl", "broken.so"):
        (tmp_path / name).write_bytes(content)
        assert main(["doctor", "--wheel", str(tmp_path / name)]) == 2
        assert name in capsys.readouterr().err
