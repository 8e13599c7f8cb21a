"""What scenarios have in common: prompts, and what became of them as plain facts."""

from collections.abc import Callable
from typing import Any

from tests.compat.lab.engine import Lab
from tests.compat.lab.model import alone
from tests.compat.lab.watch import Answer

Facts = dict[str, Any]
PROMPT_TOKENS = 200


def tokens(name: str, count: int = PROMPT_TOKENS, *, shared: int = 0) -> list[int]:
    """A prompt; those of other names differ from its ``shared``-th token on."""
    seed = sum(name.encode())
    return [(7 * i if i < shared else 11 * i + seed) % 4001 for i in range(count)]


def told(kinds: tuple[str, ...], prompt: list[int], answer: Answer) -> Facts:
    """An answer as facts, compared with what the model says without an engine."""
    return {
        "local": answer.local,
        "restored": answer.restored,
        "preemptions": answer.preemptions,
        "reason": answer.reason,
        "exact": answer.digests == alone(kinds, prompt, len(answer.digests)),
        "tokens": len(answer.digests),
    }


def held(lab: Lab) -> Facts:
    """What the host holds at the end, and that nothing is left under way."""
    residency = lab.half.tier.index.residency()
    usable = lab.scheduler.kv_cache_manager.block_pool
    return {
        "pages": {group_id: pool.resident_pages for group_id, pool in residency.items()},
        "held slots": sum(pool.held_slots for pool in residency.values()),
        "blocks in use": usable.num_gpu_blocks - 1 - usable.get_num_free_blocks(),
        "requests": len(lab.half.tier.requests),
    }


def lab_and_ask(kinds: tuple[str, ...], **options: Any) -> tuple[Lab, Callable[..., Facts]]:
    """A lab, and a way to ask it that gives facts."""
    lab = Lab(kinds, **options)

    def ask(name: str, prompt: list[int], new_tokens: int = 4) -> Facts:
        return told(kinds, prompt, lab.ask(name, prompt, new_tokens))

    return lab, ask
