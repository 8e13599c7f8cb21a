"""Put the questions, all at once, each to a process of its own."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

import lmc_grouped
from lmc_grouped.tools.doctor.questions import Reply, Unanswered

PROGRAM = "lmc_grouped.tools.doctor.questions"
TIMEOUT_SECONDS = 300
_QUIET = {"VLLM_LOGGING_LEVEL": "ERROR", "LMCACHE_DISABLE_BANNER": "1", "VLLM_NO_USAGE_STATS": "1"}


def ask_all(names: Sequence[str]) -> dict[str, Reply]:
    """The replies by question."""
    with ThreadPoolExecutor(max_workers=max(len(names), 1)) as pool:
        return dict(zip(names, pool.map(ask, names), strict=True))


def ask(name: str, program: str = PROGRAM) -> Reply:
    """The reply to one question; `Unanswered` when the process gives none."""
    with tempfile.TemporaryDirectory(prefix="lmc-grouped-doctor.") as directory:
        path = Path(directory) / "reply.json"
        try:
            done = subprocess.run(
                [sys.executable, "-m", program, name, str(path)],
                capture_output=True,
                text=True,
                errors="replace",
                timeout=TIMEOUT_SECONDS,
                env=_environment(),
                check=False,
            )
        except subprocess.TimeoutExpired:
            return Unanswered(f"no answer within {TIMEOUT_SECONDS} s")
        if path.exists():
            return msgspec.json.decode(path.read_bytes(), type=Reply)
    if done.returncode < 0:
        return Unanswered(f"the process that imported it was ended by signal {-done.returncode}")
    last = (done.stderr.strip().splitlines() or ["nothing"])[-1]
    return Unanswered(f"exit status {done.returncode}; its last words: {last}")


def _environment() -> dict[str, str]:
    """A copy of ours in which this package is found wherever we are."""
    here = str(Path(lmc_grouped.__file__).parents[1])
    path = [here, os.environ.get("PYTHONPATH", "")]
    return os.environ | _QUIET | {"PYTHONPATH": os.pathsep.join(filter(None, path))}
