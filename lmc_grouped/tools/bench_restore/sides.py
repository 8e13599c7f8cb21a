"""The servers that are compared, as their users run them."""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from lmc_grouped.tools.bench_restore.figures import Side
from lmc_grouped.tools.processes import ProcessGroup
from lmc_grouped.tools.serving import (
    GROUPED_CONNECTOR,
    Server,
    answers,
    build_env,
    find_free_port,
)
from lmc_grouped.tools.tiny_models import TinyModel

HOST_TIER_GB = 1
DISK_TIER_GB = 2
LMCACHE_READY_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Bench:
    """What all sides share."""

    model_dir: Path
    recipe: TinyModel
    log_dir: Path
    chunk_tokens: int | None
    """Store granularity of both connectors; None: what each does by default."""
    serve_args: Sequence[str]


@dataclass(frozen=True, slots=True)
class Running:
    """One side that is up."""

    side: Side
    server: Server
    groups: tuple[ProcessGroup, ...]
    """Every process of the side."""

    def cpu_seconds(self) -> float:
        """Processor time the side has used."""
        return sum(group.cpu_seconds() for group in self.groups)

    def disk_seconds(self) -> float:
        """Processor time that the file tier's writing threads have used."""
        from lmc_grouped.host.disk.queue import THREAD_NAME

        if self.side is not Side.DISK:
            return 0.0
        return sum(group.thread_cpu_seconds(THREAD_NAME) for group in self.groups)


@contextmanager
def running(
    bench: Bench, sides: Sequence[Side], note: Callable[[str], None]
) -> Iterator[list[Running]]:
    """The sides, up and beside each other; all gone on exit, and `note` is told
    what they left in /dev/shm.

    Raises ToolError with the end of the log of a server that does not start.
    """
    up: list[Running] = []
    try:
        with ExitStack() as stack:
            for side in sides:
                up.append(_launch(bench, side, stack))  # noqa: PERF401 (kept on failure)
            for launched in up:
                launched.server.wait_until_ready()
            yield up
    finally:
        for what, names in clean_up(up).items():
            if names:
                note(f"left in /dev/shm by the servers, {what}: {', '.join(names)}")


def clean_up(sides: Sequence[Running]) -> dict[str, list[str]]:
    """What the stopped sides left in /dev/shm: "removed" when a name carries one
    of their process ids, else "still there", for it may be somebody else's."""
    groups = [group for side in sides for group in side.groups]
    removed = {name for group in groups for name in group.remove_leftovers()}
    left = {name for group in groups for name in group.shared_memory_leftovers()}
    return {"removed": sorted(removed), "still there": sorted(left)}


def _launch(bench: Bench, side: Side, stack: ExitStack) -> Running:
    bench.log_dir.mkdir(parents=True, exist_ok=True)
    log_path = bench.log_dir / f"{side.name.lower()}.log"
    log_path.unlink(missing_ok=True)
    if side is Side.NONE:
        server = _launch_server(bench, log_path, None, {}, stack)
        return Running(side, server, (server.group,))
    if side in (Side.OURS, Side.DISK):
        env = {"LMCACHE_MAX_LOCAL_CPU_SIZE": str(HOST_TIER_GB)}
        if side is Side.DISK:
            root = stack.enter_context(TemporaryDirectory(prefix="disk_", dir=bench.log_dir))
            env |= {"LMCACHE_LOCAL_DISK": root, "LMCACHE_MAX_LOCAL_DISK_SIZE": str(DISK_TIER_GB)}
        if bench.chunk_tokens:
            env["LMCACHE_CHUNK_SIZE"] = str(bench.chunk_tokens)
        server = _launch_server(bench, log_path, GROUPED_CONNECTOR, env, stack)
        return Running(side, server, (server.group,))
    port = find_free_port()
    cache = stack.enter_context(_start_lmcache(bench, port))
    connector = {
        "kv_connector": "LMCacheMPConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"lmcache.mp.port": port},
    }
    # On a CPU the default, where the engine's worker copies, takes one group only.
    env = {"LMCACHE_MP_TRANSFER_MODE": "lmcache_driven"}
    server = _launch_server(bench, log_path, connector, env, stack)
    return Running(side, server, (server.group, cache))


def _launch_server(
    bench: Bench,
    log_path: Path,
    connector: Mapping[str, object] | None,
    env: Mapping[str, str],
    stack: ExitStack,
) -> Server:
    server = Server(
        bench.model_dir,
        bench.recipe,
        connector=connector,
        env=env,
        extra_args=bench.serve_args,
        log_path=log_path,
    )
    stack.callback(server.stop)
    server.launch()
    return server


def _start_lmcache(bench: Bench, port: int) -> ProcessGroup:
    """LMCache's cache server, ready."""
    http_port = find_free_port()
    command = [sys.executable, "-m", "lmcache.cli.main", "server"]
    command += ["--host", "localhost", "--port", str(port)]
    command += ["--http-host", "127.0.0.1", "--http-port", str(http_port)]
    command += ["--prometheus-port", str(find_free_port())]
    command += ["--l1-size-gb", str(HOST_TIER_GB), "--l1-init-size-gb", str(HOST_TIER_GB)]
    command += ["--eviction-policy", "LRU", "--supported-transfer-mode", "auto"]
    command += ["--separate-object-groups"]
    if bench.chunk_tokens:
        command += ["--chunk-size", str(bench.chunk_tokens)]
    log_path = bench.log_dir / "lmcache_server.log"
    log_path.unlink(missing_ok=True)
    group = ProcessGroup(command, build_env({}), log_path)
    url = f"http://127.0.0.1:{http_port}"
    group.wait_until_ready(
        lambda: answers(url, "/healthcheck"), "lmcache server", LMCACHE_READY_SECONDS
    )
    return group
