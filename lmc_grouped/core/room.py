"""Pages, the slots they take, and the orders in which they wait to leave."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lmc_grouped.core.index import Pool


class _Link:
    """A place in an order."""

    __slots__ = ("after", "before")

    def __init__(self) -> None:
        self.before: _Link | None = None
        self.after: _Link | None = None


class Page(_Link):
    """One page: where it lies, what it leans on, who holds it, what it is good for."""

    __slots__ = (
        "block_hash",
        "families",
        "followers",
        "gone",
        "holds",
        "pool",
        "previous",
        "ready",
        "slot",
        "uses",
    )

    def __init__(self, pool: "Pool", block_hash: bytes) -> None:
        super().__init__()
        self.pool = pool
        self.block_hash = block_hash
        self.slot = -1
        self.previous: Page | None = None
        self.followers = 0
        """Pages that lean on this one."""
        self.holds = 0
        """Owners, and followers that are held themselves."""
        self.uses = 0
        """1 for its own families, and one for each useful follower."""
        self.families: tuple[tuple[Page, ...], ...] = ()
        """The families it is the last page of, in its group."""
        self.ready = False
        self.gone = False


class Order:
    """Pages that nothing holds, in the order in which they leave."""

    __slots__ = ("_end", "count")

    def __init__(self) -> None:
        self._end = _Link()
        self._end.before = self._end.after = self._end
        self.count = 0

    def append(self, page: Page) -> None:
        """Put ``page`` last."""
        last = self._end.before
        assert last is not None
        page.before, page.after = last, self._end
        last.after = self._end.before = page
        self.count += 1

    def remove(self, page: Page) -> None:
        """Take ``page`` out."""
        before, after = page.before, page.after
        assert before is not None
        assert after is not None
        before.after, after.before = after, before
        page.before = page.after = None
        self.count -= 1

    def first(self) -> Page | None:
        """The page that leaves next."""
        first = self._end.after
        return first if isinstance(first, Page) else None


class Room:
    """Slots of one size: those of one group, or with shared rows those of all."""

    __slots__ = ("_free", "_untouched", "capacity_slots", "useful", "useless")

    def __init__(self, capacity_slots: int) -> None:
        self.capacity_slots = capacity_slots
        self._untouched = 0
        self._free: list[int] = []
        self.useful = Order()
        self.useless = Order()

    @property
    def free_slots(self) -> int:
        """Slots that hold nothing."""
        return self.capacity_slots - self._untouched + len(self._free)

    @property
    def available_slots(self) -> int:
        """Slots that a reservation could get now."""
        return self.free_slots + self.useless.count + self.useful.count

    def take_free(self) -> int | None:
        """A slot that holds nothing."""
        if self._free:
            return self._free.pop()
        if self._untouched == self.capacity_slots:
            return None
        self._untouched += 1
        return self._untouched - 1

    def give_back(self, slot: int) -> None:
        """The slot holds nothing any more."""
        self._free.append(slot)

    def next_to_leave(self) -> Page | None:
        """The page to evict; no other page leans on it."""
        return self.useless.first() or self.useful.first()

    def order_of(self, page: Page) -> Order:
        """Where ``page`` waits when nothing holds it."""
        return self.useful if page.uses else self.useless
