"""Every layout, page size and rung that runs here: all bytes right, and no byte beside them."""

import sys
import time
from collections.abc import Callable, Iterator
from threading import Event, Thread

import pytest
import torch

from lmc_grouped.transfer.copies import Rung
from lmc_grouped.transfer.cpu import DirectRung, StridedRung
from lmc_grouped.transfer.grids import find_grids
from lmc_grouped.transfer.pages import PageCopier
from lmc_grouped.transfer.plan import HostPool, PagePlan
from lmc_grouped.transfer.synchronous import TorchRung
from tests.transfer.layouts import LAYOUTS, PAGE_BYTES, RoundTrip

MakeRung = Callable[[int, list[torch.Tensor], torch.Tensor], Rung]


def direct(group_id: int, views: list[torch.Tensor], pool: torch.Tensor) -> Rung:
    return DirectRung(PagePlan.of(group_id, views), HostPool.of(pool.numpy()))


def strided(group_id: int, views: list[torch.Tensor], pool: torch.Tensor) -> Rung:
    plan = PagePlan.of(group_id, views)
    grids = find_grids(plan, len(plan.run_bytes))
    assert grids
    return StridedRung(plan, HostPool.of(pool.numpy()), grids)


RUNGS: dict[str, MakeRung] = {"direct": direct, "strided": strided, "torch": TorchRung}


@pytest.fixture(params=RUNGS.values(), ids=RUNGS.keys())
def make(request: pytest.FixtureRequest) -> Callable[..., PageCopier]:
    """A copier that takes the rung."""

    def copier(group_id: int, views: list[torch.Tensor], pool: torch.Tensor) -> PageCopier:
        return PageCopier(group_id, views, pool, request.param(group_id, views, pool))

    return copier


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS.keys())
@pytest.mark.parametrize("page_bytes", PAGE_BYTES)
def test_pages_go_out_and_come_back_and_no_other_byte_changes(make, layout, page_bytes):
    trip = RoundTrip(layout(page_bytes), make, seed=page_bytes)
    assert trip.page_bytes == page_bytes
    trip.store()
    assert trip.wrong_bytes_in_pool() == 0
    trip.load()
    assert trip.wrong_bytes_in_cache() == 0


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS.keys())
def test_one_changed_byte_is_noticed_wherever_it_is(make, layout):
    """Control of the comparisons above."""
    trip = RoundTrip(layout(4_096), make)
    trip.store()
    trip.extents[0, -1] ^= 1  # between the extents
    assert trip.wrong_bytes_in_pool() == 1
    trip.extents[0, -1] ^= 1
    trip.pool[divmod(trip.slots[2], trip.pool.shape[1])][1_000] ^= 1
    assert trip.wrong_bytes_in_pool() == 1
    trip.load()
    assert trip.wrong_bytes_in_cache() == 1
    trip.allocations[-1][-1] ^= 1
    assert trip.wrong_bytes_in_cache() == 2


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS.keys())
def test_the_rung_that_is_chosen_copies_as_well(layout):
    trip = RoundTrip(layout(50_176), PageCopier)
    trip.store()
    assert trip.wrong_bytes_in_pool() == 0
    trip.load()
    assert trip.wrong_bytes_in_cache() == 0


@pytest.mark.parametrize(
    ("layout", "rung"),
    [
        ("MLA", DirectRung),
        ("fused, layers inside blocks", DirectRung),
        ("layers of different sizes", DirectRung),
        ("NHD", StridedRung),
        ("HND, heads outermost", StridedRung),
        ("HND, layers inside heads", StridedRung),
        ("K/V split", StridedRung),
        ("recurrent int8 with a larger stride", StridedRung),
    ],
)
def test_pages_of_several_regular_runs_are_copied_as_strided_arrays(layout, rung):
    assert type(RoundTrip(LAYOUTS[layout](65_536), PageCopier).copier.rung) is rung


def test_a_block_that_is_loaded_twice_is_refused(make):
    from lmc_grouped.transfer.copies import TransferError

    trip = RoundTrip(LAYOUTS["NHD"](4_096), make)
    with pytest.raises(TransferError, match=r"group 3: block ids \[3, 3\] name a target .* twice"):
        trip.copier.load([3, 3], [0, 1])
    with pytest.raises(TransferError, match=r"group 3: slots \[1, 1\] name a target .* twice"):
        trip.copier.store([0, 3], [1, 1])
    trip.copier.store([3, 3], [0, 1]).wait()  # the same bytes in two slots
    assert torch.equal(trip.pool[0, 0], trip.pool[0, 1])


@pytest.fixture
def lock_is_not_taken_away() -> Iterator[None]:
    """The interpreter's lock goes to another thread only where it is let go."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(60)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("lock_is_not_taken_away")
@pytest.mark.parametrize("layout", ["MLA", "HND, heads outermost"], ids=["direct", "strided"])
def test_another_thread_goes_on_while_pages_are_loaded(layout):
    trip = RoundTrip(LAYOUTS[layout](8 * 2**20), PageCopier)
    trip.store()
    begun, ended = Event(), Event()

    def load() -> None:
        begun.set()
        for _ in range(20):  # a busy machine may not run the other thread at once
            trip.copier.load(trip.targets, trip.slots)
        ended.set()

    thread = Thread(target=load)
    thread.start()
    begun.wait()
    turns = 0
    while not ended.is_set():
        turns += 1
        time.sleep(0)
    thread.join()
    assert turns > 0
