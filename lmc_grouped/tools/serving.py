"""`vllm serve` for a tiny model, in a process group of its own."""

import json
import os
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Self

from lmc_grouped.tools.certify.errors import RequestRefused, ServerGone
from lmc_grouped.tools.certify.http import HttpClient
from lmc_grouped.tools.errors import ToolError
from lmc_grouped.tools.processes import ProcessGroup
from lmc_grouped.tools.tiny_models import TinyModel

GROUPED_CONNECTOR: Mapping[str, object] = MappingProxyType(
    {
        "kv_connector": "LMCacheConnectorV1",
        "kv_connector_module_path": "lmc_grouped.connector",
        "kv_role": "kv_both",
    }
)
"""`--kv-transfer-config` of our connector."""

SERVER_ENV: Mapping[str, str] = MappingProxyType(
    {
        "PYTHONHASHSEED": "0",
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
        # Unset, vLLM keeps one core free, two with a connector, and where that
        # leaves none it computes on all: servers would differ in threads.
        "VLLM_CPU_NUM_OF_RESERVED_CPU": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_SERVER_DEV_MODE": "1",  # POST /reset_prefix_cache
    }
)
"""Set for every server; the caller's `env` goes over it."""

READY_SECONDS = 240.0
HEALTH_TIMEOUT_SECONDS = 5.0


class Server:
    """A running `vllm serve`. Use it as a context manager: the server starts on
    entry, and on exit it is gone with every process it started."""

    def __init__(
        self,
        model_dir: Path,
        recipe: TinyModel,
        *,
        connector: Mapping[str, object] | None = None,
        env: Mapping[str, str] = MappingProxyType({}),
        extra_args: Sequence[str] = (),
        log_path: Path,
        ready_seconds: float = READY_SECONDS,
    ) -> None:
        """
        Args:
            model_dir: the written tiny model; requests name it by this path.
            recipe: what serving it needs.
            connector: `--kv-transfer-config`, for ours `GROUPED_CONNECTOR`; None
                serves without a connector.
            env: variables over `SERVER_ENV` and this process's own, of which
                LMCache's settings are left out.
            extra_args: further arguments of `vllm serve`; a repeated flag wins.
            log_path: where the server's output is appended.
            ready_seconds: how long it may take to be ready.
        """
        self.port = find_free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.model = str(model_dir)
        self.log_path = log_path
        self.command = _command(model_dir, recipe, self.port, connector, extra_args)
        self._env = build_env(env)
        self._ready_seconds = ready_seconds
        self._group: ProcessGroup | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    @property
    def group(self) -> ProcessGroup:
        """The server's processes; ToolError before the first start."""
        if self._group is None:
            raise ToolError("the server was not started: use it as a context manager")
        return self._group

    def start(self) -> None:
        """Start and wait until it answers; after `stop`, a restart on the same port.

        Raises ToolError with the end of the log when it dies or takes too long.
        """
        self.launch()
        self.wait_until_ready()

    def launch(self) -> None:
        """Start and do not wait, for servers that start beside each other; `stop`
        it whatever happens next."""
        if self._group is not None and self._group.pids():
            raise ToolError(f"the server at {self.url} runs already: stop it first")
        self._group = ProcessGroup(self.command, self._env, self.log_path)

    def wait_until_ready(self) -> None:
        """Return when the launched server answers.

        Raises ToolError with the end of the log when it dies or takes too long;
        the server is gone then.
        """
        self.group.wait_until_ready(
            lambda: answers(self.url, "/health"), "vllm serve", self._ready_seconds
        )

    def stop(self) -> None:
        """End the server and every process it started; a second call does nothing."""
        if self._group is not None:
            self._group.stop()

    def kill(self) -> None:
        """Kill every process at once, as a crash would."""
        self.group.kill()

    def log_tail(self, lines: int = 30) -> str:
        """The end of the server's log, since the last start."""
        return self.group.log_tail(lines)

    def leftovers(self) -> list[str]:
        """What the stopped server left in /dev/shm."""
        return self.group.shared_memory_leftovers()

    def client(self, timeout_seconds: float = 120.0) -> HttpClient:
        """HTTP to the server."""
        return HttpClient(self.url, timeout_seconds)


def find_free_port() -> int:
    """A TCP port that nobody listens on at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def build_env(env: Mapping[str, str]) -> dict[str, str]:
    """This process's environment without LMCache's settings, then `SERVER_ENV`,
    then `env`: a server behaves the same whoever starts it."""
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("LMCACHE_")}
    return inherited | dict(SERVER_ENV) | dict(env)


def _command(
    model_dir: Path,
    recipe: TinyModel,
    port: int,
    connector: Mapping[str, object] | None,
    extra_args: Sequence[str],
) -> list[str]:
    command = [sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", str(model_dir)]
    command += ["--host", "127.0.0.1", "--port", str(port)]
    command += ["--dtype", recipe.dtype, "--block-size", str(recipe.block_size_tokens)]
    command += ["--max-model-len", str(recipe.max_model_len_tokens)]
    command += ["--mamba-ssm-cache-dtype", recipe.state_dtype]
    command += ["--enforce-eager", "--enable-prefix-caching"]
    if connector is not None:
        command += ["--kv-transfer-config", json.dumps(dict(connector))]
    return command + list(extra_args)


def answers(url: str, path: str) -> bool:
    """Whether GET `path` succeeds now."""
    try:
        HttpClient(url, HEALTH_TIMEOUT_SECONDS).get(path)
    except (ServerGone, RequestRefused):
        return False
    return True
