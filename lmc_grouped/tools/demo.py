"""`make demo`: serve two hybrid models through our connector and certify each.

Writes the tiny models, starts `vllm serve` on the CPU with `LMCacheConnectorV1`
from `lmc_grouped.connector`, runs `lmc-grouped certify` against it, stops the
server and looks that nothing is left behind. Needs no GPU and no network.

exit status: 0 everything was restored exactly; 1 something was not.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from lmc_grouped.tools.certify import command as certify
from lmc_grouped.tools.errors import ToolError
from lmc_grouped.tools.serving import GROUPED_CONNECTOR, Server
from lmc_grouped.tools.tiny_models import find_recipe, write_tiny_model

HOST_GIGABYTES = {"qwen3_next": "0.01", "gemma3": "0.1"}
"""Models shown by default and their host budgets: about 16,000 tokens each."""
PROMPT_TOKENS = 2400
PRESSURE_TOKENS = 20_000


def main(argv: Sequence[str] | None = None) -> int:
    """Run the demonstration; returns the exit status."""
    parser = argparse.ArgumentParser(prog="demo", description=__doc__)
    parser.add_argument("models", nargs="*", help=f"default: {' '.join(HOST_GIGABYTES)}")
    parser.add_argument("--models-dir", type=Path, default=Path(".models"))
    arguments = parser.parse_args(argv)
    started = time.monotonic()
    statuses = {}
    try:
        for name in arguments.models or HOST_GIGABYTES:
            statuses[name] = _show(name, arguments.models_dir)
    except (ToolError, ValueError) as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    for name, status in statuses.items():
        print(f"{name}: {'restored exactly' if status == 0 else 'NOT certified'}")
    print(f"took {time.monotonic() - started:.0f} s")
    return max(statuses.values())


def _show(name: str, models_dir: Path) -> int:
    """Serve one model, certify it, stop it; 0 when all was right."""
    recipe = find_recipe(name)
    log_path = models_dir / f"{name}.log"
    model_dir = write_tiny_model(name, models_dir / name)
    print(f"\n{name}: groups {', '.join(recipe.groups)}; server log in {log_path}", flush=True)
    server = Server(
        model_dir,
        recipe,
        connector=GROUPED_CONNECTOR,
        env={"LMCACHE_MAX_LOCAL_CPU_SIZE": HOST_GIGABYTES.get(name, "0.1")},
        log_path=log_path,
    )
    with server:
        status = _certify(server.url)
    leftovers = server.leftovers()
    if leftovers:
        print(f"left in /dev/shm: {', '.join(leftovers)}", file=sys.stderr)
    return 1 if leftovers else status


def _certify(url: str) -> int:
    arguments = ["--url", url, "--tokens", str(PROMPT_TOKENS)]
    arguments += ["--pressure-tokens", str(PRESSURE_TOKENS)]
    print(f"$ lmc-grouped certify {' '.join(arguments)}", flush=True)
    parser = argparse.ArgumentParser(prog="lmc-grouped certify")
    certify.add_arguments(parser)
    return certify.run(parser.parse_args(arguments))


if __name__ == "__main__":
    sys.exit(main())
