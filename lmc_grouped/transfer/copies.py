"""What every way of copying is told, and what it answers."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int64]
"""Block ids or slots of one operation, ``[pages]``."""


class TransferError(RuntimeError):
    """A page could not be copied: names the group and the pages."""


@dataclass(frozen=True, slots=True)
class Copies:
    """Copies of one operation, merged where they are adjacent on both sides."""

    device_addresses: npt.NDArray[np.int64]
    """``[n]``, bytes: in the engine's cache."""
    host_addresses: npt.NDArray[np.int64]
    """``[n]``, bytes: in the host pool."""
    sizes_bytes: npt.NDArray[np.int64]
    """``[n]``."""


class Ticket(Protocol):
    """Copies that were begun."""

    def is_done(self) -> bool:
        """Whether all bytes have arrived.

        Raises:
            TransferError: they never will.
        """
        ...

    def wait(self) -> None:
        """Return when all bytes have arrived.

        Raises:
            TransferError: they never will.
        """
        ...


class Done:
    """A ticket of copies that were over when they had been begun."""

    def is_done(self) -> bool:
        """They are."""
        return True

    def wait(self) -> None:
        """Nothing to wait for."""


DONE = Done()


class Rung(Protocol):
    """One way to copy the pages of one group; ``docs/transfer.md`` has the ladder.

    Ids have been checked: they are in range, equally many, and no target occurs twice.
    """

    name: str
    copies_inline: bool
    """Whether the bytes have arrived when ``store`` or ``load`` returns. Such loads run on
    a thread of their own; others are begun by the engine's thread, whose stream they follow."""

    def store(self, block_ids: Ids, slots: Ids) -> Ticket:
        """Begin to copy device block ``block_ids[i]`` into pool slot ``slots[i]``.

        Raises:
            TransferError: the copies could not be begun.
        """
        ...

    def load(self, block_ids: Ids, slots: Ids) -> Ticket:
        """Begin to copy pool slot ``slots[i]`` into device block ``block_ids[i]``.

        Raises:
            TransferError: the copies could not be begun.
        """
        ...


class DeviceStream(Protocol):
    """The order between the engine's work on a device and copies beside it; one per worker.

    Both are called by the engine's thread, and neither waits.
    """

    def after_compute(self) -> None:
        """Copies begun from now on start after all that the engine has submitted."""
        ...

    def before_compute(self) -> None:
        """All that the engine submits from now on starts after the stores begun so far.

        Their source blocks may be freed, zeroed or written by the next step. Loads are not
        waited for: nothing uses their blocks before they are acknowledged.
        """
        ...
