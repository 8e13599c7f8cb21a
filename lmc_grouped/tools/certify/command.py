"""Check on a running vLLM server that restored prefixes give the right output.

Sends greedy requests, resets the engine's own prefix cache between them, and
compares what comes back from the KV connector with runs that used no cache and
runs that used the engine's own. With --after-restart it looks for the prompt of
an earlier run with the same --seed instead. Needs VLLM_SERVER_DEV_MODE=1 on the server for
/reset_prefix_cache, and a server that nobody else uses meanwhile. A server that
wants a key gets the one in VLLM_API_KEY.

exit status: 0 all that was checked is right, a restored prefix included;
1 something is wrong, or nothing restored could be checked;
2 bad input, or the server cannot be reached or stopped answering.
"""

import argparse
import secrets
import sys
from datetime import UTC, datetime
from pathlib import Path

from lmc_grouped.tools.certify.checks import CHECKS, RESTART_CHECKS
from lmc_grouped.tools.certify.discovery import Offer, discover
from lmc_grouped.tools.certify.http import HttpClient
from lmc_grouped.tools.certify.outputs import Tolerances
from lmc_grouped.tools.certify.prompts import PromptMaker
from lmc_grouped.tools.certify.report import Report, check_writable, format_report, write_json
from lmc_grouped.tools.certify.runner import run_checks, stderr_progress
from lmc_grouped.tools.certify.session import Options, Session, longest_request_tokens
from lmc_grouped.tools.errors import ToolError

DEFAULT_PROMPT_TOKENS = 16_000
SHORTEST_PROMPT_TOKENS = 32


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `lmc-grouped certify`."""
    add = parser.add_argument
    add("--url", required=True, help="where vLLM listens, for example http://localhost:8000")
    add("--model", help="a name from /v1/models; default: the first there")
    add(
        "--tokens", type=int, metavar="N",
        help=f"prompt length; default {DEFAULT_PROMPT_TOKENS}, or what the model takes if less",
    )  # fmt: skip
    add(
        "--pressure-tokens", type=int, default=0, metavar="N",
        help="new prompts of N tokens in all, then the first prompt again; give more than "
        "the host tier holds. Default 0: not checked",
    )  # fmt: skip
    add(
        "--min-restored", type=float, default=0.85, metavar="FRACTION",
        help="of a stored prompt that must come back, no more than whole blocks allow; "
        "default %(default)s",
    )  # fmt: skip
    add(
        "--local-tolerance", type=float, default=1e-4, metavar="X",
        help="largest log-probability difference between a restored run and one with as many "
        "tokens from the engine's own cache: the same computation, so 0 but for unordered sums; "
        "default %(default)s",
    )  # fmt: skip
    add(
        "--tolerance", type=float, default=0.25, metavar="X",
        help="the same between the engine's own hit and a cold run, which rounds elsewhere: "
        "1e-5 in float32 and 0.08 in bfloat16 were seen without a connector, on small models; "
        "it never passes a restored run. Default %(default)s",
    )  # fmt: skip
    add("--seed", help="what prompts are made from; default: new each time. A seed used twice "
        "finds its own prompts in the caches")  # fmt: skip
    add(
        "--after-restart", action="store_true",
        help="only check that the first prompt of an earlier run, with this --seed and these "
        "--tokens, comes back from a disk or a remote store; for a server started anew",
    )  # fmt: skip
    add("--timeout", type=float, default=600.0, metavar="SECONDS",
        help="longest wait for the server; default %(default)s")  # fmt: skip
    add("--json", type=Path, metavar="FILE", help="write all that was measured here")


def run(arguments: argparse.Namespace) -> int:
    """Certify a server; returns the exit status.

    Raises ToolError for bad input and for a server that cannot be used.
    """
    _check_ranges(arguments)
    if arguments.json is not None:
        check_writable(arguments.json)
    started_at = datetime.now(UTC).isoformat(timespec="seconds")
    server, offer = discover(HttpClient(arguments.url, arguments.timeout), arguments.model)
    seed = arguments.seed or secrets.token_hex(8)
    options = Options(
        prompt_tokens=_prompt_tokens(arguments.tokens, offer),
        min_restored_fraction=arguments.min_restored,
        pressure_tokens=arguments.pressure_tokens,
        tolerances=Tolerances(cold=arguments.tolerance, same_hit=arguments.local_tolerance),
    )
    session = Session(server, offer, PromptMaker(server.tokenize, seed), options)
    checks = RESTART_CHECKS if arguments.after_restart else CHECKS
    rows, aborted = run_checks(session, stderr_progress(sys.stderr), checks)
    report = Report(
        url=arguments.url,
        model=offer.model,
        vllm_version=offer.version,
        seed=seed,
        started_at=started_at,
        tokens_per_block=offer.cache.tokens_per_block,
        tolerance=arguments.tolerance,
        local_tolerance=arguments.local_tolerance,
        min_restored_fraction=arguments.min_restored,
        missing=offer.missing,
        rows=rows,
        aborted=aborted,
    )
    print(format_report(report))
    if arguments.json is not None:
        write_json(report, arguments.json)
    return report.exit_status


def _check_ranges(arguments: argparse.Namespace) -> None:
    if arguments.after_restart and not arguments.seed:
        raise ToolError("--after-restart needs the --seed of the run before the restart")
    allowed = {
        "--tokens": (arguments.tokens, SHORTEST_PROMPT_TOKENS, None),
        "--pressure-tokens": (arguments.pressure_tokens, 0, None),
        "--min-restored": (arguments.min_restored, 0, 1),
        "--local-tolerance": (arguments.local_tolerance, 0, None),
        "--tolerance": (arguments.tolerance, 0, None),
        "--timeout": (arguments.timeout, 0.1, None),
    }
    for name, (value, least, most) in allowed.items():
        if value is None:
            continue
        if not (value >= least and (most is None or value <= most)):
            limit = f"at least {least}" if most is None else f"from {least} to {most}"
            raise ToolError(f"{name} is {value}; allowed is {limit}")


def _prompt_tokens(wanted: int | None, offer: Offer) -> int:
    longest = offer.max_model_tokens
    if longest is None:
        return wanted or DEFAULT_PROMPT_TOKENS
    extra = longest_request_tokens(0)
    fits = longest - extra
    if fits < SHORTEST_PROMPT_TOKENS:
        raise ToolError(
            f"{offer.model} takes {longest} tokens; the checks need at least "
            f"{SHORTEST_PROMPT_TOKENS + extra}: serve it with a larger --max-model-len"
        )
    if wanted is not None and wanted > fits:
        raise ToolError(
            f"--tokens is {wanted}; {offer.model} takes {longest} tokens and the second turn "
            f"needs {extra} more than the prompt: give at most {fits}"
        )
    return min(wanted or DEFAULT_PROMPT_TOKENS, fits)
