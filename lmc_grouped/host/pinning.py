"""Page-locked host memory: all of it or none, one process at a time."""

import errno
import fcntl
import logging
import os
import resource
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Protocol

from lmc_grouped.host.layout import Piece

logger = logging.getLogger(__name__)


class PinningError(ValueError):
    """The memory of this rank cannot be page-locked; nothing of it is."""


class HostRegistrar(Protocol):
    """The driver of a device, as far as it page-locks memory of this process."""

    def register(self, address: int, size_bytes: int) -> int:
        """Page-lock a range; the driver's code, 0 when it is done."""

    def unregister(self, address: int) -> int:
        """Let go of the range that was registered at this address; the driver's code."""

    def clear_error(self) -> None:
        """Forget the last failure, which a later call would be blamed for otherwise."""


class PinnedMemory:
    """Memory that the driver has page-locked piece by piece.

    A copy that the device makes by itself has to stay within one piece: the
    driver knows each as a range of its own.

    Args:
        name: what messages call the memory: its path, or that it has none.
        address: of its first byte.
        pieces: of the whole memory, ascending.
        registrar: the driver.
        rank: whose memory it is.
        lock_path: the file that one process at a time holds while it pins.

    Raises:
        PinningError: the driver refused a piece; those before it are released. Or
            the lock cannot be had.
    """

    def __init__(
        self,
        name: str,
        address: int,
        pieces: tuple[Piece, ...],
        registrar: HostRegistrar,
        *,
        rank: int,
        lock_path: Path | None = None,
    ) -> None:
        self.name = name
        self.pieces = pieces
        self._address = address
        self._registrar = registrar
        self._rank = rank
        self._registered: list[Piece] = []
        with pinning_lock(lock_path or default_lock_path(), rank):
            try:
                for piece in pieces:
                    self._register(piece)
            except BaseException:  # also an interrupt: half a region is of no use to anybody
                registrar.clear_error()
                self.close()
                raise
        logger.info("rank %d: %d bytes of %s are pinned in %d pieces",
            rank, self.size_bytes, name, len(pieces))  # fmt: skip

    @property
    def size_bytes(self) -> int:
        """Of all pieces together."""
        return sum(piece.size_bytes for piece in self.pieces)

    def close(self) -> None:
        """Release every piece, the last one first; a second call does nothing."""
        codes: list[int] = []
        while self._registered:
            piece = self._registered.pop()
            code = self._registrar.unregister(self._address + piece.offset_bytes)
            if code:
                self._registrar.clear_error()
                codes.append(code)
        if codes:
            logger.warning(
                "rank %d: %d of %d pieces of %s stay pinned until the process ends: driver code %s",
                self._rank, len(codes), len(self.pieces), self.name,
                ", ".join(map(str, sorted(set(codes)))),
            )  # fmt: skip

    def _register(self, piece: Piece) -> None:
        code = self._registrar.register(self._address + piece.offset_bytes, piece.size_bytes)
        if code:
            raise PinningError(
                f"rank {self._rank}: {self.size_bytes} bytes of {self.name} cannot be pinned: "
                f"piece {len(self._registered) + 1} of {len(self.pieces)} ({piece.size_bytes} "
                f"bytes at offset {piece.offset_bytes}) was refused with driver code {code}; those "
                f"before it are released. The limit of locked memory is {_locked_memory_limit()} "
                "here: raise it (`ulimit -l`, in a container --ulimit memlock=-1), give the "
                "machine more free memory, or lower max_local_cpu_size"
            )
        self._registered.append(piece)


def default_lock_path() -> Path:
    """The lock of this user in the directory for temporary files, where vLLM's sockets lie.

    It is empty or holds the number of the process that pins or was killed while
    it did. It is never deleted: a lock on a deleted file keeps nobody out.
    """
    return Path(tempfile.gettempdir()) / f"lmc_grouped-pinning-{os.geteuid()}.lock"


@contextmanager
def pinning_lock(path: Path, rank: int) -> Iterator[None]:
    """Be the only process that pins; waits until the one before has finished or died.

    Workers that pinned one shared file at once were refused for lack of memory while
    there was plenty: https://github.com/vllm-project/vllm/issues/51080. Nobody has
    tried whether memory of their own spares them that.

    Raises:
        PinningError: the file cannot be made, or its file system has no locks.
    """
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise _no_lock(path, rank, error) from error
    try:
        _wait_for(fd, path, rank)
        try:
            with suppress(OSError):  # a full file system: the lock holds without the number
                os.ftruncate(fd, 0)
                os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
            yield
        finally:
            os.ftruncate(fd, 0)
            # Closing is not enough if the process was forked meanwhile.
            fcntl.flock(fd, fcntl.LOCK_UN)
    finally:
        os.close(fd)


def _wait_for(fd: int, path: Path, rank: int) -> None:
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(fd, 32, 0).decode("ascii", "replace").strip() or "another process"
            logger.info("rank %d: waiting until %s has pinned its memory (%s)", rank, holder, path)
            fcntl.flock(fd, fcntl.LOCK_EX)
    except OSError as error:
        raise _no_lock(path, rank, error) from error


def _no_lock(path: Path, rank: int, error: OSError) -> PinningError:
    reason = os.strerror(error.errno or errno.EIO)
    return PinningError(
        f"rank {rank}: {path} cannot be locked ({reason}), so no memory is pinned: one process at "
        f"a time may pin; set TMPDIR to a local directory that user {os.geteuid()} may write"
    )


def _locked_memory_limit() -> str:
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return "unlimited" if soft == resource.RLIM_INFINITY else f"{soft} bytes"
