"""CRC32 of pages and records: polynomial of zlib, by the fastest code that is installed.

zlib's own takes longer than a copy from the page cache. zlib-ng computes the same
number with carry-less multiplication; both let other threads run meanwhile.
"""

import zlib
from collections.abc import Callable

Crc32 = Callable[[bytes | memoryview], int]


def choose_crc32() -> tuple[Crc32, str]:
    """The function, and the name of the library that it comes from."""
    try:
        from zlib_ng import zlib_ng
    except ImportError:  # the base install does without
        return zlib.crc32, "zlib"
    return zlib_ng.crc32, "zlib-ng"


crc32, CRC32_LIBRARY = choose_crc32()
