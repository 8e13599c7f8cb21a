"""How quick the checksum of a page is, by zlib and by what the tier uses."""

import time
import zlib

from lmc_grouped.tools.bench_disk.sides import Pages


def measure_crc32(pages: Pages) -> dict[str, float]:
    """Library -> megabytes (10^6 bytes) a second, all pages one after the other, one thread."""
    from lmc_grouped.host.disk.checksum import CRC32_LIBRARY, crc32

    rates = {}
    for library, compute in {"zlib": zlib.crc32, CRC32_LIBRARY: crc32}.items():
        start = time.perf_counter()
        for page in pages.source:
            compute(page)
        rates[library] = pages.total_bytes / 1e6 / (time.perf_counter() - start)
    return rates
