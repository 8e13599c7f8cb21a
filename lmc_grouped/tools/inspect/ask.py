"""Ask vLLM for a model's groups, in a process of its own."""

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import msgspec

from lmc_grouped.tools.errors import ToolError
from lmc_grouped.tools.inspect.messages import Device, Found, Refused, Reply, Request

PROGRAM = "lmc_grouped.tools.inspect.program"
CONFIG_FILE = "config.json"
LOG_TAIL_LINES = 20

OFFLINE = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
}
"""A directory is all that is read, and nothing is sent."""


def check_model_dir(model_dir: Path) -> None:
    """Refuse what cannot be a model directory before vLLM is started.

    Raises ToolError naming the path.
    """
    config = model_dir / CONFIG_FILE
    try:
        if not model_dir.is_dir():
            raise ToolError(
                f"--model: {model_dir} is not a directory; give the directory of a model, with "
                f"its {CONFIG_FILE} (names of a model hub are not looked up)"
            )
        settings = json.loads(config.read_bytes())
    except FileNotFoundError:
        raise ToolError(
            f"--model: {model_dir} has no {CONFIG_FILE}; give the directory of a model"
        ) from None
    except OSError as error:
        raise ToolError(f"--model: cannot read {config}: {error.strerror or error}") from error
    except ToolError:
        raise
    except (ValueError, RecursionError) as error:
        raise ToolError(f"--model: {str(config)!r} is not JSON: {error}") from error
    if not isinstance(settings, dict):
        raise ToolError(f"--model: {config} holds no JSON object, so it describes no model")


def ask_vllm(request: Request, *, is_verbose: bool) -> Found:
    """The groups that vLLM makes of the model.

    Args:
        request: what to ask.
        is_verbose: let vLLM write to stderr.

    Raises:
        ToolError: vLLM is not installed, or does not take the model or the settings.
    """
    if importlib.util.find_spec("vllm") is None:
        raise ToolError(
            "inspect asks vLLM, which is not installed here; install it (its CPU build will "
            "do), or write the layout file by hand and use `lmc-grouped plan`"
        )
    reply = _ask_once(request, is_verbose)
    if isinstance(reply, Refused) and reply.needs_memory:
        reply = _ask_once(msgspec.structs.replace(request, device=Device.CPU), is_verbose)
    if isinstance(reply, Refused):
        raise ToolError(
            f"vLLM does not take {request.model_dir} with these settings: {reply.reason} "
            "(--verbose shows what else it says)"
        )
    return reply


def _ask_once(request: Request, is_verbose: bool) -> Reply:
    environment = os.environ | OFFLINE
    if not is_verbose:
        environment["VLLM_LOGGING_LEVEL"] = "ERROR"
    with tempfile.TemporaryDirectory(prefix="lmc-grouped-inspect.") as directory:
        reply_path, log_path = Path(directory) / "reply.json", Path(directory) / "log"
        with log_path.open("wb") as log:
            output = sys.stderr.fileno() if is_verbose else log
            done = subprocess.run(
                [sys.executable, "-m", PROGRAM, str(reply_path)],
                input=msgspec.json.encode(request),
                stdout=output,
                stderr=output,
                env=environment,
                check=False,
            )
        if reply_path.exists():
            return msgspec.json.decode(reply_path.read_bytes(), type=Reply)
        tail = "\n".join(log_path.read_text(errors="replace").splitlines()[-LOG_TAIL_LINES:])
    raise ToolError(
        f"vLLM ended with status {done.returncode} and no answer for {request.model_dir}"
        + (f"; it last wrote:\n{tail}" if tail else "")
    )
