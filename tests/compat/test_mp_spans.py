"""LMCache's multi-process connector on groups of unequal spans; ours: ``tests/engine``."""

import math
from pathlib import Path

import pytest

from compat.releases import newest
from tests.compat.mp_server import COLD_TOLERANCE, Setup, check_damage_is_noticed, difference, run
from tests.models.constructions import CONSTRUCTIONS, PROMPT, Construction

pytestmark = [pytest.mark.engine, pytest.mark.compat]

MODELS = Path(__file__).parents[1] / "models"


@pytest.mark.parametrize("construction", CONSTRUCTIONS, ids=lambda each: each.name)
def test_the_newest_release_restores_unequal_spans_exactly(
    tmp_path: Path, construction: Construction
):
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(MODELS))
        model = construction.write(tmp_path)
    chunk_tokens = math.lcm(*construction.spans)
    setup = Setup(newest().version, "auto", chunk_tokens, tmp_path, plugins=(MODELS,))
    found = run(setup, model, PROMPT, construction.hit_tokens)
    stored = [span for span in found.spans if span]
    assert stored == list(construction.spans)
    assert found.restored["cached_tokens"] == found.local["cached_tokens"]
    assert found.restored["cached_tokens"] == construction.hit_tokens
    assert difference(found.restored, found.local) == 0.0
    assert difference(found.restored, found.cold) <= COLD_TOLERANCE
    check_damage_is_noticed(found)
