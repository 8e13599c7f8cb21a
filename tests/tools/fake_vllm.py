"""A scripted vLLM server: real HTTP, a prefix cache in two tiers, faults to order.

It computes nothing. The answer is a digest of the prompt, so it depends on the
whole prompt; what a cache holds are boundaries of prompts it has seen.
"""

import json
import threading
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

BLOCK_TOKENS = 16
MODEL = "fake"
LISTED = 5


@dataclass(frozen=True, slots=True)
class Behaviour:
    """How this server differs from one that works; the defaults are one that does."""

    has_connector: bool = True
    has_reset: bool = True
    has_logprobs: bool = True
    has_token_ids: bool = True
    has_metrics: bool = True
    tells_block_size: bool = True
    honours_salt: bool = True
    is_recurrent: bool = False
    """Keeps a state only at the end of a prompt and at junctions."""
    has_junctions: bool = True
    """The connector tells the engine of prefixes that turn out to be shared."""
    wrong_ids_after_restore: bool = False
    hit_logprob_shift: float = 0.0
    """Per 1,000 hit tokens of whatever tier: what other kernel shapes do."""
    connector_chunk_blocks: int = 1
    """The connector restores in multiples of this."""
    restore_logprob_shift: float = 0.0
    tie_after_hit: bool = False
    """A hit of either tier swaps two equally likely tokens."""
    restores_past_end: bool = False
    loads_fail: bool = False
    """The connector promises and does not deliver."""
    refuses_after_restore: bool = False
    host_tier_boundaries: int = 1_000_000
    dies_at_completion: int | None = None
    strangers_prompt_tokens: int = 0
    """Prompt tokens of another client during each request."""
    resets_refused: int = 0
    late_reads: int = 0
    """How often /metrics still shows the old counters after a request."""
    max_model_len: int = 4096
    engines: int = 1


@dataclass(slots=True)
class Tier:
    """The boundaries one tier can serve: attention pages, recurrent states."""

    pages: dict[int, None] = field(default_factory=dict)
    states: dict[int, None] = field(default_factory=dict)

    def reach(self, keys: list[int], limit: int) -> int:
        """Blocks of attention in a row, from the start."""
        reach = 0
        while reach < min(limit, len(keys)) and keys[reach] in self.pages:
            reach += 1
        return reach

    def hit(self, keys: list[int], reach: int, is_recurrent: bool) -> int:
        """Blocks a request can take."""
        if not is_recurrent:
            return reach
        return next((b for b in range(reach, 0, -1) if keys[b - 1] in self.states), 0)


class FakeVllm:
    """State of the server; one request at a time."""

    def __init__(self, behaviour: Behaviour) -> None:
        self.behaviour = behaviour
        self.local = Tier()
        self.external = Tier()
        self.completions = 0
        self.resets = 0
        self.counted = {"prompt": 0, "local": 0, "external": 0, "promised": 0, "queries": 0}
        self.shown = self.counted
        self.late_reads = 0
        self.ranks: list[str | None] = []

    def complete(self, body: dict[str, Any]) -> list[dict[str, Any]]:
        """The events of one completion."""
        prompt: list[int] = body["prompt"]
        self.shown, self.late_reads = dict(self.counted), self.behaviour.late_reads
        salt = body.get("cache_salt", "") if self.behaviour.honours_salt else ""
        local, external = self._serve(prompt, salt)
        self.counted["prompt"] += len(prompt) + self.behaviour.strangers_prompt_tokens
        return [
            self._event(prompt, position, local, external, body)
            for position in range(body["max_tokens"])
        ]

    def _serve(self, prompt: list[int], salt: str) -> tuple[int, int]:
        """Hit tokens, local and external; stores the prompt in both tiers."""
        how = self.behaviour
        keys, key = [], zlib.crc32(salt.encode())
        for end in range(BLOCK_TOKENS, len(prompt) + 1, BLOCK_TOKENS):
            key = zlib.crc32(repr(prompt[end - BLOCK_TOKENS : end]).encode(), key)
            keys.append(key)
        last = (len(prompt) - 1) // BLOCK_TOKENS
        local_reach = self.local.reach(keys, last)
        local = self.local.hit(keys, local_reach, how.is_recurrent)
        external, reach = 0, local_reach
        if how.has_connector:
            limit = len(keys) if how.restores_past_end else last
            external_reach = self.external.reach(keys, limit)
            held = self.external.hit(keys, external_reach, how.is_recurrent)
            external = max(
                0, held // how.connector_chunk_blocks * how.connector_chunk_blocks - local
            )
            if how.has_junctions:
                reach = max(reach, external_reach)
            self.counted["queries"] += len(prompt)
        self._store(keys, {last, reach} - {0})
        local, external = local * BLOCK_TOKENS, external * BLOCK_TOKENS
        self.counted["promised"] += external
        if how.loads_fail:
            external = 0
        self.counted["local"] += local
        self.counted["external"] += external
        return local, external

    def _store(self, keys: list[int], state_blocks: set[int]) -> None:
        for tier in (self.local, self.external):
            tier.pages |= dict.fromkeys(keys)
            tier.states |= dict.fromkeys(keys[blocks - 1] for blocks in state_blocks)
        for held in (self.external.pages, self.external.states):
            while len(held) > self.behaviour.host_tier_boundaries:
                del held[next(iter(held))]

    def _event(
        self, prompt: list[int], position: int, local: int, external: int, body: dict[str, Any]
    ) -> dict[str, Any]:
        how = self.behaviour
        digest = zlib.crc32(repr((prompt, position)).encode())
        top = [digest % 251 + 1000 * rank for rank in range(LISTED)]
        logprobs = [-0.5, -0.5, *(-1.0 * rank for rank in range(2, LISTED))]
        chosen = 1 if how.tie_after_hit and local + external and position == 3 else 0
        if external:
            logprobs = [value + how.restore_logprob_shift for value in logprobs]
            chosen = 2 if how.wrong_ids_after_restore and position == 5 else chosen
        shift = how.hit_logprob_shift * (local + external) / 1000
        logprobs = [value + shift for value in logprobs]
        choice: dict[str, Any] = {"index": 0, "text": "x", "finish_reason": None}
        if how.has_token_ids:
            choice["token_ids"] = [top[chosen]]
        if "logprobs" in body:
            names = [f"token_id:{token}" for token in top]
            choice["logprobs"] = {
                "tokens": [names[chosen]],
                "top_logprobs": [dict(zip(names, logprobs, strict=True))],
            }
        if external and how.refuses_after_restore:
            return {"error": {"message": "the load failed", "code": 500}}
        return {"id": "cmpl", "choices": [choice]}

    def metrics(self) -> str:
        """The `/metrics` page."""
        c = self.shown if self.late_reads else self.counted
        self.late_reads = max(0, self.late_reads - 1)
        labels = f'engine="0",model_name="{MODEL}"'
        lines = [
            "# HELP vllm:prompt_tokens_total Number of prefill tokens processed.",
            f"vllm:prompt_tokens_total{{{labels}}} {float(c['prompt'])}",
            f"vllm:prefix_cache_hits_total{{{labels}}} {float(c['local'])}",
            f"vllm:external_prefix_cache_hits_total{{{labels}}} {float(c['promised'])}",
            f"vllm:external_prefix_cache_queries_total{{{labels}}} {float(c['queries'])}",
            f'vllm:prompt_tokens_by_source_total{{{labels},source="external_kv_transfer"}} '
            f"{float(c['external'])}",
        ]
        size = BLOCK_TOKENS if self.behaviour.tells_block_size else None
        lines += [
            f'vllm:cache_config_info{{block_size="{size}",engine="{engine}",odd="a}} b"}} 1.0'
            for engine in range(self.behaviour.engines)
        ]
        return "\n".join(lines) + "\n"

    def reset(self) -> bool:
        """Empty the local tier, unless told to refuse."""
        self.resets += 1
        if self.resets <= self.behaviour.resets_refused:
            return False
        self.local = Tier()
        return True


class _Handler(BaseHTTPRequestHandler):
    fake: FakeVllm
    server: HTTPServer

    def log_message(self, format: str, *args: object) -> None:
        """Keep the test's output clean."""

    def do_GET(self) -> None:
        how = self.fake.behaviour
        if self.path == "/v1/models":
            self._json({"data": [{"id": MODEL, "max_model_len": how.max_model_len}]})
        elif self.path == "/metrics" and how.has_metrics:
            self._answer(200, self.fake.metrics().encode())
        else:
            self._answer(404, b'{"detail":"Not Found"}')

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])) or b"{}")
        if self.path == "/tokenize":
            self._json({"tokens": list(body["prompt"].encode())})
        elif self.path == "/reset_prefix_cache" and self.fake.behaviour.has_reset:
            self._json({"success": self.fake.reset()})
        elif self.path == "/v1/completions":
            self._complete(body)
        else:
            self._answer(404, b'{"detail":"Not Found"}')

    def _complete(self, body: dict[str, Any]) -> None:
        self.fake.ranks.append(self.headers["X-data-parallel-rank"])
        if "logprobs" in body and not self.fake.behaviour.has_logprobs:
            self._answer(400, b'{"error":{"message":"logprobs need a tokenizer"}}')
            return
        self.fake.completions += 1
        dies = self.fake.completions == self.fake.behaviour.dies_at_completion
        self.send_response(200)
        self.end_headers()
        events = self.fake.complete(body)
        lines = [f"data: {json.dumps(event)}\n\n" for event in events[: 1 if dies else None]]
        self.wfile.write("".join([*lines, "" if dies else "data: [DONE]\n\n"]).encode())
        if dies:
            self.server.socket.close()

    def _json(self, value: object) -> None:
        self._answer(200, json.dumps(value).encode())

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@contextmanager
def serving(behaviour: Behaviour) -> Iterator[tuple[str, FakeVllm]]:
    """A server on a free port of this machine: its address and its state."""
    fake = FakeVllm(behaviour)
    handler = type("Handler", (_Handler,), {"fake": fake})
    server = HTTPServer(("127.0.0.1", 0), handler)
    address = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield address, fake
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
