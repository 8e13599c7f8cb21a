"""The namespace of what a benchmark stores."""

from lmc_grouped.core.groups import Kind
from lmc_grouped.core.keys import Layout, Namespace, StoredGroup


def bench_namespace(page_bytes: int) -> Namespace:
    """One full group."""
    group = StoredGroup(group_id=0, kind=Kind.FULL, span_tokens=16, page_bytes=page_bytes)
    return Namespace(
        layout=Layout.EQUAL_SPANS,
        model="bench",
        dtype="uint8",
        groups=(group,),
        alignment_tokens=16,
        hash_block_tokens=16,
        attention_backend="none",
        kv_layout="NHD",
        vllm_version="none",
        lmcache_version="none",
        hash_algorithm="none",
        root_hash="00",
    )
