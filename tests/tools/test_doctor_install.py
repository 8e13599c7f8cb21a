"""`lmc-grouped doctor` where packages are missing, or end the process that imports them."""

import importlib
import json
import os
import subprocess
import venv
from pathlib import Path

import msgspec
import pytest

from lmc_grouped.tools.doctor import asking
from lmc_grouped.tools.doctor.asking import ask
from lmc_grouped.tools.doctor.questions import Unanswered
from tests.binaries import fat_binary, library, sass

ROOT = Path(__file__).parents[2]


def program(folder: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> str:
    """A program to be asked instead of the real one."""
    (folder / "made_up_program.py").write_text(text)
    monkeypatch.setenv("PYTHONPATH", str(folder))
    return "made_up_program"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("import os; os.abort()", "the process that imported it was ended by signal 6"),
        ("raise SystemExit('gone')", "exit status 1; its last words: gone"),
        ("pass", "exit status 0; its last words: nothing"),
    ],
)
def test_a_package_that_ends_its_process_leaves_a_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, reason: str
):
    assert ask("torch", program(tmp_path, monkeypatch, text)) == Unanswered(reason)


def test_a_package_that_hangs_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(asking, "TIMEOUT_SECONDS", 0.5)
    hanging = program(tmp_path, monkeypatch, "import time; time.sleep(60)")
    assert ask("torch", hanging) == Unanswered("no answer within 0.5 s")


CORE_PACKAGES = ("msgspec", "numpy")


@pytest.fixture(scope="module")
def core_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An interpreter with what the core install brings, and nothing else."""
    home = tmp_path_factory.mktemp("core")
    venv.create(home, with_pip=False, symlinks=True)
    site = next((home / "lib").glob("python*/site-packages"))
    for name in CORE_PACKAGES:
        installed = Path(importlib.import_module(name).__file__ or "").parents[1]
        for path in installed.glob(f"{name}*"):
            (site / path.name).symlink_to(path)
    return home / "bin" / "python"


def run_core(python: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("LMC", "PYTHON"))}
    return subprocess.run(
        [str(python), "-m", "lmc_grouped.cli", "doctor", *arguments],
        env=environment | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_core_install_alone_says_what_is_missing(core_python: Path):
    probe = (
        "import importlib.util as u; print([u.find_spec(n) for n in ('torch','vllm','lmcache')])"
    )
    alone = subprocess.run([core_python, "-c", probe], capture_output=True, text=True, check=True)
    assert alone.stdout.strip() == "[None, None, None]"
    done = run_core(core_python, "--json")
    assert done.returncode == 1, done.stderr
    report = json.loads(done.stdout)
    found = {f["subject"]: f for section in report["sections"] for f in section["findings"]}
    for missing in ("torch", "vLLM", "LMCache"):
        assert found[missing]["state"] == "fail"
        assert "not installed" in found[missing]["text"]
        assert found[missing]["remedy"]
    for looked_at in ("Python", "driver", "host memory", "memlock", "/dev/shm", "PYTHONHASHSEED"):
        assert looked_at in found
    assert found["configuration"]["text"] == "not read: LMCache is not installed"
    assert done.stderr == ""


def test_the_core_install_alone_reads_wheels(core_python: Path, tmp_path: Path):
    (tmp_path / "ops.so").write_bytes(library(fat_binary(sass(70))))
    done = run_core(core_python, "--wheel", str(tmp_path / "ops.so"), "--json")
    assert (done.returncode, done.stderr) == (0, "")
    assert msgspec.json.decode(done.stdout)[0]["sass"] == ["sm_70"]
