"""What vLLM says about stored bytes: anything that changes them changes the namespace."""

import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch
from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.core import kv_cache_utils

from lmc_grouped.adapters import namespace
from lmc_grouped.core.groups import GroupTable
from lmc_grouped.core.keys import Layout, Namespace
from tests.factories import full, recurrent, table_of
from tests.specs import cache_config, engine_config, full_spec

TABLE = table_of(full(0), recurrent(1))


@pytest.fixture(autouse=True)
def seed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONHASHSEED", "0")


def build(change: Callable[[Any], None] = lambda config: None, **more: Any) -> Namespace:
    """The namespace of a small engine, after `change` of its configuration."""
    config = engine_config()
    change(config)
    table: GroupTable = more.pop("table", TABLE)
    shared_rows: bool = more.pop("shared_rows", False)
    kv_config = cache_config(full_spec())
    for name, value in more.items():
        setattr(kv_config, name, value)
    return namespace.build_namespace(config, kv_config, table, shared_rows=shared_rows)


def setter(part: str, **values: Any) -> Callable[[Any], None]:
    return lambda config: vars(getattr(config, part)).update(values)


def layer(backend: str) -> Any:
    return SimpleNamespace(get_attn_backend=lambda: SimpleNamespace(get_name=lambda: backend))


def configuration(text: str) -> Any:
    return SimpleNamespace(to_json_string=lambda: text)


def test_the_same_engine_has_the_same_namespace():
    assert build() == build()


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("model", setter("model_config", model="another")),
        ("model_revision", setter("model_config", revision="2")),
        ("model_revision", setter("model_config", quantization="fp8")),
        ("model_revision", setter("model_config", hf_config=configuration('{"rope": 2}'))),
        ("dtype", setter("cache_config", cache_dtype="fp8_e4m3")),
        ("dtype", setter("cache_config", mamba_ssm_cache_dtype="float32")),
        ("dtype", setter("model_config", dtype=torch.bfloat16)),
        ("attention_backend", setter("compilation_config", static_forward_context={
            "layer.0": layer("FLASH_ATTN")})),
        ("ranks", setter("parallel_config", tensor_parallel_size=2)),
        ("root_hash", setter("cache_config", prefix_caching_hash_algo="sha256_cbor")),
    ],
)  # fmt: skip
def test_what_changes_bytes_changes_the_namespace(field, change):
    groups = [msgspec.structs.replace(g, layers=(f"layer.{g.group_id}",)) for g in TABLE.groups]
    table = table_of(*groups)
    assert field in build(table=table).differences(build(change, table=table))


def test_the_order_of_heads_and_tokens_is_part_of_it():
    plain, turned = build(kv_cache_layout="LBNHC"), build(kv_cache_layout="LBHNC")
    assert plain.differences(turned) == ("kv_layout",)


def test_shared_rows_are_another_layout():
    assert build(shared_rows=True).layout is Layout.SHARED_ROWS
    assert build().layout is Layout.EQUAL_SPANS


def test_weights_that_were_replaced_in_place_are_another_model(tmp_path: Path):
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(b"before")
    change = setter("model_config", model=str(tmp_path), revision=None)
    before = build(change)
    assert build(change) == before
    weights.write_bytes(b"after!!")
    assert before.differences(build(change)) == ("model_revision",)
    os.utime(weights, ns=(0, 0))
    assert before.differences(build(change)) == ("model_revision",)


def test_a_commit_that_was_downloaded_stands_for_a_revision_nobody_named():
    def downloaded(commit: str) -> Callable[[Any], None]:
        hf_config = SimpleNamespace(to_json_string=lambda: "{}", _commit_hash=commit)
        return setter("model_config", revision=None, hf_config=hf_config)

    assert build(downloaded("aa")) != build(downloaded("bb"))


@pytest.mark.parametrize("algorithm", ["sha256", "sha256_cbor"])
@pytest.mark.parametrize("seed_value", ["0", "7", None])
def test_the_root_is_the_one_that_the_engine_computes(monkeypatch, algorithm, seed_value):
    if seed_value is None:
        monkeypatch.delenv("PYTHONHASHSEED")
    else:
        monkeypatch.setenv("PYTHONHASHSEED", seed_value)
    for name in ("NONE_HASH", "_NONE_HASH_SEED"):  # to be put back
        monkeypatch.setattr(kv_cache_utils, name, b"", raising=False)
    kv_cache_utils.init_none_hash(get_hash_fn_by_name(algorithm))
    change = setter("cache_config", prefix_caching_hash_algo=algorithm)
    assert build(change).root_hash == namespace.engine_root_hash() == kv_cache_utils.NONE_HASH.hex()


def test_data_parallel_engines_have_stores_of_their_own():
    config = engine_config(world_size=2)
    vars(config.parallel_config).update(rank=1, data_parallel_rank=2)
    assert namespace.store_rank(config) == 5
