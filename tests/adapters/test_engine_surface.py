"""The surface over engine versions."""

import subprocess
import sys
from types import SimpleNamespace

import pytest
from vllm.v1.kv_cache_interface import KVCacheGroupSpec

from lmc_grouped.adapters import detection, engine
from lmc_grouped.adapters.engine import EngineError
from lmc_grouped.adapters.surface_revolta import RevoltaSurface
from tests.factories import full, recurrent, table_of
from tests.specs import (
    cache_config,
    engine_config,
    full_spec,
    ring_spec,
    state_spec,
    window_spec,
    wrapped,
)


@pytest.mark.parametrize("version", ["0.28.1", "0.29.0+cpu", "0.29.1.dev3", "0.9.2"])
def test_an_engine_that_is_too_old_is_named_with_the_version_needed(version):
    with pytest.raises(EngineError) as error:
        engine.check_version(version)
    assert f"vLLM {version} is too old" in str(error.value)
    assert "install vLLM 0.30 or newer" in str(error.value)


@pytest.mark.parametrize("version", ["0.30.0", "0.32.0+cpu", "0.33.1.dev9+gabc", "1.0.0"])
def test_an_engine_that_is_new_enough_passes(version):
    engine.check_version(version)


def test_an_engine_with_the_names_of_revolta_passes_whatever_it_counts(monkeypatch):
    monkeypatch.setattr(detection, "detect", RevoltaSurface)
    engine.check_version("0.1.4")
    assert engine.surface().name == "ReVolta"


@pytest.mark.parametrize("version", ["0.35.0", "dev"])
def test_an_engine_with_the_names_of_none_is_refused_with_those_it_would_need(version, monkeypatch):
    monkeypatch.setattr(detection, "detect", lambda: None)
    with pytest.raises(EngineError, match=r"neither vLLM's kv_connector_block_state .*ReVolta"):
        engine.check_version(version)


def test_an_old_engine_with_the_names_of_none_is_too_old(monkeypatch):
    monkeypatch.setattr(detection, "detect", lambda: None)
    with pytest.raises(EngineError, match=r"vLLM 0\.28\.0 is too old"):
        engine.check_version("0.28.0")


def test_the_installed_engine_passes():
    engine.check_version()


@pytest.mark.parametrize("version", ["dev", "main.abc", "0"])
def test_a_version_that_is_no_release_is_taken_for_the_newest(version, caplog):
    import logging

    logger = logging.getLogger("lmc_grouped")
    before, logger.propagate = logger.propagate, True
    engine.check_version(version)
    logger.propagate = before
    assert f"vLLM version '{version}' is not a release" in caplog.text


OLD_OR_MISSING = """
import sys, types
if sys.argv[1] == "missing":
    sys.modules["vllm"] = None
else:
    old = types.ModuleType("vllm")
    old.__version__ = sys.argv[1]
    sys.modules["vllm"] = old
import lmc_grouped.connector
"""


@pytest.mark.parametrize(
    ("version", "message"),
    [
        ("0.28.0", "vLLM 0.28.0 is too old for lmc_grouped"),
        ("missing", "vLLM cannot be imported"),
    ],
)
def test_importing_the_connector_beside_a_wrong_engine_is_one_clear_error(version, message):
    result = subprocess.run(
        [sys.executable, "-c", OLD_OR_MISSING, version], capture_output=True, text=True, check=False
    )
    assert result.returncode == 1
    assert message in result.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    "spec",
    [
        window_spec(16, 64),
        wrapped(window_spec(16, 64), "a", "b"),
        state_spec(),
        full_spec(sliding_window=64),
    ],
    ids=["window", "wrapped window", "state", "window melted into full attention"],
)
def test_a_hybrid_model_whose_manager_is_off_is_refused_with_the_flag(spec):
    config = engine_config(hybrid_manager_off=True)
    with pytest.raises(EngineError, match=r"--disable-hybrid-kv-cache-manager.*without that flag"):
        engine.check_hybrid_manager(cache_config(full_spec(), spec), config)
    engine.check_hybrid_manager(cache_config(full_spec(), spec), engine_config())


def test_a_full_attention_model_needs_no_hybrid_manager():
    engine.check_hybrid_manager(cache_config(full_spec()), engine_config(hybrid_manager_off=True))


class Speculative(SimpleNamespace):
    """A drafter whose last block is volatile."""

    def use_eagle_block_drop(self) -> bool:
        return self.drops


def test_without_a_drafter_no_group_is_a_drafters():
    config = cache_config(full_spec(), state_spec())
    assert engine.drafter_groups(config, engine_config()) == frozenset()
    off = engine_config(speculative=Speculative(drops=False))
    assert engine.drafter_groups(config, off) == frozenset()


def test_the_mark_of_the_engine_names_the_drafters_groups():
    config = cache_config(
        full_spec(), state_spec(), KVCacheGroupSpec(["d"], full_spec(), is_eagle_group=True)
    )
    found = engine.drafter_groups(config, engine_config(speculative=Speculative(drops=True)))
    assert found == frozenset({2})


def test_a14_a_drafter_without_a_mark_does_not_make_every_group_a_drafters():
    config = cache_config(full_spec(), ring_spec(), state_spec(), window_spec(16, 64))
    found = engine.drafter_groups(config, engine_config(speculative=Speculative(drops=True)))
    assert found == frozenset({0})


def test_a_junction_is_recorded_only_where_the_engine_has_the_field():
    request = SimpleNamespace(shared_prefix_boundary=None)
    assert engine.record_junction(request, 48)
    assert request.shared_prefix_boundary == 48
    engine.record_junction(request, 32)
    assert request.shared_prefix_boundary == 48
    assert not engine.record_junction(SimpleNamespace(), 48)


def test_the_block_size_is_judged_by_the_recurrent_groups():
    table = table_of(full(0, 256), recurrent(1, 256))
    assert engine.resized_block_size(table, engine_config(block_size=128)) == (128, 256)
    assert engine.resized_block_size(table, engine_config(block_size=256)) is None
    assert engine.resized_block_size(table_of(full(0, 256)), engine_config(block_size=128)) is None


def test_the_label_of_a_host_hit_is_the_engines_own():
    from vllm.v1.metrics.cache_hit_source import CacheHitSource

    assert engine.host_hit_source() is CacheHitSource.HOST


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (full_spec(16, heads=2, head_size=8), 16 * 2 * 8 * 4),
        (full_spec(16, page_size_padded=128), 64),
        (state_spec(state_bytes=333), 333),
        (window_spec(32, 64), 128),
    ],
)
def test_page_bytes_are_content_without_padding(spec, expected):
    assert engine.page_bytes(spec) == expected


def test_context_parallel_scales_what_the_engine_shards():
    assert engine.span_tokens(full_spec(16), 4) == 64
    assert engine.span_tokens(state_spec(16), 4) == 16
    assert engine.span_tokens(full_spec(16), 1) == 16
