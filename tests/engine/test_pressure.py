"""Eight requests at once, with so few device blocks that some are preempted.

Ids are compared in full where arithmetic is float32. In bfloat16 the engine's
own answers depend on how requests were batched, so there the first ids and the
stored pages are compared: a page read from the wrong block, or too late, is as
far from the right one as two random pages are.
"""

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from lmc_grouped.tools.tiny_models import find_recipe
from tests.engine.conftest import model_dir
from tests.engine.lab import Lab, open_lab
from tests.engine.test_exactness import boundary
from tests.engine.test_failures import nothing_is_held

CROWDS = {
    "llama": {"device_blocks": 60, "prompt_tokens": 400, "answer_tokens": 150},
    "gemma3": {"device_blocks": 100, "prompt_tokens": 200, "answer_tokens": 150},
    "qwen3_next": {"device_blocks": 24, "prompt_tokens": 700, "answer_tokens": 150},
}
"""Room for three or four of the eight requests, by model."""


@pytest.fixture(scope="module", params=sorted(CROWDS))
def name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def lab(name: str) -> Iterator[Lab]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LMCACHE_MAX_LOCAL_CPU_SIZE", "0.25")
        with open_lab(
            model_dir(name),
            name,
            max_num_batched_tokens=512,
            max_model_len=1024 if name == "qwen3_next" else 640,
            num_gpu_blocks_override=CROWDS[name]["device_blocks"],
        ) as lab:
            yield lab


def preemptions(lab: Lab) -> int:
    return sum(m.value for m in lab.llm.get_metrics() if m.name == "vllm:num_preemptions")


def numbers(page: np.ndarray, dtype: str) -> torch.Tensor:
    """The page's bytes as the model's numbers."""
    return torch.from_numpy(page.copy()).view(getattr(torch, dtype)).float()


def stored_pages(lab: Lab, prompt: list[int]) -> dict[tuple[int, int], np.ndarray]:
    """(group, page) -> bytes of everything needed to restore the prompt."""
    slots = lab.stored_slots(prompt, boundary(lab, len(prompt)))
    return {
        (group_id, page): lab.slot_bytes(group_id, slot).copy()
        for group_id, pages in slots.items()
        for page, slot in pages.items()
    }


def distance(page: np.ndarray, reference: np.ndarray, dtype: str) -> float:
    """0 for equal pages, about 1.4 for unrelated ones."""
    a, b = numbers(page, dtype), numbers(reference, dtype)
    return float((a - b).norm() / b.norm())


def test_preempted_requests_come_back_right(lab: Lab, name: str) -> None:
    crowd, dtype = CROWDS[name], find_recipe(name).dtype
    answer_tokens = crowd["answer_tokens"]
    prompts = [lab.prompt(crowd["prompt_tokens"] + 7 * i) for i in range(8)]
    alone = [lab.run(prompt, answer_tokens) for prompt in prompts]
    references = [stored_pages(lab, prompt) for prompt in prompts]
    lab.forget()
    before = preemptions(lab)
    crowded = lab.run_all(prompts, answer_tokens)
    assert preemptions(lab) > before, "there was room for all: nothing was shown"
    lab.run(lab.prompt(40))
    for prompt, reference in zip(prompts, references, strict=True):
        for key, page in stored_pages(lab, prompt).items():
            assert distance(page, reference[key], dtype) < 0.05, f"group and page {key}"
    lab.reset()
    restored = lab.run_all(prompts, answer_tokens)
    same = answer_tokens if dtype == "float32" else 8
    for reference, first, second in zip(alone, crowded, restored, strict=True):
        assert first.ids[:same] == reference.ids[:same]
        assert second.ids[:same] == reference.ids[:same]
        assert second.cached_tokens > 0
    lab.run(lab.prompt(40))
    assert nothing_is_held(lab)


def test_the_comparison_of_pages_tells_a_wrong_page(lab: Lab, name: str) -> None:
    """Control: the page of another prompt is far away in every group."""
    prompts = [lab.prompt(CROWDS[name]["prompt_tokens"]) for _ in range(2)]
    for prompt in prompts:
        lab.run(prompt)
    mine, other = (stored_pages(lab, prompt) for prompt in prompts)
    for key, page in mine.items():
        assert distance(other[key], page, find_recipe(name).dtype) > 0.2, f"group and page {key}"
