"""Engines for the tests marked ``engine``: one start per model and module."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from lmc_grouped.tools.tiny_models import MODELS, write_tiny_model
from tests.engine.lab import Lab, open_lab

MODELS_DIR = Path(__file__).parents[2] / ".models"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything in this folder needs an engine."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.engine)


def model_dir(name: str) -> Path:
    """The tiny model's directory, written at first use and kept in the clone."""
    return write_tiny_model(name, MODELS_DIR / name)


@pytest.fixture(scope="module", params=sorted(MODELS))
def lab(request: pytest.FixtureRequest) -> Iterator[Lab]:
    """An engine with chunked prefill at 512 tokens; one start serves a whole module."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LMCACHE_MAX_LOCAL_CPU_SIZE", "0.25")
        with open_lab(model_dir(request.param), request.param, max_num_batched_tokens=512) as lab:
            yield lab
