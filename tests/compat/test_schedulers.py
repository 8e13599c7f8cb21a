"""The connector under the real schedulers of vLLM and of ReVolta, on a CPU, without a model.

`tests/compat/lab` drives each engine's own scheduler, cache managers and connector
glue in a process of its own and tells what every scenario came to.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import pytest

from compat.engines import Engine, engines
from compat.environments import unpacked
from tests.compat.conftest import ROOT
from tests.compat.test_engines import installed

REVOLTA = next(engine for engine in engines() if engine.name == "ReVolta")
QUICK = (installed(), REVOLTA)
"""Run by `make test`, in one variant of each scenario; `make compat` runs all, on all engines."""

pytestmark = pytest.mark.timeout(1_800)
"""The first test of a depth waits for all its engines, which shared cores slow down."""

DEPTHS = ["quick", pytest.param("all", marks=pytest.mark.compat)]
WHOLE_SPANS = "whole spans"

HYBRID = "attention, ring, state"
BOUNDARIES = {
    "store reset restore": {"cold": [0], "local hit": [0], "restored": [192], "again 193": [192]},
    "junction": {"one": [0], "two": [0], "three": [128], "four": [128]},
    "local and host": {"head": [0], "whole": [128]},
    "next turn": {"second": [192]},
    "preemption": {"one": [0, 224], "two": [0, 160], "the same again": [352]},
    "failed load": {"group 0 fails": [192, 0], "group 0 after": [192], "group 2 fails": [192, 0]},
    "failed load beside others": {"fails: fails": [128, 0], "is refused: is refused": [128, 0]},
    "failed load fails the request": {"hit": [192], "after": [0]},
    "refused load": {"refused": [192, 0], "after": [192]},
    "crowd": {"second a": [96], "second b": [128], "second f": [224]},
    "disk": {"first": [0], "second": [192]},
}
"""Scenario -> request -> tokens brought back, each time it was admitted."""

RESUMED = {
    "vLLM 0.30.0": {"again": 0, "sibling": 32},
    "vLLM 0.31.0": {"again": 0, "sibling": 32},
    "vLLM 0.32.0": {"again": 32, "sibling": 32},
    "ReVolta 0.1.4": {"again": 32, "sibling": 64},
}
"""After a prompt of two whole spans of 32 tokens: the one thing in which engines differ."""


def of_depth(depth: str) -> tuple[Engine, ...]:
    return QUICK if depth == "quick" else engines()


@cache
def runs(depth: str) -> dict[Engine, dict[str, Any]]:
    """What each engine of the depth told; two at a time."""
    with ThreadPoolExecutor(2) as pool:
        told = pool.map(lambda engine: drive(engine, depth), of_depth(depth))
        return dict(zip(of_depth(depth), told, strict=True))


def drive(engine: Engine, depth: str) -> dict[str, Any]:
    folder = None if engine == installed() else unpacked(engine, ROOT / ".compat")
    path = [str(ROOT)] if folder is None else [str(folder), str(ROOT)]
    done = subprocess.run(
        [sys.executable, "-m", "tests.compat.lab", depth],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(path), "PYTHONHASHSEED": "0"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    told = json.loads(done.stdout)
    assert folder is None or told["vllm"] == str(folder / "vllm" / "__init__.py")
    return told


def each_engine(depth: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Title and scenarios of every engine of the depth."""
    for engine, told in runs(depth).items():
        yield engine.title, told["scenarios"]


def requests(scenarios: dict[str, Any], *, damaged: bool) -> Iterator[tuple[str, dict[str, Any]]]:
    """Name and facts of every request, in the control or in all others."""
    for scenario, facts in scenarios.items():
        assert "raised" not in facts, f"{scenario}: {facts['raised']}"
        if scenario.startswith("damaged") is damaged:
            for name, fact in facts.items():
                if isinstance(fact, dict) and "exact" in fact:
                    yield f"{scenario}: {name}", fact


@pytest.mark.parametrize("depth", DEPTHS)
def test_every_answer_is_what_the_model_gives_without_a_cache(depth):
    for title, scenarios in each_engine(depth):
        told = list(requests(scenarios, damaged=False))
        assert len(told) > 100
        assert [(title, name) for name, fact in told if not fact["exact"]] == []


@pytest.mark.parametrize("depth", DEPTHS)
def test_one_damaged_page_of_any_group_is_noticed(depth):
    for title, scenarios in each_engine(depth):
        told = list(requests(scenarios, damaged=True))
        assert len(told) >= 5
        assert [(title, name) for name, fact in told if fact["exact"]] == []
        assert all(fact["restored"] == [192] for _, fact in told)


@pytest.mark.parametrize("depth", DEPTHS)
def test_nothing_is_left_held_on_the_host_or_the_device(depth):
    for title, scenarios in each_engine(depth):
        ends = [
            (title, scenario, fact)
            for scenario, facts in scenarios.items()
            for name, fact in facts.items()
            if name.endswith("end")
        ]
        assert len(ends) > 20
        left = [end for end in ends if any(end[2][what] for what in end[2] if what != "pages")]
        assert left == []


def test_the_scenarios_reach_the_boundaries_they_are_for():
    scenarios = runs("quick")[installed()]["scenarios"]
    for scenario, expected in BOUNDARIES.items():
        facts = scenarios[f"{scenario}: {HYBRID}"]
        assert {name: facts[name]["restored"] for name in expected} == expected, scenario
    assert scenarios[f"little device: {HYBRID}"]["was preempted"]
    failed = scenarios[f"failed load fails the request: {HYBRID}"]["hit"]
    assert (failed["reason"], failed["tokens"]) == ("FINISHED_ERROR", 0)


@pytest.mark.parametrize("depth", DEPTHS)
def test_all_engines_reach_the_same_boundaries(depth):
    def common(scenarios: dict[str, Any]) -> dict[str, Any]:
        return {n: facts for n, facts in scenarios.items() if not n.startswith(WHOLE_SPANS)}

    expected = common(runs(depth)[installed()]["scenarios"])
    for title, scenarios in each_engine(depth):
        told = common(scenarios)
        assert told.keys() == expected.keys()
        different = {n: (told[n], expected[n]) for n in expected if told[n] != expected[n]}
        assert different == {}, title


@pytest.mark.parametrize("depth", DEPTHS)
def test_engines_differ_in_where_a_prompt_of_whole_spans_is_resumed(depth):
    for title, scenarios in each_engine(depth):
        facts = scenarios[f"{WHOLE_SPANS}: {HYBRID}"]
        assert {name: facts[name]["restored"] for name in RESUMED[title]} == {
            name: [tokens] for name, tokens in RESUMED[title].items()
        }, title


OWN_WORDS = ("engine", "may be remapped", "parts of a state")


def common_words(words: dict[str, Any]) -> dict[str, Any]:
    return {w: said for w, said in words.items() if w not in OWN_WORDS}


@pytest.mark.parametrize("depth", DEPTHS)
def test_the_engines_own_types_are_read_alike(depth):
    expected = runs(depth)[installed()]["words"]
    assert expected["wrapped"] == {
        "stored": {"0": [256, "a", "b"], "3": [64, "w"]},
        "left out": [1, 2],
    }
    assert expected["page bytes"] == {
        "attention": 128,
        "attention, padded": 128,
        "window": 128,
        "state": 64,
        "state, padded": 64,
        "latent": 32 * 16 * 2,
        "latent, four tokens to a state": 32 // 4 * 16 * 2,
    }
    assert expected["recycled blocks"]
    for engine, told in runs(depth).items():
        assert told["words"]["engine"] == engine.name
        assert common_words(told["words"]) == common_words(expected), engine.title
    assert runs(depth)[REVOLTA]["words"]["may be remapped"] is True


@pytest.mark.parametrize("depth", DEPTHS)
def test_under_revolta_the_scenarios_run_over_what_its_model_runner_registers(depth):
    parts = {engine.name: told["words"]["parts of a state"] for engine, told in runs(depth).items()}
    assert parts == {"vLLM": 1, "ReVolta": 2}
