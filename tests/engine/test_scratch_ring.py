"""A24: a scratch ring is not stored, but it decides where a hit may end.

The ring model (``tests/models/ring_gemma3``) is Gemma3 with a circular buffer
that changes its output and that vLLM rebuilds from tokens. It can be rebuilt
only from a multiple of its own block, so a hit in between is wrong, quietly.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.engine.lab import Answer, Lab, open_lab

MODELS = Path(__file__).parents[1] / "models"
PROMPT_TOKENS = 1000
COLD_TOLERANCE = 1e-4


@contextmanager
def ring_lab(directory: Path, *, ring_tokens: int, writes: bool = True) -> Iterator[Lab]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(MODELS))
        from ring_gemma3 import plugin_environment, write_ring_model
        from ring_gemma3.plugin import register

        patch.setenv("PYTHONPATH", plugin_environment(os.environ)["PYTHONPATH"])
        patch.setenv("LMCACHE_MAX_LOCAL_CPU_SIZE", "0.1")
        register()  # vLLM looks for plugins once a process; an earlier test may have started it
        model_dir = write_ring_model(
            directory, ring_tokens=ring_tokens, compression_tokens=ring_tokens, writes=writes
        )
        with open_lab(model_dir, "gemma3", max_model_len=4096) as lab:
            yield lab


def cold_local_restored(lab: Lab, prompt: list[int]) -> tuple[Answer, Answer, Answer]:
    cold, local = lab.run(prompt), lab.run(prompt)
    lab.reset()
    return cold, local, lab.run(prompt)


@pytest.fixture(scope="module")
def prompt() -> list[int]:
    return [1 + (i * i * 7 + i) % 199 for i in range(PROMPT_TOKENS)]


@pytest.mark.parametrize(("ring_tokens", "hit_tokens"), [(256, 768), (16, 992)])
def test_a24_a_hit_ends_where_the_ring_can_be_rebuilt(
    tmp_path: Path, prompt: list[int], ring_tokens: int, hit_tokens: int
) -> None:
    with ring_lab(tmp_path, ring_tokens=ring_tokens) as lab:
        assert [group.group_id for group in lab.groups] == [0, 1, 2]
        assert [left_out.group_id for left_out in lab.half.tier.table.excluded] == [3]
        cold, local, restored = cold_local_restored(lab, prompt)
        assert restored.cached_tokens == local.cached_tokens == hit_tokens
        assert restored.difference(local) == 0.0
        assert restored.difference(cold) <= COLD_TOLERANCE
        for group in lab.groups:
            lab.forget()
            lab.run(prompt)
            lab.check_damage_is_noticed(prompt, local, group.group_id)


def test_a24_an_alignment_without_the_ring_resumes_wrongly(
    tmp_path: Path, prompt: list[int]
) -> None:
    """Control: the fault this case is about, made on purpose, changes the answer."""
    from dataclasses import replace

    import msgspec

    with ring_lab(tmp_path, ring_tokens=256) as lab:
        tier = lab.half.tier
        tier.rule = replace(
            tier.rule, table=msgspec.structs.replace(tier.table, alignment_tokens=32)
        )
        cold = lab.run(prompt)
        lab.reset()
        wrong = lab.run(prompt)
        assert wrong.cached_tokens == 992
        assert wrong.difference(cold) > 0.1


def test_a24_the_ring_really_changes_the_answer(tmp_path: Path, prompt: list[int]) -> None:
    """Control: with ring writes off the model answers something else."""
    with ring_lab(tmp_path / "on", ring_tokens=256) as lab:
        on = lab.run(prompt)
    with ring_lab(tmp_path / "off", ring_tokens=256, writes=False) as lab:
        off = lab.run(prompt)
    assert on.ids != off.ids
