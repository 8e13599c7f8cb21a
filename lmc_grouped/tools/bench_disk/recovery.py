"""How long opening a store of many records takes."""

import hashlib
import os
import shutil
import time
from pathlib import Path

from lmc_grouped.tools.bench_disk.namespaces import bench_namespace

PAGE_BYTES = 4_096


def measure_recovery(root: Path, records: int) -> float:
    """Seconds to open a store of that many pages; its page file is sparse."""
    from lmc_grouped.host.disk import DiskTier, Quota
    from lmc_grouped.host.disk.directory import store_path
    from lmc_grouped.host.disk.format import FileHeader, Record, encode_header, encode_record
    from lmc_grouped.host.disk.groupfile import pages_path, records_path

    namespace = bench_namespace(PAGE_BYTES)
    directory = store_path(root, namespace, 0)
    directory.mkdir(parents=True)
    header = encode_header(FileHeader(namespace.digest(), 0, PAGE_BYTES))
    keys = (hashlib.sha256(number.to_bytes(8, "big")).digest() for number in range(records))
    written = (
        encode_record(Record((0, key), PAGE_BYTES, 0, number + 1))
        for number, key in enumerate(keys)
    )
    records_path(directory, 0).write_bytes(b"".join((header, *written)))
    pages_path(directory, 0).touch()
    os.truncate(pages_path(directory, 0), records * PAGE_BYTES)
    start = time.perf_counter()
    with DiskTier.open(root, namespace, 0, Quota(2 * records * PAGE_BYTES)) as tier:
        seconds = time.perf_counter() - start
        found = len(tier.stored_pages())
    shutil.rmtree(root)
    if found != records:
        raise RuntimeError(f"{found} of {records} records were recovered")
    return seconds
