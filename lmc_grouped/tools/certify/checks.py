"""The checks, in the order they are made."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from lmc_grouped.tools.certify.judge import Demand, judge, judge_cold
from lmc_grouped.tools.certify.outputs import References
from lmc_grouped.tools.certify.report import Row
from lmc_grouped.tools.certify.session import TURN_TOKENS, FirstPrompt, NotCheckable, Session

SIBLINGS = 4
BOUNDARY_PROMPT_TOKENS = 1024
"""About the length of the prompts around a block boundary: long enough for a
store in chunks of a few hundred tokens to hold some of it."""


@dataclass(frozen=True, slots=True)
class Check:
    """One or more rows of the report that are made together."""

    names: tuple[str, ...]
    run: Callable[[Session], Iterator[Row]]
    """Yields one row per name. May raise NotCheckable, RequestRefused and
    ServerGone; the names that have no row yet are then filled in."""
    needs_reset: bool = True


def check_first_prompt(session: Session) -> Iterator[Row]:
    """A new prompt, and the same again at once."""
    ids = session.prompts.prompt("first", session.options.prompt_tokens)
    cold = session.server.complete(ids)
    session.first = FirstPrompt(ids, References(cold=cold))
    yield judge_cold("cold", cold)
    local = session.server.complete(ids)
    session.first = FirstPrompt(ids, References(cold, (local,)))
    most = session.floor_to_block(len(ids))
    demand = Demand(
        restored_at_most_tokens=most, local_at_least_tokens=1, local_at_most_tokens=most
    )
    yield judge("local hit", local, References(cold), demand, session.options.tolerances)


def check_restored(session: Session) -> Iterator[Row]:
    """The first prompt when only the connector still has it."""
    first = _first(session)
    run = session.restore(first.ids)
    yield session.judge_restored(
        "restored", first.ids, run, first.references, session.required_tokens(len(first.ids))
    )


def check_multi_turn(session: Session) -> Iterator[Row]:
    """The first prompt, its answer and a new turn: restored where turn one ended."""
    first = _first(session)
    cold = first.references.cold
    if cold is None or cold.output_ids is None:
        raise NotCheckable("there is no answer to continue: the server returns no token ids")
    ids = first.ids + cold.output_ids + session.prompts.turn("turn two", TURN_TOKENS)
    run = session.restore(ids)
    salt = session.prompts.salt("turns")
    session.server.complete(first.ids, salt=salt)
    references = References(
        local_hits=(session.server.complete(ids, salt=salt),),
        cold=session.server.complete(ids, salt=session.prompts.salt("turns cold")),
    )
    yield session.judge_restored(
        "multi-turn", ids, run, references, session.required_tokens(len(first.ids))
    )


def check_siblings(session: Session) -> Iterator[Row]:
    """Prompts that share all but their tails.

    A recurrent model keeps no state inside a prefix until a second prompt shows
    that it is shared, so the third prompt is the first that must restore.
    """
    block = session.offer.cache.tokens_per_block or 1
    # The tail is longer than a block: the boundary at the end of a prompt must
    # not also be the end of the shared part.
    tail_tokens = block + TURN_TOKENS
    shared_tokens = session.options.prompt_tokens - tail_tokens
    if shared_tokens <= block:
        raise NotCheckable(
            f"--tokens {session.options.prompt_tokens} leaves less than one block of {block} "
            f"tokens to share: give at least {2 * block + TURN_TOKENS + 1}"
        )
    shared = session.prompts.prompt("shared", shared_tokens)
    prompts = [
        shared + session.prompts.turn(f"tail {number}", tail_tokens)
        for number in range(1, SIBLINGS + 1)
    ]
    runs = [session.restore(ids) for ids in prompts]
    salt = session.prompts.salt("siblings")
    local_hits = [session.server.complete(ids, salt=salt) for ids in prompts]
    for number, ids in enumerate(prompts, start=1):
        cold = session.server.complete(ids, salt=session.prompts.salt(f"sibling {number} cold"))
        references = References(cold, (local_hits[number - 1],))
        yield session.judge_restored(
            f"sibling {number}",
            ids,
            runs[number - 1],
            references,
            at_least_tokens=1 if number == SIBLINGS else 0,
            at_most_tokens=0 if number == 1 else None,
        )


def check_block_boundary(session: Session) -> Iterator[Row]:
    """Prompts that end just before, at and just after a block's end."""
    block = session.offer.cache.tokens_per_block
    if block is None:
        raise NotCheckable("/metrics does not tell the block size (vllm:cache_config_info)")
    wanted_tokens = min(max(3 * block, BOUNDARY_PROMPT_TOKENS), session.options.prompt_tokens - 1)
    boundary = wanted_tokens // block * block
    if boundary < 2 * block:
        raise NotCheckable(
            f"--tokens {session.options.prompt_tokens} is less than two blocks of {block}: "
            f"give at least {2 * block + 1}"
        )
    for name, tokens in zip(BOUNDARY_NAMES, (boundary - 1, boundary, boundary + 1), strict=True):
        ids = session.prompts.prompt(name, tokens)
        references = References(
            cold=session.server.complete(ids), local_hits=(session.server.complete(ids),)
        )
        run = session.restore(ids)
        yield session.judge_restored(name, ids, run, references, at_least_tokens=1)


def check_pressure(session: Session) -> Iterator[Row]:
    """The first prompt after more new tokens than the host tier holds."""
    left_tokens = session.options.pressure_tokens
    if left_tokens == 0:
        raise NotCheckable("not asked for: give --pressure-tokens above the host tier's capacity")
    first = _first(session)
    number = 0
    while left_tokens > 0:
        number += 1
        tokens = min(left_tokens, session.options.prompt_tokens)
        session.server.complete(
            session.prompts.prompt(f"pressure {number}", tokens), output_tokens=1
        )
        left_tokens -= tokens
    run = session.restore(first.ids)
    yield session.judge_restored(
        "after pressure", first.ids, run, first.references, at_least_tokens=0
    )


def check_after_restart(session: Session) -> Iterator[Row]:
    """The first prompt of an earlier run with the same seed, on a server started anew."""
    ids = session.prompts.prompt("first", session.options.prompt_tokens)
    run = session.restore(ids)
    references = References(cold=session.server.complete(ids, salt=session.prompts.salt("restart")))
    yield session.judge_restored(
        "after restart", ids, run, references, session.required_tokens(len(ids))
    )


def _first(session: Session) -> FirstPrompt:
    if session.first is None:
        raise NotCheckable("the first prompt did not run")
    return session.first


BOUNDARY_NAMES = ("block end - 1", "block end", "block end + 1")

CHECKS = (
    Check(("cold", "local hit"), check_first_prompt, needs_reset=False),
    Check(("restored",), check_restored),
    Check(("multi-turn",), check_multi_turn),
    Check(tuple(f"sibling {number}" for number in range(1, SIBLINGS + 1)), check_siblings),
    Check(BOUNDARY_NAMES, check_block_boundary),
    Check(("after pressure",), check_pressure),
)

RESTART_CHECKS = (Check(("after restart",), check_after_restart),)
