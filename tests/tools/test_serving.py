"""How a server is started: command and environment; starting one is an engine test."""

import json
import sys
from pathlib import Path

import pytest

from lmc_grouped.tools.errors import ToolError
from lmc_grouped.tools.serving import GROUPED_CONNECTOR, Server, build_env, find_free_port
from lmc_grouped.tools.tiny_models import MODELS


def make_server(tmp_path: Path, **settings) -> Server:
    return Server(tmp_path / "model", MODELS["gemma3"], log_path=tmp_path / "log", **settings)


def test_the_command_serves_the_recipe_with_the_connector(tmp_path):
    server = make_server(tmp_path, connector=GROUPED_CONNECTOR, extra_args=["--seed", "7"])
    command = server.command
    assert command[:4] == [sys.executable, "-m", "vllm.entrypoints.cli.main", "serve"]
    assert command[4] == server.model == str(tmp_path / "model")
    options = dict(zip(command[5::2], command[6::2], strict=False))
    assert options["--port"] == server.url.rpartition(":")[2]
    assert command[command.index("--block-size") + 1] == "32"
    transfer = command[command.index("--kv-transfer-config") + 1]
    assert json.loads(transfer)["kv_connector_module_path"] == "lmc_grouped.connector"
    assert command[-2:] == ["--seed", "7"]


def test_without_a_connector_the_command_names_none(tmp_path):
    assert "--kv-transfer-config" not in make_server(tmp_path).command


def test_the_callers_lmcache_settings_do_not_reach_the_server(monkeypatch):
    monkeypatch.setenv("LMCACHE_CONFIG_FILE", "mine.yaml")
    monkeypatch.setenv("PYTHONHASHSEED", "random")
    monkeypatch.setenv("SOMETHING_ELSE", "kept")
    env = build_env({"LMCACHE_CHUNK_SIZE": "64", "VLLM_CPU_KVCACHE_SPACE": "2"})
    assert "LMCACHE_CONFIG_FILE" not in env
    assert env["LMCACHE_CHUNK_SIZE"] == "64"
    assert env["PYTHONHASHSEED"] == "0"
    assert env["VLLM_CPU_KVCACHE_SPACE"] == "2"
    assert env["SOMETHING_ELSE"] == "kept"


def test_a_server_that_was_not_started_has_no_log(tmp_path):
    server = make_server(tmp_path)
    server.stop()
    with pytest.raises(ToolError, match="was not started"):
        server.log_tail()


def test_a_free_port_can_be_found():
    assert 1024 < find_free_port() < 65536
