"""Pages, the slots they take, and the orders in which they wait to leave."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lmc_grouped.core.pool import Pool


class Clock:
    """Counts uses: what was used together has the same time."""

    __slots__ = ("now",)

    def __init__(self) -> None:
        self.now = 0

    def tick(self) -> None:
        """What is used from here on was used later."""
        self.now += 1


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
        "used_at",
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
        self.used_at = 0
        """When it came to its place in an order."""
        self.families: tuple[tuple[Page, ...], ...] = ()
        """The families it is the last page of, in its group."""
        self.ready = False
        self.gone = False


class Order:
    """Pages that nothing holds, in the order in which they leave."""

    __slots__ = ("_clock", "_end", "count")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._end = _Link()
        self._end.before = self._end.after = self._end
        self.count = 0

    def append(self, page: Page) -> None:
        """Put ``page`` last."""
        last = self._end.before
        assert last is not None
        page.before, page.after = last, self._end
        last.after = self._end.before = page
        page.used_at = self._clock.now
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
    """Where pages that take the same slots lie, and the orders in which they leave it.

    This one has a fixed number of slots: those of one group, or with shared
    rows those of all.
    """

    __slots__ = ("_free", "_slots", "_untouched", "useful", "useless")

    def __init__(self, slots: int, clock: Clock) -> None:
        self._slots = slots
        self._untouched = 0
        self._free: list[int] = []
        self.useful = Order(clock)
        self.useless = Order(clock)

    @property
    def capacity_slots(self) -> int:
        """Slots it has now."""
        return self._slots

    @property
    def free_slots(self) -> int:
        """Slots that hold nothing."""
        return self._slots - self._untouched + len(self._free)

    @property
    def idle_slots(self) -> int:
        """Slots whose page nothing holds."""
        return self.useless.count + self.useful.count

    @property
    def available_slots(self) -> int:
        """Slots that a reservation for this room alone could get now."""
        return self.free_slots + self.idle_slots

    def place(self, page: Page) -> bool:
        """Give ``page`` a slot that holds nothing; whether there was one."""
        if self._free:
            page.slot = self._free.pop()
        elif self._untouched < self._slots:
            page.slot = self._untouched
            self._untouched += 1
        else:
            return False
        return True

    def vacate(self, page: Page) -> None:
        """The slot of ``page`` holds nothing any more."""
        self._free.append(page.slot)

    def next_to_leave(self) -> Page | None:
        """The page to evict; no other page leans on it."""
        return self.useless.first() or self.useful.first()

    def order_of(self, page: Page) -> Order:
        """Where ``page`` waits when nothing holds it."""
        return self.useful if page.uses else self.useless
