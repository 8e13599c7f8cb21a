"""What the scheduler half goes through under each engine; every scenario gives plain facts."""

import tempfile
from collections.abc import Callable, Iterator
from typing import Any

from tests.compat.lab import failures, layouts
from tests.compat.lab.engine import Lab
from tests.compat.lab.facts import Facts, held, lab_and_ask, tokens, told
from tests.compat.lab.model import next_token


def store_reset_restore(kinds: tuple[str, ...], **options: Any) -> Facts:
    """A prompt cold, from the device, and from the host after a reset; lengths around edges."""
    lab, ask = lab_and_ask(kinds, **options)
    facts = {"cold": ask("cold", tokens("a")), "local hit": ask("local", tokens("a"))}
    lab.forget()
    facts["restored"] = ask("restored", tokens("a"))
    for count in (31, 33, 63, 65, 191, 193):
        lab.forget()
        facts[f"first {count}"] = ask(f"first {count}", tokens("a", count))
        lab.forget()
        facts[f"again {count}"] = ask(f"again {count}", tokens("a", count))
    return facts | {"end": held(lab)}


def whole_spans(kinds: tuple[str, ...], **options: Any) -> Facts:
    """A prompt that ends where a span ends, the same again, and a longer sibling.

    Engines differ: ReVolta hands off the state at the end of the prompt too, where
    the sibling resumes; vLLM only the one before, where the same prompt does.
    """
    lab, ask = lab_and_ask(kinds, **options)
    facts = {}
    for name, count in (("first", 64), ("again", 64), ("sibling", 100)):
        facts[name] = ask(name, tokens("a", count))
        lab.forget()
    return facts | {"end": held(lab)}


def junction(kinds: tuple[str, ...], **options: Any) -> Facts:
    """Siblings that share 150 tokens, with a reset between any two."""
    lab, ask = lab_and_ask(kinds, **options)
    facts = {}
    for name in ("one", "two", "three", "four"):
        facts[name] = ask(name, tokens(name, shared=150))
        lab.forget()
    return facts | {"end": held(lab)}


def local_and_host(kinds: tuple[str, ...], **options: Any) -> Facts:
    """A prefix of which the device holds the head and the host the rest."""
    lab, ask = lab_and_ask(kinds, **options)
    facts = {"cold": ask("cold", tokens("a"))}
    lab.forget()
    facts["head"] = ask("head", tokens("a", 70))
    facts["whole"] = ask("whole", tokens("a"))
    return facts | {"end": held(lab)}


def next_turn(kinds: tuple[str, ...], **options: Any) -> Facts:
    """A prompt, 70 generated tokens, then both as the head of the next prompt."""
    lab, ask = lab_and_ask(kinds, **options)
    prompt = tokens("a")
    facts = {"first": ask("first", prompt, 70)}
    answer = [next_token(digest) for digest in lab.answers["first"].digests]
    lab.forget()
    facts["second"] = ask("second", prompt + answer + tokens("more", 30))
    return facts | {"end": held(lab)}


def preemption(kinds: tuple[str, ...], **options: Any) -> Facts:
    """Two running requests lose all their blocks at once, and all they had on the device.

    What they stored after that is read by the turn after the next.
    """
    lab, ask = lab_and_ask(kinds, **options)
    prompts = {"one": tokens("one", 250), "two": tokens("two", 170)}
    answers = {name: lab.add(name, prompt, 100) for name, prompt in prompts.items()}
    while len(answers["two"].digests) < 20:
        lab.step()
    lab.forget(running=True)
    lab.drain()
    facts = {name: told(kinds, prompts[name], answers[name]) for name in prompts}
    answer = [next_token(digest) for digest in answers["one"].digests]
    for turn in ("next", "the same again"):
        lab.forget()
        facts[turn] = ask(turn, prompts["one"] + answer + tokens("more", 30))
    return facts | {"end": held(lab)}


def little_device(kinds: tuple[str, ...], **options: Any) -> Facts:
    """Two requests outgrow the device and take each other's blocks.

    Which tokens come from the device then is the engine's affair, so only the
    outcome is told.
    """
    lab = Lab(kinds, num_blocks=26 + 8 * ("window" in kinds), **options)
    prompts = {"one": tokens("one", 250), "two": tokens("two", 250)}
    answers = {name: lab.add(name, prompt, 100) for name, prompt in prompts.items()}
    lab.drain()
    facts = {name: told(kinds, prompts[name], answers[name]) for name in prompts}
    outcome = {name: {"exact": fact["exact"]} for name, fact in facts.items()}
    was_preempted = any(fact["preemptions"] for fact in facts.values())
    return outcome | {"was preempted": was_preempted, "left": held(lab)["held slots"]}


def crowd(kinds: tuple[str, ...], **options: Any) -> Facts:
    """Six requests at once, some of which restore while others compute, twice."""
    lab = Lab(kinds, num_blocks=256, **options)
    facts = {}
    for turn in ("first", "second"):
        prompts = {
            f"{turn} {name}": tokens(name, 120 + 22 * index, shared=100)
            for index, name in enumerate("abcdef")
        }
        answers = {name: lab.add(name, prompt, 10) for name, prompt in prompts.items()}
        lab.drain()
        facts |= {name: told(kinds, prompts[name], answers[name]) for name in prompts}
        lab.forget()
    return facts | {"end": held(lab)}


def little_room(kinds: tuple[str, ...], **options: Any) -> Facts:
    """A host too small for two prompts at once: stores stall, go on later, and pages leave."""
    lab = Lab(kinds, num_blocks=256, host_pages=16, **options)
    facts = {}
    for turn in range(3):
        prompts = {f"{name} {turn}": tokens(name, 300) for name in ("one", "two")}
        answers = {
            name: lab.add(name, prompt, 40 * (1 + index))
            for index, (name, prompt) in enumerate(prompts.items())
        }
        lab.drain()
        facts |= {name: told(kinds, prompts[name], answers[name]) for name in prompts}
        lab.forget()
    return facts | {"end": held(lab)}


def disk(kinds: tuple[str, ...], **options: Any) -> Facts:
    """The engine is started again over the same directory."""
    facts = {}
    with tempfile.TemporaryDirectory() as directory:
        settings = {"lmcache.local_disk": directory, "lmcache.max_local_disk_size": 1 / 2**10}
        for start in ("first", "second"):
            lab, ask = lab_and_ask(kinds, **settings, **options)
            facts[start] = ask(start, tokens("a"))
            lab.close()
    return facts


SCENARIOS = (
    store_reset_restore,
    whole_spans,
    junction,
    local_and_host,
    next_turn,
    preemption,
    little_device,
    failures.failed_load,
    failures.failed_load_beside_others,
    failures.failed_load_fails_the_request,
    failures.refused_load,
    crowd,
    little_room,
    disk,
    failures.damaged,
)

INTERLEAVED = (preemption, little_device, crowd, little_room)
"""Several requests share the tokens of a step, and how is the engine's affair."""

VARIANTS: dict[str, Facts] = {
    "": {},
    ", chunks of 64": {"chunk_tokens": 64},
    ", static pools": {"cpu_group_partition": "static"},
    # Every state is kept that a step leaves, and a step ends at every boundary.
    ", all states": {"retention": None, "chunk_tokens": 32},
}


def names(*, quick: bool) -> Iterator[tuple[str, Callable[[], Facts]]]:
    """All scenarios, in one variant or in all."""
    for kinds in (layouts.HYBRID, layouts.WINDOWED):
        for variant, options in list(VARIANTS.items())[: 1 if quick else None]:
            for scenario in SCENARIOS:
                if scenario in INTERLEAVED and options.get("chunk_tokens") == layouts.SPAN_TOKENS:
                    continue
                name = scenario.__name__.replace("_", " ")
                yield (
                    f"{name}: {', '.join(kinds)}{variant}",
                    lambda s=scenario, k=kinds, o=options: s(k, **o),
                )
