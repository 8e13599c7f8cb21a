"""Bad input stops start-up with one clear error, before anything is served."""

from pathlib import Path
from typing import Any

import pytest
from vllm.config import KVTransferConfig

from tests.engine.conftest import model_dir
from tests.engine.lab import open_lab


def refused(name: str, **engine_args: Any) -> str:
    """The message with which the engine refuses to start."""
    with (
        pytest.raises((ValueError, RuntimeError)) as caught,
        open_lab(model_dir(name), name, **engine_args),
    ):
        pass
    return str(caught.value)


def connector(**extra: Any) -> KVTransferConfig:
    return KVTransferConfig(
        kv_connector="LMCacheConnectorV1",
        kv_connector_module_path="lmc_grouped.connector",
        kv_role="kv_both",
        kv_connector_extra_config=extra,
    )


def test_a_hybrid_model_without_its_hybrid_manager_is_refused() -> None:
    message = refused("gemma3", disable_hybrid_kv_cache_manager=True)
    assert "--disable-hybrid-kv-cache-manager" in message


def test_a_chunk_size_that_does_not_fit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LMCACHE_CHUNK_SIZE", "300")
    message = refused("qwen3_next")
    assert "chunk_size is 300" in message
    assert "use 256" in message


def test_a_budget_below_one_page_per_group_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LMCACHE_MAX_LOCAL_CPU_SIZE", "0.0001")
    message = refused("gemma3")
    assert "set max_local_cpu_size to at least" in message


def test_an_unknown_key_is_refused() -> None:
    message = refused("llama", kv_transfer_config=connector(cpu_group_particion="auto"))
    assert "cpu_group_particion" in message
    assert "cpu_group_partition" in message


def test_a_config_file_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tmp_path / "lmcache.yaml"
    config.write_text("chunk_size: 64\nlocal_cpu: true\nmax_local_cpu_size: 0.05\n")
    monkeypatch.setenv("LMCACHE_CONFIG_FILE", str(config))
    with open_lab(model_dir("llama"), "llama") as lab:
        prompt = lab.prompt(500)
        lab.run(prompt)
        lab.reset()
        assert lab.run(prompt).cached_tokens == 448, "hits end on multiples of the chunk"
        plan = lab.half.tier.index.arena.plan
        assert plan.extents == int(0.05 * 2**30) // plan.extent_bytes
