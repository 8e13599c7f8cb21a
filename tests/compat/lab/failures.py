"""Scenarios in which something goes wrong."""

from typing import Any

from tests.compat.lab.facts import Facts, held, lab_and_ask, tokens, told


def failed_load(kinds: tuple[str, ...], **options: Any) -> Facts:
    """A load fails in one group: the request is recomputed, and stored again."""
    facts = {}
    for group_id in [i for i, kind in enumerate(kinds) if kind != "ring"]:
        lab, ask = lab_and_ask(kinds, **options)
        ask("cold", tokens("a"))
        lab.forget()
        lab.failing_groups = {group_id}
        facts[f"group {group_id} fails"] = ask("hit", tokens("a"))
        lab.failing_groups = set()
        lab.forget()
        facts[f"group {group_id} after"] = ask("after", tokens("a"))
        facts[f"group {group_id} end"] = held(lab)
    return facts


def failed_load_beside_others(kinds: tuple[str, ...], **options: Any) -> Facts:
    """A load fails, or is refused, while a request that shares the head of its prompt runs."""
    facts = {}
    for how in ("fails", "is refused"):
        lab, ask = lab_and_ask(kinds, **options)
        ask("cold", tokens("a"))
        lab.forget()
        ask("head", tokens("a", 70))
        prompts = {"runs": tokens("a", 70), how: tokens("a")}
        if how == "fails":
            lab.failing_groups = {0}
        else:
            lab.refusal = "refused by the scenario"
        answers = {name: lab.add(name, prompt, 20) for name, prompt in prompts.items()}
        lab.drain()
        facts |= {f"{how}: {name}": told(kinds, prompts[name], answers[name]) for name in prompts}
        facts[f"{how}: end"] = held(lab)
    return facts


def failed_load_fails_the_request(kinds: tuple[str, ...], **options: Any) -> Facts:
    """The same under the policy `fail`."""
    lab, ask = lab_and_ask(kinds, policy="fail", **options)
    ask("cold", tokens("a"))
    lab.forget()
    lab.failing_groups = {0}
    facts = {"hit": ask("hit", tokens("a"))}
    lab.failing_groups = set()
    lab.forget()
    facts["after"] = ask("after", tokens("a"))
    return facts | {"end": held(lab)}


def refused_load(kinds: tuple[str, ...], **options: Any) -> Facts:
    """The connector finds that it cannot carry out a load it promised."""
    lab, ask = lab_and_ask(kinds, **options)
    ask("cold", tokens("a"))
    lab.forget()
    lab.refusal = "refused by the scenario"
    facts = {"refused": ask("refused", tokens("a"))}
    lab.forget()
    facts["after"] = ask("after", tokens("a"))
    return facts | {"end": held(lab)}


def damaged(kinds: tuple[str, ...], **options: Any) -> Facts:
    """The control: one byte of one page on the host is wrong, and the answer is."""
    facts = {}
    needed = {"attention": 3, "state": 5, "window": 5}
    for group_id, kind in enumerate(kinds):
        if kind == "ring":
            continue
        lab, ask = lab_and_ask(kinds, **options)
        ask("cold", tokens("a"))
        lab.forget()
        lab.damage("cold", group_id, needed[kind])
        facts[kind] = ask("restored", tokens("a"))
    return facts
