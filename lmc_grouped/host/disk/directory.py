"""The directory of one namespace and rank: its lock and its ``namespace.json``."""

import errno
import fcntl
import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from lmc_grouped.core.keys import Namespace, NamespaceError
from lmc_grouped.host.disk.fileio import make_directory, not_writable
from lmc_grouped.host.disk.format import DiskError

logger = logging.getLogger(__name__)

NAMESPACE_FILE = "namespace.json"
LOCK_FILE = "lock"
_NO_PROCESS = 2**31 - 1
"""Above every number that Linux gives."""
_LOCK_TRIES = 5
_LOCK_PAUSE_SECONDS = 0.05
SET_ASIDE = ".set-aside"
"""Suffix of a file that is not ours to read and not ours to delete."""


class StoreInUseError(DiskError):
    """Another process has the store open."""


def store_path(root: Path, namespace: Namespace, rank: int) -> Path:
    """Where the pages of one rank lie."""
    return root / namespace.digest() / f"rank_{rank}"


class StoreLock:
    """The right to use a store's directory; it ends with the process, however that ends.

    A forked child keeps it too, until it ends or runs another program.

    Raises:
        StoreInUseError: another process, or another opening in this one, has it.
        DiskError: the directory takes no files.
    """

    def __init__(self, directory: Path) -> None:
        path = directory / LOCK_FILE
        try:
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise not_writable(directory, error) from error
        try:
            self._lock()
        except OSError as error:
            holder = _holder(self._fd)
            os.close(self._fd)
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                raise DiskError(
                    f"{path} cannot be locked ({error.strerror}): put the disk tier on a local "
                    "file system"
                ) from error
            raise StoreInUseError(
                f"{directory} is in use by {holder}: one process at a time may open a "
                "store; stop that process, or give this one another directory"
            ) from error
        if os.fstat(self._fd).st_nlink == 0:
            os.close(self._fd)
            raise StoreInUseError(f"{directory} was deleted while it was opened: try again")
        with suppress(OSError):  # a full file system: the lock holds without the number
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, f"{os.getpid()}\n".encode(), 0)

    def _lock(self) -> None:
        # `lmc-grouped disk ls` holds the lock for a moment: no reason not to start.
        for _ in range(_LOCK_TRIES - 1):
            with suppress(BlockingIOError):
                return fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            time.sleep(_LOCK_PAUSE_SECONDS)
        return fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def release(self) -> None:
        """Let others open the store."""
        os.ftruncate(self._fd, 0)
        os.close(self._fd)


@contextmanager
def shared_lock(directory: Path) -> Iterator[None]:
    """Keep tiers away while a store is looked at; several may look.

    Raises:
        StoreInUseError: a process has the store open.
    """
    try:
        fd = os.open(directory / LOCK_FILE, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:  # never opened by a tier, or copied without its lock: nobody has it
        yield
        return
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError as error:
            raise StoreInUseError(f"in use by {_holder(fd)}") from error
        yield
    finally:
        os.close(fd)


def _holder(fd: int) -> str:
    """Who has the store, as far as the lock file tells: readers do not write into it."""
    number = os.pread(fd, 32, 0).decode("ascii", "replace").strip()
    try:
        os.kill(int(number) if number.isdecimal() else _NO_PROCESS, 0)
    except (OverflowError, ProcessLookupError):
        last = f" (last opened by process {number}, which is not to be seen)" if number else ""
        return f"another process, such as `lmc-grouped disk verify`{last}"
    except PermissionError:
        pass  # there, and somebody else's
    return f"process {number}"


def open_directory(root: Path, namespace: Namespace, rank: int) -> tuple[Path, StoreLock]:
    """Create or take the store's directory; ``namespace.json`` in it is ours then.

    Raises:
        DiskError: the directory cannot be used, or is in use.
    """
    directory = store_path(root, namespace, rank)
    is_new = not directory.exists()
    make_directory(directory)
    lock = StoreLock(directory)
    try:
        _write_namespace(directory, namespace)
    except OSError as error:
        lock.release()
        raise not_writable(directory, error) from error
    if is_new:
        _explain_new(root, namespace)
    return directory, lock


def read_namespace(directory: Path) -> Namespace | None:
    """What ``namespace.json`` says; ``None`` when it is missing or not ours to read."""
    try:
        return Namespace.from_json((directory / NAMESPACE_FILE).read_bytes())
    except (OSError, NamespaceError):
        return None


def set_aside(path: Path) -> None:
    """Rename a file that is not ours, over what was set aside under that name before."""
    aside = path.with_name(path.name + SET_ASIDE)
    logger.warning("%s is not of this namespace and was set aside as %s", path, aside.name)
    path.replace(aside)


def _write_namespace(directory: Path, namespace: Namespace) -> None:
    path = directory / NAMESPACE_FILE
    wanted = namespace.to_json()
    if path.exists():
        if path.read_bytes() == wanted:
            return
        set_aside(path)
    fresh = path.with_name(NAMESPACE_FILE + ".new")
    fresh.write_bytes(wanted)
    fresh.replace(path)


def _explain_new(root: Path, namespace: Namespace) -> None:
    """Say why an older store is not this one: a restart that finds nothing needs a reason."""
    nearest = namespace.nearest(_other_namespaces(root, namespace))
    if nearest is not None:
        logger.info(
            "disk tier: %s is a new namespace; the nearest there is, %s, differs in %s",
            namespace.digest(), nearest.digest(), ", ".join(namespace.differences(nearest)),
        )  # fmt: skip


def _other_namespaces(root: Path, namespace: Namespace) -> Iterator[Namespace]:
    for path in sorted(root.glob(f"*/rank_*/{NAMESPACE_FILE}")):
        found = read_namespace(path.parent)
        if found is not None and found.digest() != namespace.digest():
            yield found
