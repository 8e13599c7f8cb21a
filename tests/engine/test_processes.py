"""Engines in processes of their own: tensor parallel, and serving over HTTP."""

import json
import os
import subprocess
import sys
from pathlib import Path

from lmc_grouped.cli import main as lmc_grouped
from lmc_grouped.tools.plan.layout import read_layout
from lmc_grouped.tools.serving import GROUPED_CONNECTOR, Server
from lmc_grouped.tools.tiny_models import find_recipe
from tests.engine.conftest import model_dir

ROOT = Path(__file__).parents[2]


def test_two_tensor_parallel_workers_restore_exactly(tmp_path: Path) -> None:
    environment = os.environ | {
        "VLLM_CPU_OMP_THREADS_BIND": "0|1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "1",
        "VLLM_ALLOW_INSECURE_SERIALIZATION": "1",
        "LMCACHE_MAX_LOCAL_CPU_SIZE": "0.05",
        "PYTHONHASHSEED": "0",
    }
    command = [sys.executable, "-m", "tests.engine.two_ranks", str(model_dir("gemma3"))]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=400, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    answers = json.loads(done.stdout.splitlines()[-1])
    cold, local, restored = answers["cold"], answers["local"], answers["restored"]
    assert restored["cached_tokens"] == local["cached_tokens"] == 1472
    assert restored["ids"] == cold["ids"]
    assert restored["logprobs"] == local["logprobs"]
    for rank in (0, 1):
        damaged = answers[f"damaged_{rank}"]
        assert damaged["cached_tokens"] == 1472
        assert damaged["logprobs"] != local["logprobs"], (
            f"a lost page of rank {rank} went unnoticed"
        )
    layout = tmp_path / "layout.json"
    settings = ["--block-size", "32", "--dtype", "float32", "--workers", "2"]
    model = str(model_dir("gemma3"))
    assert lmc_grouped(["inspect", "--model", model, "--output", str(layout), *settings]) == 0
    inspected = read_layout(layout).table.to_json().decode()
    assert answers["tables"] == [inspected, inspected], "inspect knows what each rank holds"


def test_a_served_model_is_certified_over_http(tmp_path: Path) -> None:
    report_path = tmp_path / "report.json"
    server = Server(
        model_dir("llama"),
        find_recipe("llama"),
        connector=GROUPED_CONNECTOR,
        env={"LMCACHE_MAX_LOCAL_CPU_SIZE": "0.2", "VLLM_LOGGING_LEVEL": "INFO"},
        log_path=tmp_path / "server.log",
    )
    with server:
        status = lmc_grouped(
            ["certify", "--url", server.url, "--tokens", "1000", "--json", str(report_path)]
        )
        metrics = server.client().get("/metrics").decode()
    log = (tmp_path / "server.log").read_text()
    assert status == 0
    rows = {row["check"]: row for row in json.loads(report_path.read_text())["rows"]}
    assert rows["restored"]["restored_tokens"] == 992
    assert "lmc_grouped group 0: full, 4 layers" in log
    for name in ("stored_tokens", "restored_bytes", "resident_slots"):
        lines = [line for line in metrics.splitlines() if f"lmc_grouped_{name}" in line]
        assert any('group="0"' in line and float(line.split()[-1]) > 0 for line in lines), name
    assert server.leftovers() == []
