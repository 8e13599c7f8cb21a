"""Engines in processes of their own: tensor parallel, and serving over HTTP."""

import json
import os
import sys
from pathlib import Path
from typing import Any

from lmc_grouped.cli import main as lmc_grouped
from lmc_grouped.tools.plan.layout import read_layout
from lmc_grouped.tools.processes import SHARED_MEMORY, ProcessGroup
from lmc_grouped.tools.serving import Server
from lmc_grouped.tools.tiny_models import find_recipe
from tests.engine.conftest import model_dir

ROOT = Path(__file__).parents[2]
BUDGET_BYTES = int(0.02 * 2**30)
EXTENT_BYTES = 4 * 2**15
"""Four pages of one of two ranks."""


def share_of_attention(phase: dict[str, Any]) -> float:
    """Of the extents in use after a phase, those of the full group."""
    extents = phase["metrics"]["extents"]
    return extents["2"] / sum(extents.values())


def check_restored(local: dict[str, Any], restored: dict[str, Any], boundary_tokens: int) -> None:
    assert restored["cached_tokens"] == local["cached_tokens"] == boundary_tokens
    assert restored["ids"] == local["ids"]
    assert restored["logprobs"] == local["logprobs"]


def test_two_tensor_parallel_workers_restore_exactly(tmp_path: Path) -> None:
    environment = os.environ | {
        "VLLM_CPU_OMP_THREADS_BIND": "0|1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "1",
        "VLLM_ALLOW_INSECURE_SERIALIZATION": "1",
        "LMCACHE_MAX_LOCAL_CPU_SIZE": str(BUDGET_BYTES / 2**30),
        "LMCACHE_LOCAL_DISK": str(tmp_path / "disk"),
        "LMCACHE_MAX_LOCAL_DISK_SIZE": "1",
        "PYTHONHASHSEED": "0",
        "PYTHONPATH": str(ROOT),
    }
    answer_path = tmp_path / "answers.json"
    model = str(model_dir("gemma3"))
    command = [sys.executable, "-m", "tests.engine.two_ranks", model, str(answer_path)]
    with ProcessGroup(command, environment, tmp_path / "log") as group:
        group.wait_until_ready(lambda: group.exit_status == 0, "two_ranks", seconds=500)
    left = group.shared_memory_leftovers()
    for name in left:
        (SHARED_MEMORY / name).unlink()
    # vLLM's collectives on CPU leave theirs when a worker is killed; we have none.
    assert [name for name in left if not name.startswith("vllm_dist_")] == []
    answers = json.loads(answer_path.read_text())
    for rank in (0, 1):
        seen = answers["damage"][f"rank_{rank}"]
        check_restored(seen["local"], seen["restored"], 1472)
        assert seen["restored"]["ids"] == seen["cold"]["ids"]
        assert seen["damaged"]["cached_tokens"] == 1472
        assert seen["damaged"]["logprobs"] != seen["local"]["logprobs"], (
            f"a lost page of rank {rank} went unnoticed"
        )
    check_phases(answers)
    assert answers["killed"] == "EngineDeadError"
    after = answers["next_start"]
    # The ranks' stores lie side by side, and one of the ranks was killed.
    assert {path.parent.name for path in tmp_path.glob("disk/*/*/lock")} == {"rank_0", "rank_1"}
    assert answers["before"]["cold"]["cached_tokens"] == 0
    check_restored(answers["before"]["local"], after["from_disk"], 1472)
    assert all(tokens > 0 for tokens in after["read_tokens"].values())
    check_restored(after["local"], after["restored"], 1472)
    layout = tmp_path / "layout.json"
    settings = ["--block-size", "32", "--dtype", "float32", "--workers", "2"]
    assert lmc_grouped(["inspect", "--model", model, "--output", str(layout), *settings]) == 0
    inspected = read_layout(layout).table.to_json().decode()
    assert answers["tables"] == [inspected, inspected], "inspect knows what each rank holds"


def check_phases(answers: dict[str, Any]) -> None:
    """Short prompts, long ones, short ones: the balance followed, and all came back."""
    assert answers["pages_per_extent"] == [[4, 4, 4]] * 2
    for phase, boundary_tokens in zip(answers["phases"], (192, 1472, 192), strict=True):
        for local, restored in zip(phase["local"], phase["restored"], strict=True):
            check_restored(local, restored, boundary_tokens)
    short, long, again = map(share_of_attention, answers["phases"])
    assert long > short + 0.1
    assert again < long - 0.1
    for phase in answers["phases"]:
        metrics = phase["metrics"]
        assert sum(metrics["extents"].values()) <= BUDGET_BYTES // EXTENT_BYTES
        for group_id, extents in metrics["extents"].items():
            capacity_slots = metrics["capacity_slots"][group_id]
            assert metrics["resident_slots"][group_id] <= capacity_slots <= 4 * extents
    metrics = answers["phases"][-1]["metrics"]
    assert sum(metrics["moved_pages"].values()) > 0
    assert metrics.get("failed_moves", {}).get("", 0) == 0


def test_a_hybrid_model_that_names_no_module_is_served_and_certified(tmp_path: Path) -> None:
    """`LMC_GROUPED_TAKEOVER=1`: the stock connector of that name cannot serve such a model."""
    report_path = tmp_path / "report.json"
    server = Server(
        model_dir("gemma3"),
        find_recipe("gemma3"),
        connector={"kv_connector": "LMCacheConnectorV1", "kv_role": "kv_both"},
        env={
            "LMC_GROUPED_TAKEOVER": "1",
            "LMCACHE_MAX_LOCAL_CPU_SIZE": "0.2",
            "VLLM_LOGGING_LEVEL": "INFO",
        },
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
    assert "LMC_GROUPED_TAKEOVER=1: the connector LMCacheConnectorV1 without a module" in log
    assert "lmc_grouped group 2: full" in log
    for name in ("stored_tokens", "restored_bytes", "resident_slots"):
        lines = [line for line in metrics.splitlines() if f"lmc_grouped_{name}" in line]
        assert any('group="0"' in line and float(line.split()[-1]) > 0 for line in lines), name
    assert server.leftovers() == []
