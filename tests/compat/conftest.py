"""The releases that the collected tests are about, asked once."""

from importlib import metadata
from pathlib import Path

import pytest

from compat.environments import unpacked
from compat.probe import Report
from compat.releases import find
from compat.runner import ask
from compat.runner import request as question

ROOT = Path(__file__).parents[2]


def directory_of(version: str) -> Path | None:
    """Where the release is; ``None`` when it is the installed one."""
    if version == metadata.version("lmcache"):
        return None
    return unpacked(find(version), ROOT / ".compat")


@pytest.fixture(scope="session")
def reports(request: pytest.FixtureRequest) -> dict[str, Report]:
    """Reports by version."""
    versions = {
        item.callspec.params["version"]
        for item in request.session.items
        if item.path.parent == Path(__file__).parent
        and hasattr(item, "callspec")
        and "version" in item.callspec.params
    }
    questions = [question(version, directory_of(version)) for version in sorted(versions)]
    return {report.version: report for report in ask(questions)}
