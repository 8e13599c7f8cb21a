"""The requests and their clocks."""

import os
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from lmc_grouped.tools.bench_restore.figures import Phase, Sample, Side, rotate
from lmc_grouped.tools.bench_restore.sides import Running
from lmc_grouped.tools.certify.errors import RequestRefused
from lmc_grouped.tools.certify.http import HttpClient
from lmc_grouped.tools.certify.messages import Chunk, decode
from lmc_grouped.tools.certify.metrics import Counters
from lmc_grouped.tools.certify.server import COMPLETIONS
from lmc_grouped.tools.certify.server import Server as Asked
from lmc_grouped.tools.errors import ToolError
from lmc_grouped.tools.tiny_models.tokenizer import BYTE_TOKENS

OUTPUT_TOKENS = 8
SETTLE_SECONDS = 0.5
"""After a request: a store that runs beside the engine ends within it."""
COUNTER_WAIT_SECONDS = 3.0
POLL_SECONDS = 0.02
IDLE_PROBE_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Plan:
    """How often and what to ask."""

    rounds: int
    """Measured rounds; one more comes before them and is thrown away."""
    prompt_tokens: Sequence[int]
    seed: int
    chunk_tokens: int
    """A restore that brings less than the prompt's whole chunks is an error."""


def idle_share(sides: Sequence[Running]) -> float:
    """Processor cores that all sides use together while nobody asks anything."""
    before = [side.cpu_seconds() for side in sides]
    time.sleep(IDLE_PROBE_SECONDS)
    used = sum(side.cpu_seconds() - then for side, then in zip(sides, before, strict=True))
    return used / IDLE_PROBE_SECONDS


class OtherLoad:
    """What processes that are not part of the bench use, from construction on."""

    def __init__(self, sides: Sequence[Running]) -> None:
        self._sides = sides
        self._started = time.monotonic()
        self._others_before = self._other_seconds()

    def cores(self) -> float:
        """Processor cores the others have used on average."""
        return (self._other_seconds() - self._others_before) / (time.monotonic() - self._started)

    def _other_seconds(self) -> float:
        user, nice, system, _, _, irq, softirq, steal = _machine_ticks()
        busy = (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")
        return busy - time.process_time() - sum(side.cpu_seconds() for side in self._sides)


def _machine_ticks() -> list[int]:
    """The first eight columns of the machine's line in /proc/stat."""
    return [int(ticks) for ticks in Path("/proc/stat").read_text().split(maxsplit=9)[1:9]]


def run_rounds(sides: Sequence[Running], plan: Plan) -> Iterator[Sample]:
    """Every measurement of every round, the warm-up excepted.

    Raises ToolError when a phase was not what it is called: a prompt that was
    not cold, a restore that did not happen.
    """
    clients = {running.side: _Client(running) for running in sides}
    for round_index in range(-1, plan.rounds):
        for tokens in plan.prompt_tokens:
            ids = make_prompt(plan.seed, round_index, tokens)
            for side in rotate(list(clients), round_index):
                for sample in _measure(clients[side], side, ids, round_index, plan):
                    if round_index >= 0:
                        yield sample


def make_prompt(seed: int, round_index: int, tokens: int) -> tuple[int, ...]:
    """Random bytes as token ids; the same arguments give the same prompt."""
    rng = random.Random(f"{seed} {round_index} {tokens}")
    return tuple(rng.choices(range(BYTE_TOKENS), k=tokens))


def required_hit_tokens(prompt_tokens: int, chunk_tokens: int) -> int:
    """Whole chunks of the prompt; the last token is always computed."""
    return (prompt_tokens - 1) // chunk_tokens * chunk_tokens


def _measure(
    client: "_Client", side: Side, ids: Sequence[int], round_index: int, plan: Plan
) -> Iterator[Sample]:
    yield client.ask(ids, Phase.COLD, round_index, hit_at_least=0)
    hit = required_hit_tokens(len(ids), plan.chunk_tokens)
    if side is Side.NONE:
        yield client.ask(ids, Phase.LOCAL, round_index, hit)
    else:
        client.reset()
        yield client.ask(ids, Phase.RESTORED, round_index, hit)
    client.reset()


class _Client:
    """One side's server, asked and timed."""

    def __init__(self, running: Running) -> None:
        self._side = running.side
        self._disk_seconds = running.disk_seconds
        self._model = running.server.model
        self._http: HttpClient = running.server.client()
        self._asked = Asked(self._http, self._model, with_logprobs=False)

    def _settle(self) -> None:
        """Let what runs beside the engine end, and the engine notice it."""
        self._asked.nudge()
        time.sleep(SETTLE_SECONDS)
        self._asked.nudge()

    def reset(self) -> None:
        """Empty the engine's own prefix cache."""
        if not self._asked.reset_prefix_cache():
            raise ToolError(f"{self._side}: the engine's prefix cache did not reset")

    def ask(self, ids: Sequence[int], phase: Phase, round_index: int, hit_at_least: int) -> Sample:
        """One timed request, checked against the counters, and what runs behind it."""
        before, disk_before = self._counters(), self._disk_seconds()
        first_token_seconds, total_seconds = self._time(ids)
        moved = self._moved(before, len(ids))
        self._settle()
        hits = {
            Phase.COLD: moved.local_hit_tokens + moved.restored_tokens,
            Phase.RESTORED: moved.restored_tokens,
            Phase.LOCAL: moved.local_hit_tokens,
        }[phase]
        others = moved.local_hit_tokens if phase is Phase.RESTORED else 0
        if hits < hit_at_least or others or (phase is Phase.COLD and hits):
            raise ToolError(
                f"{self._side}, round {round_index}: a prompt of {len(ids)} tokens was to be "
                f"{phase}, with {hit_at_least} tokens from a cache or more, and had "
                f"{moved.restored_tokens} from the connector and {moved.local_hit_tokens} from "
                "the engine's own cache: see the server's log"
            )
        return Sample(
            self._side, phase, len(ids), round_index, first_token_seconds, total_seconds, hits,
            self._disk_seconds() - disk_before,
        )  # fmt: skip

    def _time(self, ids: Sequence[int]) -> tuple[float, float]:
        """Seconds from sending the request to its first token and to its end."""
        body: dict[str, object] = {
            "model": self._model,
            "prompt": list(ids),
            "max_tokens": OUTPUT_TOKENS,
            "temperature": 0.0,
            "ignore_eos": True,
            "stream": True,
        }
        first_token_at: float | None = None
        sent = time.perf_counter()
        for payload in self._http.stream(COMPLETIONS, body):
            chunk = decode(payload, Chunk, COMPLETIONS)
            if chunk.error is not None:
                answer = bytes(chunk.error).decode(errors="replace")
                raise RequestRefused(f"POST {COMPLETIONS}", 500, answer)
            if first_token_at is None and chunk.choices:
                first_token_at = time.perf_counter()
        ended = time.perf_counter()
        if first_token_at is None:
            raise ToolError(f"{self._side}: the answer has no token")
        return first_token_at - sent, ended - sent

    def _counters(self) -> Counters:
        counters = self._asked.counters()
        if counters is None:
            raise ToolError(f"{self._side}: /metrics has no prefix-cache counters")
        return counters

    def _moved(self, before: Counters, prompt_tokens: int) -> Counters:
        """How far the counters moved; they follow the last token by a moment."""
        deadline = time.monotonic() + COUNTER_WAIT_SECONDS
        while (moved := self._counters().since(before)).prompt_tokens < prompt_tokens:
            if time.monotonic() > deadline:
                raise ToolError(
                    f"{self._side}: the server counted {moved.prompt_tokens} of "
                    f"{prompt_tokens} prompt tokens"
                )
            time.sleep(POLL_SECONDS)
        if moved.prompt_tokens > prompt_tokens:
            raise ToolError(
                f"{self._side}: the server counted {moved.prompt_tokens} prompt tokens, the "
                f"request has {prompt_tokens}: somebody else uses the server"
            )
        return moved
