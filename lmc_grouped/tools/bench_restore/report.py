"""What is printed and what is written."""

from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import msgspec

from lmc_grouped.tools.bench_restore.figures import (
    QUESTIONS,
    Metric,
    Phase,
    Sample,
    Side,
    Spread,
    answer,
    select,
    verdict,
)
from lmc_grouped.tools.tables import Align, format_table

PACKAGES = ("lmc-grouped", "vllm", "lmcache", "torch")


class Ratio(msgspec.Struct, frozen=True):
    """One answered question."""

    question: str
    metric: Metric
    prompt_tokens: int
    ratio: Spread
    at_most: float | None


class Report(msgspec.Struct, frozen=True):
    """Everything one run found out, as `--json` writes it."""

    versions: Mapping[str, str]
    settings: Mapping[str, str]
    idle_cores: float
    """Processor cores all sides use together while nobody asks anything."""
    other_cores: float
    """Processor cores that the rest of the machine used meanwhile: above a few
    hundredths the times are not only ours."""
    samples: Sequence[Sample]
    ratios: Sequence[Ratio]

    def write(self, path: Path) -> None:
        """Write as indented JSON."""
        path.write_bytes(msgspec.json.format(msgspec.json.encode(self)) + b"\n")

    def format(self) -> str:
        """The tables, as text."""
        cores = {
            "cores used by idle servers": f"{self.idle_cores:.2f}",
            "by the rest of the machine": f"{self.other_cores:.2f}",
        }
        facts = {**self.versions, **self.settings, **cores}
        return "\n\n".join(
            [
                ", ".join(f"{name} {value}" for name, value in facts.items()),
                _times_table(self.samples),
                _ratios_table(self.ratios),
            ]
        )


def find_versions() -> dict[str, str]:
    """Package -> installed version; a package that is not there is left out."""
    found = {}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def compute_ratios(samples: Sequence[Sample]) -> list[Ratio]:
    """Every question that the samples can answer, for every prompt length."""
    return [
        Ratio(question.text, question.metric, tokens, ratio, question.at_most)
        for tokens in _lengths(samples)
        for question in QUESTIONS
        if (ratio := answer(samples, question, tokens)) is not None
    ]


def _lengths(samples: Sequence[Sample]) -> list[int]:
    return sorted({sample.prompt_tokens for sample in samples})


def _times_table(samples: Sequence[Sample]) -> str:
    headers = [
        "tokens", "phase", "side", "first token ms", "whole request ms", "disk threads ms",
        "hit tokens",
    ]  # fmt: skip
    aligns = [Align.RIGHT, Align.LEFT, Align.LEFT, *[Align.RIGHT] * 4]
    return format_table(headers, list(_times_rows(samples)), aligns)


def _times_rows(samples: Sequence[Sample]) -> Iterator[list[str]]:
    for tokens in _lengths(samples):
        for phase in Phase:
            for side in Side:
                rounds = select(samples, side, phase, tokens).values()
                if rounds:
                    times = [
                        _format_ms(Spread.of(sample.seconds(metric) for sample in rounds))
                        for metric in Metric
                    ]
                    hits = Spread.of(sample.hit_tokens for sample in rounds)
                    disk = Spread.of(sample.disk_seconds for sample in rounds)
                    work = _format_ms(disk, decimals=1) if side is Side.DISK else "-"
                    yield [f"{tokens:,}", phase, side, *times, work, _format_count(hits)]


def _ratios_table(ratios: Sequence[Ratio]) -> str:
    rows = [
        [
            f"{ratio.prompt_tokens:,}",
            ratio.question,
            ratio.metric,
            _format_ratio(ratio.ratio),
            verdict(ratio.ratio, ratio.at_most),
        ]
        for ratio in ratios
    ]
    aligns = [Align.RIGHT, Align.LEFT, Align.LEFT, Align.RIGHT, Align.LEFT]
    return format_table(["tokens", "ratio", "of", "median (min..max)", "target"], rows, aligns)


def _format_ms(seconds: Spread, decimals: int = 0) -> str:
    values = (seconds.median, seconds.lowest, seconds.highest)
    middle, low, high = (f"{value * 1e3:,.{decimals}f}" for value in values)
    return f"{middle} ({low}..{high})"


def _format_ratio(ratio: Spread) -> str:
    return f"{ratio.median:.2f} ({ratio.lowest:.2f}..{ratio.highest:.2f})"


def _format_count(count: Spread) -> str:
    if count.lowest == count.highest:
        return f"{count.lowest:,.0f}"
    return f"{count.lowest:,.0f}..{count.highest:,.0f}"
