"""``make test-gpu`` can be collected with torch, numpy, msgspec and pytest alone."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
COLLECT = """
import sys

FORBIDDEN = {"vllm", "lmcache", "hypothesis", "pytest_timeout", "transformers", "compat", "patches"}

class Forbid:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in FORBIDDEN:
            raise ModuleNotFoundError(f"no module named {name!r}: forbidden here", name=name)

sys.meta_path.insert(0, Forbid())
import pytest
code = pytest.main([*sys.argv[1:], "--collect-only", "-q", "-p", "no:cacheprovider"])
assert not FORBIDDEN & sys.modules.keys()
sys.exit(code)
"""


def collect(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {
        **os.environ,
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "PYTHONPATH": str(ROOT),
    }
    command = [sys.executable, "-c", COLLECT, *arguments]
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )


def test_the_gpu_tests_are_collected_without_vllm_and_lmcache():
    done = collect("-c", "tests/gpu/pytest.ini", "--rootdir", ".", "tests/gpu")
    assert done.returncode == 0, done.stdout + done.stderr
    for name in ("test_round_trips", "test_order", "test_errors", "test_bandwidth"):
        assert f"tests/gpu/{name}.py::" in done.stdout


def test_the_check_would_notice_a_test_that_needs_vllm():
    done = collect("-c", "tests/gpu/pytest.ini", "--rootdir", ".", "tests/adapters")
    assert done.returncode != 0
    assert "forbidden here" in done.stdout
