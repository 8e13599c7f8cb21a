"""torch's part of the work: kernels on a copy stream, and the ids that they read."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from lmc_grouped.transfer.copies import Ids
from lmc_grouped.transfer.cuda.stream import CopyStream

ID_ROOM = 65_536
"""Block ids of one direction that are in use before the host waits for the device. Allocating
memory for each operation instead could make the device wait for itself."""

Run = Callable[[Callable[[], object]], None]
"""Has the kernels that its argument starts run in the order of one stream."""


def on_stream(stream: CopyStream, device: torch.device) -> Run:
    """torch's kernels on a stream that torch did not make."""
    external = torch.cuda.ExternalStream(stream.handle, device=device)

    def run(work: Callable[[], object]) -> None:
        # The engine's cache may be made for inference only, and is written to here.
        with torch.inference_mode(), torch.cuda.stream(external):
            work()

    return run


class IdRing:
    """Ids on their way to the kernels of one stream.

    Args:
        host: ``int64`` ``[room]``, page-locked.
        device: ``int64`` ``[room]``, where the kernels read.
        run: on the stream.
        wait: returns when the stream has done everything.
    """

    def __init__(
        self, host: torch.Tensor, device: torch.Tensor, run: Run, wait: Callable[[], None]
    ) -> None:
        self._host, self._device = host, device
        self._run, self._wait = run, wait
        self._next = 0

    @property
    def room(self) -> int:
        """The most ids at a time."""
        return len(self._host)

    def put(self, ids: Ids) -> torch.Tensor:
        """Where kernels that are started on the stream from now on find the ids.

        Raises:
            TransferError: the stream had to be waited for, and has failed.
        """
        if self._next + len(ids) > self.room:
            self._wait()  # whatever is behind here may still be read
            self._next = 0
        part = slice(self._next, self._next + len(ids))
        self._next += len(ids)
        source, target = self._host[part], self._device[part]
        source.copy_(torch.from_numpy(ids))
        self._run(lambda: target.copy_(source, non_blocking=True))
        return target


@dataclass(frozen=True, slots=True)
class TorchLane:
    """torch's work on one copy stream; all groups of a worker share it."""

    stream: CopyStream
    run: Run
    ids: IdRing
