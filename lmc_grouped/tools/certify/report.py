"""What was found, as a table, as JSON and as an exit status."""

from enum import Enum
from pathlib import Path
from typing import IO

import msgspec

from lmc_grouped.tools.errors import ToolError
from lmc_grouped.tools.tables import Align, format_table

EXIT_PASSED = 0
EXIT_FAILED = 1
EXIT_ABORTED = 2


class Verdict(Enum):
    """The outcome of one check."""

    PASS = "pass"
    FAIL = "fail"
    NOT_CHECKED = "not checked"


class Reference(Enum):
    """What an output was compared with."""

    COLD = "cold"
    """A run without any hit."""
    LOCAL_HIT = "local hit"
    """A run that hit as many tokens in the engine's own prefix cache: the same
    kernels on the same shapes, so the same numbers."""


class Row(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=False):
    """One line of the report. None means not known."""

    check: str
    verdict: Verdict
    reason: str = ""
    """Why it failed or was not checked, or what is worth knowing."""
    prompt_tokens: int | None = None
    local_hit_tokens: int | None = None
    restored_tokens: int | None = None
    """Prompt tokens the KV connector brought in."""
    required_restored_tokens: int | None = None
    allowed_restored_tokens: int | None = None
    """The last boundary a hit may end at, `(n - 1) // B * B`."""
    is_equal_ids: bool | None = None
    compared_with: Reference | None = None
    largest_logprob_difference: float | None = None
    """Against `compared_with`."""
    largest_logprob_difference_to_cold: float | None = None
    cold_first_token_seconds: float | None = None
    first_token_seconds: float | None = None


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """One run of `lmc-grouped certify`."""

    format_version: int = 1
    url: str
    model: str
    vllm_version: str | None
    seed: str
    started_at: str
    """UTC, ISO 8601."""
    tokens_per_block: int | None
    """The server's block size; None when it does not say."""
    tolerance: float
    local_tolerance: float
    min_restored_fraction: float
    missing: list[str]
    """What the server does not offer, and what follows from it."""
    rows: list[Row]
    aborted: str | None = None
    """Why the run ended before all checks were made."""

    @property
    def is_external_checked(self) -> bool:
        """Whether the output of at least one restored prompt was found right."""
        return any(row.verdict is Verdict.PASS and row.restored_tokens for row in self.rows)

    @property
    def exit_status(self) -> int:
        """0 when all that was checked is right and that includes a restore; 2
        when the run broke off."""
        if self.aborted is not None:
            return EXIT_ABORTED
        failed = any(row.verdict is Verdict.FAIL for row in self.rows)
        return EXIT_FAILED if failed or not self.is_external_checked else EXIT_PASSED


HEADERS = (
    "check", "prompt", "restored", "", "ids", "logprob diff", "against",
    "cold s", "hit s", "verdict",
)  # fmt: skip
ALIGNS = (
    Align.LEFT, Align.RIGHT, Align.RIGHT, Align.RIGHT, Align.LEFT, Align.RIGHT, Align.LEFT,
    Align.RIGHT, Align.RIGHT, Align.LEFT,
)  # fmt: skip


def format_report(report: Report) -> str:
    """The table, the reasons below it and a closing line."""
    table = format_table(HEADERS, [_cells(row) for row in report.rows], ALIGNS)
    reasons = [
        f"{row.check}: {row.verdict.value}: {row.reason}" for row in report.rows if row.reason
    ]
    notes = [*report.missing, *reasons]
    return "\n".join([table, "", *notes, *([""] if notes else []), _summary(report)])


def _cells(row: Row) -> tuple[str, ...]:
    ids = {True: "equal", False: "differ", None: "-"}[row.is_equal_ids]
    fraction = "-"
    if row.restored_tokens is not None and row.prompt_tokens:
        fraction = f"{row.restored_tokens / row.prompt_tokens:.1%}"
    return (
        row.check,
        _number(row.prompt_tokens),
        _number(row.restored_tokens),
        fraction,
        ids,
        "-" if row.largest_logprob_difference is None else f"{row.largest_logprob_difference:.2g}",
        "-" if row.compared_with is None else row.compared_with.value,
        _seconds(row.cold_first_token_seconds),
        _seconds(row.first_token_seconds),
        row.verdict.value,
    )


def _number(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _summary(report: Report) -> str:
    counts = dict.fromkeys(Verdict, 0)
    for row in report.rows:
        counts[row.verdict] += 1
    line = ", ".join(f"{count} {verdict.value}" for verdict, count in counts.items()) + "."
    if report.aborted is not None:
        return f"{line} Aborted: {report.aborted}"
    if not report.is_external_checked:
        return f"{line} No restored prefix was found right: nothing is certified."
    return line


def write_json(report: Report, path: Path) -> None:
    """Write the report as JSON.

    Raises ToolError when the file cannot be written.
    """
    with _open(path, "wb") as file:
        file.write(msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n")


def check_writable(path: Path) -> None:
    """Find out early; creates the file when there is none, and changes none.

    Raises ToolError when the file cannot be written.
    """
    _open(path, "ab").close()


def _open(path: Path, mode: str) -> IO[bytes]:
    try:
        return path.open(mode)
    except OSError as error:
        raise ToolError(
            f"--json {path} cannot be written ({error.strerror}): name a file in a directory "
            "that exists and is writable"
        ) from error
