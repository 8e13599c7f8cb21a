"""The server under test: the few things asked of it."""

import time
from collections.abc import Iterator, Sequence

from lmc_grouped.tools.certify import metrics
from lmc_grouped.tools.certify.errors import RequestRefused
from lmc_grouped.tools.certify.http import HttpClient
from lmc_grouped.tools.certify.messages import Chunk, Reset, Tokens, decode
from lmc_grouped.tools.certify.metrics import Counters
from lmc_grouped.tools.certify.runs import Run

LISTED_LOGPROBS = 5
POLL_SECONDS = 0.02
COUNTER_WAIT_SECONDS = 3.0
RESET_WAIT_SECONDS = 15.0
OUTPUT_TOKENS = 16
TINY_PROMPT_IDS = (1, 2, 3)
"""Shorter than any block, so never cached."""

COMPLETIONS = "/v1/completions"


class Server:
    """Requests to one vLLM server, one at a time."""

    def __init__(self, client: HttpClient, model: str, with_logprobs: bool) -> None:
        self._client = client
        self._model = model
        self._with_logprobs = with_logprobs

    def tokenize(self, text: str, with_special_tokens: bool) -> list[int]:
        """Token ids of `text`.

        Raises RequestRefused when the server does not tokenize.
        """
        body = {
            "model": self._model,
            "prompt": text,
            "add_special_tokens": with_special_tokens,
        }
        return decode(self._client.post("/tokenize", body), Tokens, "POST /tokenize").tokens

    def counters(self) -> Counters | None:
        """The hit counters now; None when the server has none."""
        try:
            text = self._client.get("/metrics").decode(errors="replace")
        except RequestRefused:
            return None
        return metrics.read_counters(text)

    def complete(
        self,
        prompt_ids: Sequence[int],
        *,
        salt: str | None = None,
        output_tokens: int = OUTPUT_TOKENS,
    ) -> Run:
        """A greedy completion of exactly `output_tokens` tokens.

        `salt` enters the hashes of the prompt's blocks, so that only requests
        with the same salt can share cached blocks; the tokens are the same.
        """
        before = self.counters()
        sent = time.perf_counter()
        first_token_at: float | None = None
        ids: list[int] = []
        logprobs: list[dict[str, float]] = []
        for chunk in self._chunks(prompt_ids, salt, output_tokens):
            for choice in chunk.choices:
                if first_token_at is None:
                    first_token_at = time.perf_counter()
                ids += choice.token_ids or []
                if choice.logprobs is not None:
                    logprobs += [listed or {} for listed in choice.logprobs.top_logprobs]
        moved = None if before is None else self._moved(before, len(prompt_ids))
        return Run(
            prompt_tokens=len(prompt_ids),
            output_ids=tuple(ids) if ids else None,
            logprobs=tuple(logprobs) if len(logprobs) == len(ids) and ids else None,
            first_token_seconds=(first_token_at or time.perf_counter()) - sent,
            moved=moved,
            interference=_interference(moved, len(prompt_ids)),
        )

    def reset_prefix_cache(self) -> bool:
        """Empty the engine's own prefix cache, and nothing else; False when it
        keeps refusing because blocks are held.

        Raises RequestRefused when the server has no such endpoint.
        """
        deadline = time.monotonic() + RESET_WAIT_SECONDS
        while not self._reset_once():
            if time.monotonic() > deadline:
                return False
            time.sleep(POLL_SECONDS)
            self.nudge()
        return True

    def nudge(self) -> None:
        """Have the engine take a few steps. An idle engine does not notice that
        the copies of its last step are done, and pages are visible only then."""
        self.complete(TINY_PROMPT_IDS, output_tokens=2)

    def _reset_once(self) -> bool:
        body = self._client.post("/reset_prefix_cache", {})
        return not body.strip() or decode(body, Reset, "POST /reset_prefix_cache").success

    def _chunks(
        self, prompt_ids: Sequence[int], salt: str | None, output_tokens: int
    ) -> Iterator[Chunk]:
        body: dict[str, object] = {
            "model": self._model,
            "prompt": list(prompt_ids),
            "max_tokens": output_tokens,
            "temperature": 0.0,
            "ignore_eos": True,
            "stream": True,
            "return_token_ids": True,
        }
        if self._with_logprobs:
            body |= {"logprobs": LISTED_LOGPROBS, "return_tokens_as_token_ids": True}
        if salt is not None:
            body["cache_salt"] = salt
        what = f"POST {COMPLETIONS}"
        for payload in self._client.stream(COMPLETIONS, body):
            chunk = decode(payload, Chunk, what)
            if chunk.error is not None:
                raise RequestRefused(what, 500, bytes(chunk.error).decode(errors="replace"))
            yield chunk

    def _moved(self, before: Counters, prompt_tokens: int) -> Counters | None:
        """How far the counters moved, read when they have caught up with the
        request: the server writes them a moment after the last token."""
        deadline = time.monotonic() + COUNTER_WAIT_SECONDS
        while (now := self.counters()) is not None:
            moved = now.since(before)
            if moved.prompt_tokens >= prompt_tokens or time.monotonic() > deadline:
                return moved
            time.sleep(POLL_SECONDS)
        return None


def _interference(moved: Counters | None, prompt_tokens: int) -> str | None:
    if moved is None or moved.prompt_tokens == prompt_tokens:
        return None
    return (
        f"the server counted {moved.prompt_tokens} prompt tokens, this request has "
        f"{prompt_tokens}: run it while nobody else uses the server"
    )
