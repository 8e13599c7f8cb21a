"""What the server's `/metrics` page says about prefix-cache hits."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

_SAMPLE = re.compile(r"([A-Za-z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')

PROMPT_TOKENS = "vllm:prompt_tokens_total"
LOCAL_HITS = "vllm:prefix_cache_hits_total"
EXTERNAL_HITS = "vllm:external_prefix_cache_hits_total"
EXTERNAL_QUERIES = "vllm:external_prefix_cache_queries_total"
BY_SOURCE = "vllm:prompt_tokens_by_source_total"
CACHE_CONFIG = "vllm:cache_config_info"
_COUNTED = {PROMPT_TOKENS, LOCAL_HITS, EXTERNAL_HITS, EXTERNAL_QUERIES, BY_SOURCE}


@dataclass(frozen=True, slots=True)
class Sample:
    """One line of a Prometheus text page."""

    name: str
    labels: Mapping[str, str]
    value: float


def parse_samples(text: str) -> Iterator[Sample]:
    """Read the samples of a Prometheus text page; comments and lines that are
    not samples are skipped. Escapes in label values are left as they are: no
    label we read has any."""
    for line in text.splitlines():
        match = _SAMPLE.match(line)
        if match is None:
            continue
        try:
            value = float(match[3])
        except ValueError:
            continue
        yield Sample(match[1], dict(_LABEL.findall(match[2] or "")), value)


@dataclass(frozen=True, slots=True)
class Counters:
    """Counters in tokens, summed over the server's engines: their values at one
    moment, or how far they moved."""

    prompt_tokens: int
    local_hit_tokens: int
    """Taken from the engine's own prefix cache."""
    promised_tokens: int
    """What the KV connector said it would bring in."""
    transferred_tokens: int
    """What prefills took from the connector; equal to the promise on a server
    that does not count it."""
    external_query_tokens: int
    """Zero for ever when the server runs without a connector."""

    @property
    def restored_tokens(self) -> int:
        """What the connector brought in: a load that failed after the promise
        does not count."""
        return min(self.promised_tokens, self.transferred_tokens)

    def since(self, before: "Counters") -> "Counters":
        """How far the counters moved."""
        return Counters(
            prompt_tokens=self.prompt_tokens - before.prompt_tokens,
            local_hit_tokens=self.local_hit_tokens - before.local_hit_tokens,
            promised_tokens=self.promised_tokens - before.promised_tokens,
            transferred_tokens=self.transferred_tokens - before.transferred_tokens,
            external_query_tokens=self.external_query_tokens - before.external_query_tokens,
        )


def read_counters(text: str) -> Counters | None:
    """The counters on a `/metrics` page; None when it lacks one we need."""
    sums: dict[str, int] = {}
    for sample in parse_samples(text):
        if sample.name in _COUNTED:
            key = sample.name + sample.labels.get("source", "")
            sums[key] = sums.get(key, 0) + int(sample.value)
    if not {PROMPT_TOKENS, LOCAL_HITS, EXTERNAL_HITS, EXTERNAL_QUERIES} <= sums.keys():
        return None
    return Counters(
        prompt_tokens=sums[PROMPT_TOKENS],
        local_hit_tokens=sums[LOCAL_HITS],
        promised_tokens=sums[EXTERNAL_HITS],
        transferred_tokens=sums.get(BY_SOURCE + "external_kv_transfer", sums[EXTERNAL_HITS]),
        external_query_tokens=sums[EXTERNAL_QUERIES],
    )


@dataclass(frozen=True, slots=True)
class CacheConfig:
    """What the page says about the server's cache."""

    engines: int
    """Data-parallel engines behind this address."""
    tokens_per_block: int | None
    """None when the page does not say, or engines differ."""


def read_cache_config(text: str) -> CacheConfig:
    """The block size and the number of engines on a `/metrics` page."""
    infos = [sample.labels for sample in parse_samples(text) if sample.name == CACHE_CONFIG]
    sizes = {labels.get("block_size", "") for labels in infos}
    size = sizes.pop() if len(sizes) == 1 else ""
    return CacheConfig(
        engines=max(1, len(infos)),
        tokens_per_block=int(size) if size.isdigit() and int(size) > 0 else None,
    )
