"""Ways to bring the same pages to disk and back; every side is timed the same way."""

import asyncio
import mmap
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol


class Mode(StrEnum):
    """Whether the page cache takes part."""

    DIRECT = "direct"
    """O_DIRECT on every side."""
    CACHED = "cached"


class Side(StrEnum):
    """What is compared."""

    PLAIN = "plain"
    """pwrite and preadv, one thread, one file, no checksum."""
    OURS = "lmc_grouped"
    """The file tier, checksums on."""
    LMCACHE = "LMCache"
    """LocalDiskBackend: a file per page, four threads, no checksum."""


class Pages:
    """Aligned memory for the same number of pages twice: to write from and to read into."""

    def __init__(self, count: int, page_bytes: int) -> None:
        self.page_bytes = page_bytes
        self.source = _cut(count, page_bytes)
        self.target = _cut(count, page_bytes)
        noise = os.urandom(page_bytes)
        for number, page in enumerate(self.source):
            page[:] = noise
            page[:8] = number.to_bytes(8, "little")

    @property
    def total_bytes(self) -> int:
        """Of one copy."""
        return len(self.source) * self.page_bytes

    def wipe(self) -> None:
        """Empty the target: a read that did nothing must not look right."""
        for page in self.target:
            page[:] = bytes(self.page_bytes)

    def check(self) -> None:
        """RuntimeError when a page did not come back."""
        for number, (source, target) in enumerate(zip(self.source, self.target, strict=True)):
            if source != target:
                raise RuntimeError(f"page {number} came back with other bytes")


def _cut(count: int, page_bytes: int) -> list[memoryview]:
    room = mmap.mmap(-1, count * page_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    room.madvise(mmap.MADV_HUGEPAGE)  # as the host pools are
    whole = memoryview(room)
    return [whole[n * page_bytes : (n + 1) * page_bytes] for n in range(count)]


class Transfer(Protocol):
    """Writes all pages, or reads them all; returns when that is done."""

    def __call__(self) -> None: ...


@contextmanager
def plain(directory: Path, mode: Mode, pages: Pages) -> Iterator[tuple[Transfer, Transfer]]:
    """One system call per page."""
    direct = os.O_DIRECT if mode is Mode.DIRECT else 0
    fd = os.open(directory / "plain", os.O_RDWR | os.O_CREAT | direct)

    def put() -> None:
        for number, page in enumerate(pages.source):
            os.pwrite(fd, page, number * pages.page_bytes)

    def get() -> None:
        for number, page in enumerate(pages.target):
            os.preadv(fd, [page], number * pages.page_bytes)

    try:
        yield put, get
    finally:
        os.close(fd)


@contextmanager
def ours(directory: Path, mode: Mode, pages: Pages) -> Iterator[tuple[Transfer, Transfer]]:
    """The tier with its defaults; a put counts until the last page is visible."""
    from lmc_grouped.host.disk import DiskTier, Quota
    from lmc_grouped.tools.bench_disk.namespaces import bench_namespace

    keys = [(0, number.to_bytes(32, "big")) for number in range(len(pages.source))]
    quota = Quota(2 * pages.total_bytes)
    namespace = bench_namespace(pages.page_bytes)

    def put() -> None:
        for key, page in zip(keys, pages.source, strict=True):
            tier.put(key, page)
        tier.flush()

    def get() -> None:
        tier.read(keys, pages.target)

    with DiskTier.open(
        directory, namespace, 0, quota,
        queue_bytes=pages.total_bytes, direct=mode is Mode.DIRECT,
    ) as tier:  # fmt: skip
        yield put, get


@contextmanager
def lmcache(directory: Path, mode: Mode, pages: Pages) -> Iterator[tuple[Transfer, Transfer]]:
    """LMCache's disk backend; filling and reading its memory objects is not timed."""
    os.environ.setdefault("LMCACHE_LOG_LEVEL", "ERROR")  # read when it is imported
    import torch
    from lmcache.utils import CacheEngineKey
    from lmcache.v1.memory_management import MemoryFormat

    backend, loop = _lmcache_backend(directory, mode, pages)
    keys = [
        CacheEngineKey("bench", 1, 0, number, torch.uint8) for number in range(len(pages.source))
    ]
    held: list[Any] = []
    shape = torch.Size([pages.page_bytes])
    for page in pages.source:
        held.append(backend.local_cpu_backend.allocate(shape, torch.uint8, MemoryFormat.KV_2LTD))
        held[-1].tensor.copy_(torch.frombuffer(page, dtype=torch.uint8))

    def put() -> None:
        for key, memory in zip(keys, held, strict=True):
            backend.submit_put_task(key, memory)
        while backend.disk_worker.put_tasks:
            time.sleep(0.0002)

    def get() -> None:
        for memory in held:
            memory.ref_count_down()
        held[:] = backend.batched_get_blocking(keys)

    try:
        yield put, get
        for memory, page in zip(held, pages.target, strict=True):
            page[:] = memoryview(memory.byte_array).cast("B")
            memory.ref_count_down()
    finally:
        backend.close()
        loop.call_soon_threadsafe(loop.stop)


def _lmcache_backend(directory: Path, mode: Mode, pages: Pages) -> tuple[Any, Any]:
    import torch
    from lmcache.v1.config import LMCacheEngineConfig
    from lmcache.v1.metadata import LMCacheMetadata
    from lmcache.v1.storage_backend.local_cpu_backend import LocalCPUBackend
    from lmcache.v1.storage_backend.local_disk_backend import LocalDiskBackend

    gib = pages.total_bytes / 2**30
    config = LMCacheEngineConfig.from_defaults(
        local_cpu=False,
        max_local_cpu_size=max(0.5, 2.5 * gib),
        local_disk=str(directory),
        max_local_disk_size=max(1.0, 2 * gib),
        extra_config={"use_odirect": mode is Mode.DIRECT},
    )
    shape = (1, 2, config.chunk_size, 1, max(1, pages.page_bytes // 2 // config.chunk_size))
    metadata = LMCacheMetadata("bench", 1, 1, 0, 0, torch.uint8, shape)
    memory = LocalCPUBackend(config, metadata, "cpu")
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()
    return LocalDiskBackend(config, loop, memory, "cpu", None, metadata), loop


SIDES: dict[Side, Callable[[Path, Mode, Pages], Any]] = {
    Side.PLAIN: plain,
    Side.OURS: ours,
    Side.LMCACHE: lmcache,
}


def order(sides: Sequence[Side], round_index: int) -> list[Side]:
    """The order of a round: each begins with the next side."""
    start = round_index % len(sides)
    return [*sides[start:], *sides[:start]]
