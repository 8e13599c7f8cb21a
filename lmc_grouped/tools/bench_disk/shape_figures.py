"""What each shape of a store reaches: rates, recovery time, space."""

import itertools
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lmc_grouped.tools.bench_disk.shapes import SHAPES, Shape


@dataclass(frozen=True, slots=True)
class ShapeFigures:
    """What one shape reached."""

    name: str
    put_mb_s: float
    get_mb_s: float
    small_put_us: float
    """Microseconds to put one small page."""
    recover_seconds: float
    """Rebuilding the index of all small records in a fresh object."""
    overhead_bytes_per_record: float
    """Bytes the file system gave beyond the pages themselves."""


def _keys() -> Iterator[bytes]:
    return (number.to_bytes(4, "big") * 8 for number in itertools.count(1))


def measure_shapes(
    root: Path, page_bytes: int, pages: int, records: int, small_page_bytes: int
) -> list[ShapeFigures]:
    """Every shape in turn; LMDB is left out where it is not installed.

    Put and get move `pages` pages of `page_bytes`; recovery and space are those
    of `records` pages of `small_page_bytes`.
    """
    figures = []
    for shape in SHAPES:
        with suppress(ModuleNotFoundError):
            figures.append(_measure(shape, root, page_bytes, pages, records, small_page_bytes))
    return figures


def _measure(
    shape: Any, root: Path, page_bytes: int, pages: int, records: int, small_page_bytes: int
) -> ShapeFigures:
    big, small = _emptied(root / "big"), _emptied(root / "small")
    put_seconds, get_seconds = _put_and_get(shape(big, page_bytes), page_bytes, pages)
    before = _used_bytes(small)
    filled: Shape = shape(small, small_page_bytes)
    page = memoryview(bytes(small_page_bytes))
    start = time.perf_counter()
    for key in itertools.islice(_keys(), records):
        filled.put(key, page)
    small_put_seconds = time.perf_counter() - start
    filled.close()
    overhead_bytes = _used_bytes(small) - before - records * small_page_bytes
    reopened: Shape = shape(small, small_page_bytes)
    start = time.perf_counter()
    found = reopened.recover()
    recover_seconds = time.perf_counter() - start
    reopened.close()
    if found != records:
        raise RuntimeError(f"{shape.name}: {found} of {records} records were recovered")
    shutil.rmtree(root)
    moved_mb = pages * page_bytes / 1e6
    return ShapeFigures(
        shape.name,
        moved_mb / put_seconds,
        moved_mb / get_seconds,
        small_put_seconds / records * 1e6,
        recover_seconds,
        overhead_bytes / records,
    )


def _put_and_get(shape: Shape, page_bytes: int, pages: int) -> tuple[float, float]:
    page, into = memoryview(os.urandom(page_bytes)), memoryview(bytearray(page_bytes))
    keys = list(itertools.islice(_keys(), pages))
    start = time.perf_counter()
    for key in keys:
        shape.put(key, page)
    middle = time.perf_counter()
    right = all(shape.get(key, into) for key in keys)
    end = time.perf_counter()
    shape.close()
    if not right:
        raise RuntimeError(f"{shape}: a page came back damaged")
    return middle - start, end - middle


def _emptied(directory: Path) -> Path:
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    os.sync()  # what the shape before left behind is not this one's time
    return directory


def _used_bytes(directory: Path) -> int:
    os.sync()
    return sum(path.stat().st_blocks * 512 for path in (directory, *directory.rglob("*")))
