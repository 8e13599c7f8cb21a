"""What the server under test offers, found out with a few tiny requests."""

from dataclasses import dataclass

from lmc_grouped.tools.certify import metrics
from lmc_grouped.tools.certify.errors import RequestRefused
from lmc_grouped.tools.certify.http import HttpClient
from lmc_grouped.tools.certify.messages import ModelList, Version, decode
from lmc_grouped.tools.certify.metrics import CacheConfig
from lmc_grouped.tools.certify.server import RESET_WAIT_SECONDS, TINY_PROMPT_IDS, Server
from lmc_grouped.tools.errors import ToolError


@dataclass(frozen=True, slots=True)
class Offer:
    """What the server says about itself, and why it cannot serve some checks.

    Each `no_...` is the reason a feature is missing, None when it is there.
    """

    model: str
    version: str | None
    """Of vLLM; None when the server does not say."""
    max_model_tokens: int | None
    """Prompt plus output; None when the server does not say."""
    cache: CacheConfig
    no_counters: str | None
    no_reset: str | None
    no_token_ids: str | None
    no_logprobs: str | None

    @property
    def missing(self) -> list[str]:
        """All reasons, for the report."""
        reasons = (self.no_counters, self.no_reset, self.no_token_ids, self.no_logprobs)
        return [reason for reason in reasons if reason is not None]


def discover(client: HttpClient, wanted_model: str | None) -> tuple[Server, Offer]:
    """Find out what the server offers, with a few tiny requests.

    Raises ToolError when the server does not serve `wanted_model` or cannot
    turn text into tokens, RequestRefused when it refuses a plain completion.
    """
    models = decode(client.get("/v1/models"), ModelList, "GET /v1/models").data
    card = next((m for m in models if wanted_model in (None, m.id)), None)
    if card is None:
        raise ToolError(
            f"--model is {wanted_model!r}; the server has {[m.id for m in models]}: "
            "name one of them"
        )
    cache = _cache_config(client)
    if cache.engines > 1:
        client.pin_to_first_engine()
    server = Server(client, card.id, with_logprobs=True)
    no_logprobs = None
    try:
        probe = server.complete(TINY_PROMPT_IDS, output_tokens=2)
    except RequestRefused as refusal:
        if refusal.status >= 500:
            raise
        no_logprobs = f"the server gives no log-probabilities ({refusal})"
        server = Server(client, card.id, with_logprobs=False)
        probe = server.complete(TINY_PROMPT_IDS, output_tokens=2)
    if no_logprobs is None and probe.logprobs is None:
        no_logprobs = "the server gives no log-probabilities"
    return server, Offer(
        model=card.id,
        version=_version(client),
        max_model_tokens=card.max_model_len,
        cache=cache,
        no_counters=_reason_without(
            probe.moved, "/metrics has no prefix-cache counters: serve without --disable-log-stats"
        ),
        no_reset=_try_reset(server),
        no_token_ids=_reason_without(probe.output_ids, "the server returns no token ids"),
        no_logprobs=no_logprobs,
    )


def _version(client: HttpClient) -> str | None:
    try:
        return decode(client.get("/version"), Version, "GET /version").version
    except RequestRefused:
        return None


def _cache_config(client: HttpClient) -> CacheConfig:
    try:
        text = client.get("/metrics").decode(errors="replace")
    except RequestRefused:
        text = ""
    return metrics.read_cache_config(text)


def _reason_without(thing: object | None, reason: str) -> str | None:
    return reason if thing is None else None


def _try_reset(server: Server) -> str | None:
    try:
        done = server.reset_prefix_cache()
    except RequestRefused as refusal:
        return (
            f"the engine's prefix cache cannot be reset ({refusal}): "
            "start the server with VLLM_SERVER_DEV_MODE=1"
        )
    return (
        None
        if done
        else (
            f"the engine's prefix cache did not reset within {RESET_WAIT_SECONDS:g} s: "
            "run it while nobody else uses the server"
        )
    )
