"""Whole reads and writes at an offset, direct I/O, and giving room back."""

import ctypes
import errno
import mmap
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from lmc_grouped.host.disk.format import DiskError

DIRECT_BYTES = 4096
"""Alignment of buffers, offsets and lengths for direct I/O. Some devices take less, but
then two pages could share a page of the cache, where direct and cached I/O meet."""
MAX_VECTORS = 1024
"""Linux: buffers per call of preadv and pwritev."""
FULL_ERRNOS = frozenset({errno.ENOSPC, errno.EDQUOT})
_KEEP_SIZE_PUNCH_HOLE = 0x01 | 0x02
"""fallocate(2): FALLOC_FL_KEEP_SIZE and FALLOC_FL_PUNCH_HOLE."""


def write_fully(fd: int, views: Sequence[memoryview | bytes], offset: int) -> None:
    """Write all of ``views`` in order; OSError when the system does not take it."""
    rest = [memoryview(view) for view in views]
    while rest:
        count = os.pwritev(fd, rest[:MAX_VECTORS], offset)
        rest, offset = _behind(rest, count), offset + count


def read_fully(fd: int, views: Sequence[memoryview], offset: int) -> int:
    """Fill ``views`` in order from ``offset``; the number of bytes, fewer at the file's end."""
    done = 0
    rest = list(views)
    while rest:
        count = os.preadv(fd, rest[:MAX_VECTORS], offset + done)
        if count == 0:
            break
        done += count
        rest = _behind(rest, count)
    return done


def _behind(views: list[memoryview], count: int) -> list[memoryview]:
    """What follows the first ``count`` bytes."""
    for number, view in enumerate(views):
        if count < len(view):
            return [view[count:], *views[number + 1 :]]
        count -= len(view)
    return []


def address_of(view: memoryview) -> int:
    """Where the buffer begins in this process."""
    address, _ = np.frombuffer(view, dtype=np.uint8).__array_interface__["data"]
    return int(address)


def takes_direct(directory: Path) -> bool:
    """Whether aligned reads and writes in ``directory`` can go past the page cache.

    Found by trying: nothing that Python can ask knows it.
    """
    if not hasattr(os, "O_DIRECT"):
        return False
    path = directory / "direct.probe"
    page = memoryview(mmap.mmap(-1, DIRECT_BYTES))
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_DIRECT, 0o644)
    except OSError:
        return False
    finally:
        path.unlink(missing_ok=True)
    try:
        return os.pwrite(fd, page, 0) == os.preadv(fd, [page], 0) == DIRECT_BYTES
    except OSError:
        return False
    finally:
        os.close(fd)


def has_room(directory: Path, size_bytes: int) -> bool:
    """Whether the file system would give ``size_bytes`` now, quotas of the user included."""
    path = directory / "room.probe"
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            os.posix_fallocate(fd, 0, size_bytes)
        finally:
            os.close(fd)
            path.unlink(missing_ok=True)
    except OSError:
        return False
    return True


def punch_hole(fd: int, offset: int, size_bytes: int) -> bool:
    """Give the room behind a part of a file back; False where that is not possible."""
    return _fallocate(fd, _KEEP_SIZE_PUNCH_HOLE, offset, size_bytes)


def take_room(fd: int, offset: int, size_bytes: int) -> bool:
    """Lengthen a file over room of its own, never shorten it; False where that is not possible.

    Not ``os.posix_fallocate``: where the file system cannot do it, that writes zeros
    into the file, which others are writing to.
    """
    return _fallocate(fd, 0, offset, size_bytes)


def _fallocate(fd: int, mode: int, offset: int, size_bytes: int) -> bool:
    call = getattr(ctypes.CDLL(None), "fallocate", None)
    if call is None:
        return False
    call.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
    return bool(call(fd, mode, offset, size_bytes) == 0)


def make_directory(path: Path) -> None:
    """Create ``path`` and what leads to it.

    Raises:
        DiskError: something there is a file, or cannot be written.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        at = next((p for p in (path, *path.parents) if p.exists() and not p.is_dir()), path)
        raise DiskError(
            f"{at} is a file where a directory should be: name a directory for the disk tier, "
            "or move the file"
        ) from error
    except OSError as error:
        raise not_writable(path, error) from error


def not_writable(path: Path, error: OSError) -> DiskError:
    """The error for a place that takes no files."""
    return DiskError(
        f"{path} cannot be written ({error.strerror}): the disk tier needs a directory that "
        f"this process (user {os.geteuid()}) may write"
    )
