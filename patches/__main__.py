"""Run a module with the patches that a cache server needs: it is no vLLM process.

    python -m patches lmcache.cli.main server --port 5555 ...

``LMC_GROUPED_PATCHES`` means what it means to an engine.
"""

import logging
import os
import runpy
import sys

from patches.base import UnknownPatch
from patches.plugin import PATCHES_VARIABLE
from patches.registry import apply


def main() -> int:
    """Apply, then run the module named by the first argument with the others."""
    if len(sys.argv) < 2:
        sys.stderr.write(__doc__ or "")
        return 2
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    try:
        apply(os.environ.get(PATCHES_VARIABLE) or "auto", cache_server=True)
    except UnknownPatch as error:
        sys.stderr.write(f"{PATCHES_VARIABLE}: {error}\n")
        return 2
    module = sys.argv[1]
    sys.argv = sys.argv[1:]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
