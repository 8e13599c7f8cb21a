"""Groups whose blocks cover different numbers of tokens, stored and restored exactly.

LMCache's own connector on the same models: ``tests/compat/test_mp_spans.py``.
"""

import os
from pathlib import Path

import pytest

from tests.engine.lab import open_lab
from tests.models.constructions import CONSTRUCTIONS, PROMPT, Construction

MODELS = Path(__file__).parents[1] / "models"
COLD_TOLERANCE = 1e-4


@pytest.mark.parametrize("construction", CONSTRUCTIONS, ids=lambda each: each.name)
def test_unequal_spans_are_restored_exactly(tmp_path: Path, construction: Construction) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(MODELS))
        from ring_gemma3 import plugin_environment
        from spans_gemma3.plugin import register

        patch.setenv("PYTHONPATH", plugin_environment(os.environ)["PYTHONPATH"])
        patch.setenv("LMCACHE_MAX_LOCAL_CPU_SIZE", "0.1")
        register()  # vLLM looks for plugins once a process; an earlier test may have started it
        model = construction.write(tmp_path)
        with open_lab(model, "gemma3", max_model_len=4096) as lab:
            assert [group.span_tokens for group in lab.groups] == list(construction.spans)
            cold, local = lab.run(PROMPT), lab.run(PROMPT)
            lab.reset()
            restored = lab.run(PROMPT)
            assert restored.cached_tokens == local.cached_tokens == construction.hit_tokens
            assert restored.difference(local) == 0.0
            assert restored.difference(cold) <= COLD_TOLERANCE
            for group in lab.groups:
                lab.forget()
                lab.run(PROMPT)
                lab.check_damage_is_noticed(PROMPT, local, group.group_id)
