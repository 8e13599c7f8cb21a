"""Controls for the ring tests: rings that no prefix cache can serve are found to be wrong.

A ring is exact after a hit only where its group of compressed tokens begins at
the hit's end. These two never do, with any connector or none, and a comparison
that did not notice would prove nothing on the rings of ``test_scratch_ring``.
"""

import os
from pathlib import Path

import pytest

from tests.engine.lab import open_lab

MODELS = Path(__file__).parents[1] / "models"
PROMPT = [1 + (i * i * 7 + i) % 199 for i in range(1060)]
HIT_TOKENS = 1024
"""No multiple of 40 by accident."""


@pytest.mark.parametrize(
    ("compression_tokens", "is_sliding"),
    [(40, False), (64, True)],
    ids=["a group that does not divide the boundary", "a sliding ring"],
)
def test_a_ring_that_cannot_be_rebuilt_is_found_to_be_wrong(
    tmp_path: Path, compression_tokens: int, is_sliding: bool
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(MODELS))
        from ring_gemma3 import plugin_environment, write_ring_model
        from ring_gemma3.plugin import register

        patch.setenv("PYTHONPATH", plugin_environment(os.environ)["PYTHONPATH"])
        patch.setenv("LMCACHE_MAX_LOCAL_CPU_SIZE", "0.1")
        register()
        model = write_ring_model(
            tmp_path,
            ring_tokens=64,
            compression_tokens=compression_tokens,
            is_sliding=is_sliding,
        )
        with open_lab(model, "gemma3", max_model_len=4096) as lab:
            cold = lab.run(PROMPT)
            lab.reset()
            restored = lab.run(PROMPT)
    assert restored.cached_tokens == HIT_TOKENS
    assert restored.difference(cold) > 0.1
