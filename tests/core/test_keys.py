"""Page keys and namespaces: equal for equal bytes, in every process."""

import json
import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmc_grouped.core.keys import (
    MAX_HASH_BYTES,
    KeyFormatError,
    Layout,
    Namespace,
    NamespaceError,
    RankLayout,
    check_hash_seed,
    decode_key,
    encode_key,
    layout_of,
    stored_groups,
)
from tests.factories import full, namespace, table_of, window

KEYS = st.tuples(st.integers(0, 65_535), st.binary(min_size=1, max_size=MAX_HASH_BYTES))


@given(KEYS)
def test_a18_a_key_decodes_to_its_own_group(key):
    assert decode_key(encode_key(key)) == key


@given(KEYS, KEYS)
def test_different_keys_have_different_bytes(one, other):
    assert (encode_key(one) == encode_key(other)) == (one == other)


@pytest.mark.parametrize("key", [(-1, b"x"), (65_536, b"x"), (0, b""), (0, bytes(41))])
def test_a_key_outside_the_format_is_refused(key):
    with pytest.raises(KeyFormatError, match="a page key holds"):
        encode_key(key)


@pytest.mark.parametrize("data", [b"", b"\0\1", bytes(43)])
def test_bytes_that_are_no_key_are_refused(data):
    with pytest.raises(KeyFormatError, match=f"not {len(data)}"):
        decode_key(data)


CHANGES = {
    "format_version": 2,
    "layout": Layout.UNEQUAL_SPANS,
    "model": "other",
    "model_revision": None,
    "dtype": "float32",
    "groups": namespace({0: 4_096, 1: 2_048}).groups,
    "alignment_tokens": 32,
    "hash_block_tokens": 8,
    "attention_backend": "FLASH_ATTN",
    "kv_layout": "HND",
    "vllm_version": "0.33.0",
    "lmcache_version": "0.5.5",
    "ranks": RankLayout(world_size=2, tensor_parallel=2),
    "hash_algorithm": "xxhash",
    "root_hash": "00fe",
}


def test_every_field_of_a_namespace_is_tried():
    assert set(CHANGES) == set(Namespace.__struct_fields__)


@pytest.mark.parametrize("field", CHANGES)
def test_any_changed_field_is_another_namespace_and_is_named(field):
    changed = namespace(**{field: CHANGES[field]})
    assert changed.digest() != namespace().digest()
    assert namespace().differences(changed) == (field,)


def test_the_physical_order_of_layers_is_part_of_the_namespace():
    one, other = (
        namespace(groups=stored_groups(table_of(full_with(*order)))) for order in ("ab", "ba")
    )
    assert one.digest() != other.digest()


def full_with(*layers: str):
    group = full(0)
    return type(group)(
        group_id=0,
        kind=group.kind,
        span_tokens=group.span_tokens,
        page_bytes=group.page_bytes,
        layers=layers,
    )


def test_a_namespace_reads_back_from_canonical_json():
    written = namespace().to_json()
    assert Namespace.from_json(written) == namespace()
    plain = json.loads(written)
    assert json.dumps(plain, sort_keys=True, separators=(",", ":")).encode() == written


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b"\xff", b'{"layout":"diagonal"}'])
def test_text_that_is_no_namespace_is_refused(data):
    with pytest.raises(NamespaceError, match="not a namespace"):
        Namespace.from_json(data)


def test_the_nearest_namespace_differs_in_the_fewest_fields():
    near, far = namespace(root_hash="01"), namespace(model="other", dtype="float32")
    assert namespace().nearest([far, near]) is near
    assert namespace().nearest([]) is None


def test_a20_processes_with_different_seeds_agree_on_keys_and_digest():
    code = (
        "from tests.factories import namespace, page_hash\n"
        "from lmc_grouped.core.keys import encode_key\n"
        "print(namespace().digest(), encode_key((3, page_hash(1))).hex())"
    )
    answers = {
        subprocess.run(
            [sys.executable, "-c", code],
            env=os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True, text=True, check=True,
        ).stdout
        for seed in ("0", "1", "random")
    }  # fmt: skip
    assert len(answers) == 1


@pytest.mark.parametrize(
    ("algorithm", "seed", "default_is_fixed"),
    [
        ("sha256", None, False),
        ("xxhash", None, False),
        ("builtin", None, True),
        ("builtin", "random", True),
    ],
)
def test_a20_a_hash_chain_with_a_random_root_is_refused(algorithm, seed, default_is_fixed):
    with pytest.raises(NamespaceError, match=f"PYTHONHASHSEED is .*{algorithm}"):
        check_hash_seed(algorithm, seed, default_is_fixed=default_is_fixed)


@pytest.mark.parametrize(
    ("algorithm", "seed", "default_is_fixed"),
    [
        ("sha256", None, True),
        ("sha256", "0", False),
        ("sha256", "random", False),  # a word like any other to vLLM
        ("xxhash", "7", False),
        ("builtin", "0", False),
    ],
)
def test_a20_a_hash_chain_with_a_fixed_root_is_served(algorithm, seed, default_is_fixed):
    check_hash_seed(algorithm, seed, default_is_fixed=default_is_fixed)


def test_the_layout_says_how_groups_share_memory():
    equal, unequal = table_of(full(0), window(1, 64)), table_of(full(0), full(1, span=32))
    assert layout_of(equal, shared_rows=True) is Layout.SHARED_ROWS
    assert layout_of(equal, shared_rows=False) is Layout.EQUAL_SPANS
    assert layout_of(unequal, shared_rows=False) is Layout.UNEQUAL_SPANS
