"""``python -m tests.compat.lab quick|all`` prints what each scenario came to, as JSON.

With another engine first on the path it is that one's scheduler which is driven.
"""

import json
import logging
import os
import sys
import traceback
from types import ModuleType


def main() -> int:
    """Facts on standard output; what the engine prints goes to standard error."""
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as report:
        os.dup2(2, 1)
        leave_out_gpu_code()
        import vllm

        from tests.compat.lab.scenarios import names
        from tests.compat.lab.words import facts

        logging.disable(logging.CRITICAL)
        found = {}
        for name, scenario in names(quick=sys.argv[1] == "quick"):
            try:
                found[name] = scenario()
            except Exception:  # noqa: BLE001 (what an engine raises is its answer)
                found[name] = {"raised": traceback.format_exc()}
        report.write(
            json.dumps({"vllm": str(vllm.__file__), "words": facts(), "scenarios": found}) + "\n"
        )
    return 0


def leave_out_gpu_code() -> None:
    """ReVolta's scheduler imports kernels for a GPU: an empty module stands for them."""
    kernels = ModuleType("vllm._sm70_ops")
    kernels.__getattr__ = lambda name: None  # type: ignore[method-assign]
    sys.modules["vllm._sm70_ops"] = kernels


if __name__ == "__main__":
    sys.exit(main())
