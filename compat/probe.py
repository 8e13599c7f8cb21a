"""Ask LMCache releases the questions of ``compat.cases``: ``python -m compat.probe``.

One process per release. vLLM is imported once and each release is asked in a
fork, because importing vLLM takes longer than all questions together; nothing
of LMCache is loaded before the fork. Each fork puts the release's directory
first on the path and refuses to answer when another LMCache was imported.
"""

import json
import logging
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import IO, Any

from compat.cases import CASES, Answer, Case, Conversion


class WrongRelease(RuntimeError):
    """Another LMCache was imported than the one to be asked."""


@dataclass(frozen=True, slots=True)
class Request:
    """One release to ask."""

    version: str
    directory: str | None
    """Where the release is unpacked; ``None``: the installed one."""
    patches: str = "auto"
    """Which patches are on when it is asked again: as in ``LMC_GROUPED_PATCHES``."""


@dataclass(frozen=True, slots=True)
class Report:
    """What one release answered, per case name."""

    version: str
    native: Mapping[str, Answer] = field(default_factory=dict)
    """Its own answers."""
    patched: Mapping[str, Answer] = field(default_factory=dict)
    """The same process asked again, after the patches were applied."""
    reverted: Mapping[str, Answer] = field(default_factory=dict)
    """And again, after they were taken out."""
    ours: Mapping[str, Answer] = field(default_factory=dict)
    """What our converter answers to the conversions, with this release's types."""
    messages: Mapping[str, str] = field(default_factory=dict)
    """The text of what was raised; a key is who was asked (``native``, ``ours``, ...) and what."""
    patch_states: Mapping[str, str] = field(default_factory=dict)
    patch_states_again: Mapping[str, str] = field(default_factory=dict)
    """The same when the patches are applied a second time."""
    failure: str = ""
    """Why the release could not be asked at all."""


def main() -> int:
    """Requests as JSON on standard input, one report as JSON per line on standard output."""
    requests = [Request(**each) for each in json.load(sys.stdin)]
    with _only_reports_on_stdout() as reports:
        _preload()
        for request in requests:
            _in_a_fork(partial(_answer, request), reports)
    return 0


def _answer(request: Request) -> Report:
    try:
        _import_release(request)
        messages: dict[str, str] = {}
        native = _ask_all("native", messages)
        ours = {
            case.name: _ask("ours", case, partial(_ours, case), messages)
            for case in CASES
            if isinstance(case, Conversion) and case.ours
        }
        patch_states = _patch(request.patches)
        patched = _ask_all("patched", messages)
        patch_states_again = _patch(request.patches)
        _revert()
        reverted = _ask_all("reverted", messages)
    except Exception as error:  # noqa: BLE001 (whatever a release raises is its report)
        return Report(request.version, failure=f"{_name(error)}: {error}")
    return Report(
        version=request.version,
        native=native,
        patched=patched,
        reverted=reverted,
        ours=ours,
        messages=messages,
        patch_states=patch_states,
        patch_states_again=patch_states_again,
    )


def _ask_all(who: str, messages: dict[str, str]) -> dict[str, Answer]:
    return {case.name: _ask(who, case, case.ask, messages) for case in CASES}


def _ask(who: str, case: Case, ask: Callable[[], Answer], messages: dict[str, str]) -> Answer:
    try:
        return ask()
    except Exception as error:  # noqa: BLE001 (whatever a release raises is its answer)
        messages[f"{who} {case.name}"] = str(error)
        return f"raises {_name(error)}"


def _ours(case: Conversion) -> Answer:
    from compat.cases import ours

    return ours.answer(case)


def _patch(names: str) -> dict[str, str]:
    import patches

    return {name: str(state) for name, state in patches.apply(names).items()}


def _revert() -> None:
    import patches

    patches.revert()


def _import_release(request: Request) -> None:
    if request.directory is not None:
        sys.path.insert(0, request.directory)
    from importlib import invalidate_caches, metadata

    invalidate_caches()
    import lmcache

    found = metadata.version("lmcache")
    where = Path(lmcache.__file__).resolve()
    if found != request.version or (
        request.directory is not None
        and Path(request.directory, "lmcache").resolve() not in where.parents
    ):
        raise WrongRelease(
            f"asked for LMCache {request.version} in {request.directory or 'the environment'}, "
            f"imported {found} from {where}"
        )


def _preload() -> None:
    import vllm.config
    import vllm.distributed.kv_transfer.kv_connector.v1.base
    import vllm.v1.kv_cache_interface
    import vllm.v1.request  # noqa: F401

    if "lmcache" in sys.modules:
        raise WrongRelease("vLLM imported LMCache by itself; the releases cannot be told apart")
    logging.disable(logging.CRITICAL)


def _in_a_fork(work: Callable[[], Report], reports: IO[str]) -> None:
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        return
    # Nothing of the parent's shutdown may run here, whatever happens.
    try:
        reports.write(json.dumps(asdict(work())) + "\n")
        reports.flush()
    finally:
        os._exit(0)


@contextmanager
def _only_reports_on_stdout() -> Iterator[IO[str]]:
    """LMCache prints to standard output; send that to standard error."""
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as reports:
        os.dup2(2, 1)
        yield reports


def _name(error: BaseException) -> str:
    return type(error).__name__


def parse_report(line: str) -> Report:
    """One line of this program's output."""
    fields: dict[str, Any] = json.loads(line)
    return Report(**fields)


if __name__ == "__main__":
    sys.exit(main())
