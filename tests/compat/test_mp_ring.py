"""LMCache's multi-process connector on a model with a scratch ring, without and with patches.

Each test starts LMCache's cache server and an engine: half a minute each. The
model is Gemma3 with a ring that changes its output (``tests/models``). Our own
connector on the same model: ``tests/engine/test_scratch_ring.py``.
"""

from pathlib import Path

import pytest

from tests.compat.mp_server import (
    COLD_TOLERANCE,
    Outcome,
    Setup,
    check_damage_is_noticed,
    difference,
    run,
)

pytestmark = [pytest.mark.engine, pytest.mark.compat]

MODELS = Path(__file__).parents[1] / "models"


def on_ring(
    directory: Path,
    version: str,
    patches: str,
    *,
    ring_tokens: int,
    chunk_tokens: int,
    expected_tokens: int,
    prompt_tokens: int = 1000,
) -> Outcome:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(MODELS))
        from ring_gemma3 import write_ring_model

        model = write_ring_model(
            directory / "model", ring_tokens=ring_tokens, compression_tokens=ring_tokens
        )
    prompt = [1 + (i * i * 7 + i) % 199 for i in range(prompt_tokens)]
    setup = Setup(version, patches, chunk_tokens, directory, plugins=(MODELS,))
    return run(setup, model, prompt, expected_tokens)


def test_a01_release_0_5_5_stores_nothing_beside_a_ring(tmp_path: Path):
    found = on_ring(tmp_path, "0.5.5", "none", ring_tokens=16, chunk_tokens=256, expected_tokens=0)
    assert found.spans == [32, 32, 32, 16]
    assert found.restored["cached_tokens"] == 0
    assert found.patches_logged == []


def test_a01_with_patches_release_0_5_5_stores_and_restores_exactly(tmp_path: Path):
    found = on_ring(
        tmp_path, "0.5.5", "auto", ring_tokens=16, chunk_tokens=256, expected_tokens=768
    )
    assert found.spans == [32, 32, 32, 0]
    assert found.restored["cached_tokens"] == 768
    assert difference(found.restored, found.cold) <= COLD_TOLERANCE
    check_damage_is_noticed(found)
    assert len(found.patches_logged) == 6
    applied = [name for name in ("P1", "P2") for line in found.patches_logged
               if f"patch {name} " in line and ": applied;" in line]  # fmt: skip
    assert applied == ["P1", "P2"]


@pytest.mark.parametrize(
    ("prompt_tokens", "chunk_tokens", "wrong_tokens", "right_tokens"),
    [(1000, 32, 992, 768), (768, 256, 767, 512)],
    ids=["between ring blocks", "a full hit is rewound"],
)
def test_a24_release_0_5_6_resumes_where_a_ring_cannot_be_rebuilt(
    tmp_path: Path, prompt_tokens: int, chunk_tokens: int, wrong_tokens: int, right_tokens: int
):
    def asked(patches: str, expected_tokens: int) -> Outcome:
        return on_ring(
            tmp_path,
            "0.5.6",
            patches,
            ring_tokens=256,
            chunk_tokens=chunk_tokens,
            expected_tokens=expected_tokens,
            prompt_tokens=prompt_tokens,
        )

    plain = asked("none", wrong_tokens)
    assert plain.restored["cached_tokens"] == wrong_tokens
    assert difference(plain.restored, plain.cold) > 0.1
    patched = asked("auto", right_tokens)
    assert patched.restored["cached_tokens"] == right_tokens
    assert difference(patched.restored, patched.local) == 0.0
    assert difference(patched.restored, patched.cold) <= COLD_TOLERANCE
    check_damage_is_noticed(patched)
