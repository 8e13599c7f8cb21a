"""Ask releases and collect their reports."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from compat.probe import Report, Request, parse_report
from compat.releases import FOLDER

TIMEOUT_SECONDS = 600


class ProbeError(RuntimeError):
    """A probe process gave no report."""


def ask(requests: Sequence[Request]) -> list[Report]:
    """One report per request, in their order, from one probe process.

    Raises:
        ProbeError: the process, or one of its forks, ended without a report.
    """
    done = subprocess.run(
        [sys.executable, "-m", "compat.probe"],
        input=json.dumps([asdict(request) for request in requests]),
        env=_environment(),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
    )
    reports = [parse_report(line) for line in done.stdout.splitlines()]
    asked = [request.version for request in requests]
    if [report.version for report in reports] != asked:
        raise ProbeError(
            f"asked LMCache {asked}, the probe (exit status {done.returncode}) reported "
            f"{[report.version for report in reports]}; its last words: {done.stderr[-2000:]}"
        )
    return reports


def _environment() -> dict[str, str]:
    """A copy of ours in which these very modules are found first."""
    path = [str(FOLDER.parent), os.environ.get("PYTHONPATH", "")]
    quiet = {"LMCACHE_DISABLE_BANNER": "1", "VLLM_LOGGING_LEVEL": "ERROR"}
    return os.environ | quiet | {"PYTHONPATH": os.pathsep.join(filter(None, path))}


def request(version: str, directory: Path | None, patches: str = "auto") -> Request:
    """A request about an unpacked release, or about the installed one (``None``)."""
    return Request(version, None if directory is None else str(directory.resolve()), patches)
