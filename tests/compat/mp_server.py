"""LMCache's cache server and an engine with its multi-process connector, of any release."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lmc_grouped.tools.processes import ProcessGroup
from lmc_grouped.tools.serving import answers, build_env, find_free_port
from tests.compat.conftest import ROOT, directory_of

READY_SECONDS = 120.0
COLD_TOLERANCE = 1e-4
ENGINE_SECONDS = 240


@dataclass(frozen=True, slots=True)
class Setup:
    """One release with or without patches, in a directory for its logs."""

    version: str
    patches: str
    chunk_tokens: int
    directory: Path
    plugins: Sequence[Path] = ()
    """Directories in which vLLM finds further plugins."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the engine came back with: cold, local hit, restored, and damaged on purpose."""

    cold: dict[str, Any]
    local: dict[str, Any]
    restored: dict[str, Any]
    damaged: dict[str, dict[str, Any]]
    """group_id -> local hit with one zeroed page of that group."""
    spans: list[int]
    patches_logged: list[str]
    """What the engine's log says of each patch."""


def difference(a: dict[str, Any], b: dict[str, Any]) -> float:
    """Largest log-probability difference; infinite when ids differ."""
    if a["ids"] != b["ids"]:
        return float("inf")
    return max(abs(x - y) for x, y in zip(a["logprobs"], b["logprobs"], strict=True))


def check_damage_is_noticed(found: Outcome) -> None:
    """Control of a comparison: one zeroed page of any stored group changes the answer."""
    stored = [group_id for group_id, span in enumerate(found.spans) if span]
    assert [int(group_id) for group_id in found.damaged] == stored
    for group_id, damaged in found.damaged.items():
        assert damaged["cached_tokens"] == found.local["cached_tokens"]
        assert difference(damaged, found.local) > COLD_TOLERANCE, f"group {group_id}"


def run(setup: Setup, model: Path, prompt: list[int], expected_tokens: int) -> Outcome:
    """Start the server, run the engine to its end, stop the server."""
    environment = _environment(setup)
    with _server(setup, environment) as port:
        question = {
            "model": str(model),
            "port": port,
            "prompt": prompt,
            "expected_tokens": expected_tokens,
            "block_tokens": 32,
        }
        done = subprocess.run(
            [sys.executable, "-m", "tests.compat.mp_engine"],
            input=json.dumps(question),
            env=environment | {"LMCACHE_MP_TRANSFER_MODE": "lmcache_driven"},
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=ENGINE_SECONDS,
            check=False,
        )
    assert done.returncode == 0, done.stderr[-4000:]
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["lmcache"][0] == setup.version
    lines = [line for line in done.stderr.splitlines() if "lmc_grouped patch P" in line]
    answers = [told[name] for name in ("cold", "local", "restored", "damaged")]
    return Outcome(*answers, told["spans"], lines)


def _environment(setup: Setup) -> dict[str, str]:
    release = directory_of(setup.version)
    path = [release, ROOT, _plugin(setup.directory), *setup.plugins]
    return build_env(
        {
            "PYTHONPATH": os.pathsep.join(str(each) for each in path if each),
            "LMC_GROUPED_PATCHES": setup.patches,
            "LMCACHE_DISABLE_BANNER": "1",
            "VLLM_LOGGING_LEVEL": "INFO",
        }
    )


def _plugin(directory: Path) -> Path:
    """Metadata with our entry point, whether or not the package is installed with it."""
    information = directory / "plugin" / "lmc_grouped_under_test-1.0.dist-info"
    information.mkdir(parents=True, exist_ok=True)
    name = "Metadata-Version: 2.1\nName: lmc-grouped-under-test\nVersion: 1.0\n"
    (information / "METADATA").write_text(name)
    entry = "[vllm.general_plugins]\nlmc_grouped = patches.plugin:register\n"
    (information / "entry_points.txt").write_text(entry)
    return information.parent


@contextmanager
def _server(setup: Setup, environment: dict[str, str]) -> Iterator[int]:
    """The cache server's port; with patches it is started through ``python -m patches``."""
    port, http_port = find_free_port(), find_free_port()
    through = ["patches"] if setup.patches != "none" else []
    command = [sys.executable, "-m", *through, "lmcache.cli.main", "server"]
    command += ["--host", "localhost", "--port", str(port)]
    command += ["--http-host", "127.0.0.1", "--http-port", str(http_port)]
    command += ["--prometheus-port", str(find_free_port())]
    command += ["--l1-size-gb", "1", "--l1-init-size-gb", "1", "--eviction-policy", "LRU"]
    command += ["--supported-transfer-mode", "auto", "--separate-object-groups"]
    command += ["--chunk-size", str(setup.chunk_tokens)]
    with ProcessGroup(command, environment, setup.directory / "server.log") as group:
        group.wait_until_ready(
            lambda: answers(f"http://127.0.0.1:{http_port}", "/healthcheck"),
            "lmcache server",
            READY_SECONDS,
        )
        yield port
    group.remove_leftovers()
