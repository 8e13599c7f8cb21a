"""``python -m tests.compat.lab quick|all`` prints what each scenario came to, as JSON.

``pages`` prints what became of the pages that ReVolta's model runners register.

With another engine first on the path it is that one's scheduler which is driven.
"""

import json
import logging
import os
import sys
import traceback
from types import ModuleType
from typing import Any


def main() -> int:
    """Facts on standard output; what the engine prints goes to standard error."""
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as report:
        os.dup2(2, 1)
        leave_out_gpu_code()
        import vllm

        logging.disable(logging.CRITICAL)
        told = pages() if sys.argv[1] == "pages" else scenarios(quick=sys.argv[1] == "quick")
        report.write(json.dumps({"vllm": str(vllm.__file__)} | told) + "\n")
    return 0


def pages() -> dict[str, Any]:
    """By plan and runner."""
    from tests.compat.lab.pages import facts, layouts

    return {"pages": facts(), "layouts": layouts()}


def scenarios(*, quick: bool) -> dict[str, Any]:
    """By name; what an engine raises is its answer."""
    from tests.compat.lab.scenarios import names
    from tests.compat.lab.words import facts

    found = {}
    for name, scenario in names(quick=quick):
        try:
            found[name] = scenario()
        except Exception:  # noqa: BLE001
            found[name] = {"raised": traceback.format_exc()}
    return {"words": facts(), "scenarios": found}


def leave_out_gpu_code() -> None:
    """ReVolta's scheduler imports kernels for a GPU: an empty module stands for them."""
    kernels = ModuleType("vllm._sm70_ops")
    kernels.__getattr__ = lambda name: None  # type: ignore[method-assign]
    sys.modules["vllm._sm70_ops"] = kernels


if __name__ == "__main__":
    sys.exit(main())
