"""Say what a host budget holds for a model, by asking vLLM for its KV-cache groups.

  lmc-grouped inspect --model DIR --budget 16GiB --workers 4 --output LAYOUT.json

prints what `lmc-grouped plan` prints, and writes the layout file that `plan` reads,
so that vLLM is asked only once. With --output and no --budget it only writes.

DIR needs its config.json, neither weights nor a tokenizer: vLLM builds the layers
of one tensor-parallel rank without weights, and groups them as at a start. Nothing
is downloaded, and no code that DIR brings is run.

The answer is that of the vLLM installed here, on its platform. Where another
machine serves the model, pass --block-size, --dtype and --mamba-ssm-cache-dtype as
there: the CPU build's blocks are 128 tokens unless told otherwise, and on some
processors it keeps recurrent states in float32. A block size that does not suit the
recurrent states is enlarged by vLLM.
Quantised weights are taken as plain ones, which changes nothing about the cache.
Drafters, pipeline and context parallelism, a --kv-cache-dtype and LMCache's
chunk_size are not asked about.

exit status: 0 there is an answer, with warnings or without; 2 bad input, or a
model that vLLM does not take.
"""

import argparse
import os
import sys
from pathlib import Path

from lmc_grouped.tools.arguments import named, positive
from lmc_grouped.tools.errors import ToolError
from lmc_grouped.tools.inspect.ask import ask_vllm, check_model_dir
from lmc_grouped.tools.inspect.messages import Found, Request
from lmc_grouped.tools.plan.arguments import (
    add_question_arguments,
    read_question,
)
from lmc_grouped.tools.plan.layout import Layout, format_layout
from lmc_grouped.tools.plan.report import print_answer

DTYPES = ("auto", "half", "float16", "bfloat16", "float", "float32")
STATE_DTYPES = ("auto", "float32", "float16", "bfloat16")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `lmc-grouped inspect`."""
    add = parser.add_argument
    add(
        "--model", type=Path, required=True, metavar="DIR",
        help="directory of the model, with its config.json",
    )  # fmt: skip
    add(
        "--output", type=Path, metavar="LAYOUT.json",
        help="where to write the layout file; default: it is not written",
    )  # fmt: skip
    add("--force", action="store_true", help="overwrite the file that --output names")
    add(
        "--max-model-len", type=named(positive), metavar="N",
        help="longest context in tokens, as vLLM's; default: the model's",
    )  # fmt: skip
    add(
        "--block-size", type=named(positive), metavar="N",
        help="tokens per block, as vLLM's; default: what vLLM chooses here",
    )  # fmt: skip
    add(
        "--dtype", choices=DTYPES, default="auto",
        help="the model's type, as vLLM's; default %(default)s",
    )  # fmt: skip
    add(
        "--mamba-ssm-cache-dtype", choices=STATE_DTYPES, default="auto",
        help="the type of recurrent states, as vLLM's; default %(default)s",
    )  # fmt: skip
    add("--verbose", action="store_true", help="let vLLM write to stderr")
    add_question_arguments(
        parser,
        budget_default="none, then --output is needed",
        workers_help="tensor parallel size: workers that share heads and budget; default 1",
    )


def run(arguments: argparse.Namespace) -> int:
    """Write the layout when asked to, then answer on stdout."""
    _check_before_asking(arguments)
    found = ask_vllm(
        Request(
            model_dir=str(arguments.model),
            workers=arguments.workers or 1,
            max_model_tokens=arguments.max_model_len,
            block_tokens=arguments.block_size,
            dtype=arguments.dtype,
            state_dtype=arguments.mamba_ssm_cache_dtype,
        ),
        is_verbose=arguments.verbose,
    )
    print(f"asked {found.engine}", file=sys.stderr)
    layout = _layout(arguments, found)
    if arguments.output is not None:
        data = format_layout(layout, note=f"lmc-grouped inspect, {found.engine}")
        _write(arguments.output, data, is_forced=arguments.force)
        print(f"wrote {arguments.output}", file=sys.stderr)
    if arguments.budget is not None:
        print_answer(read_question(arguments, layout), as_json=arguments.json)
    return 0


def _check_before_asking(arguments: argparse.Namespace) -> None:
    """Refuse at once what would otherwise be refused after vLLM has started."""
    if arguments.budget is None and arguments.output is None:
        raise ToolError(
            "--budget is missing: give one, such as 16GiB, or --output to write the layout only"
        )
    if arguments.output is not None:
        _check_output(arguments.output, is_forced=arguments.force)
    check_model_dir(arguments.model)


def _check_output(path: Path, *, is_forced: bool) -> None:
    try:
        if path.is_dir():
            raise ToolError(f"--output: {path} is a directory; give the name of a file")
        if path.exists() and not is_forced:
            raise ToolError(f"--output: {path} exists; give another name, or --force")
        if not path.parent.is_dir():
            raise ToolError(f"--output: there is no directory {path.parent}; make it first")
        if not os.access(path.parent, os.W_OK):
            raise ToolError(f"--output: {path.parent} is not writable; give another directory")
    except OSError as error:
        raise ToolError(f"--output: {path}: {error.strerror or error}") from error


def _write(path: Path, data: bytes, *, is_forced: bool) -> None:
    try:
        with path.open("wb" if is_forced else "xb") as file:
            file.write(data)
    except OSError as error:
        raise ToolError(f"--output: cannot write {path}: {error.strerror or error}") from error


def _layout(arguments: argparse.Namespace, found: Found) -> Layout:
    if not found.table.groups and not found.table.excluded:
        raise ToolError(f"--model: {arguments.model} has no KV cache, so there is nothing to plan")
    return Layout(
        name=arguments.model.resolve().name,
        table=found.table,
        max_model_tokens=found.max_model_tokens,
        workers=arguments.workers or 1,
        budget_bytes=arguments.budget,
        shared_row_bytes=None,
    )
