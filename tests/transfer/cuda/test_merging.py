"""Neighbours on both sides become one copy, within one pinned piece."""

import random
from itertools import pairwise

import numpy as np
import pytest
import torch

from lmc_grouped.transfer.copies import Copies
from lmc_grouped.transfer.cuda.merging import merge
from tests.transfer.cuda.lab import BLOCKS, SLOTS, SLOTS_PER_EXTENT, Lab, ids
from tests.transfer.cuda.shapes import SHAPES

CPU = torch.device("cpu")
NONE = ids()


def copies(*rows: tuple[int, int, int]) -> Copies:
    return Copies(*(np.array(column, dtype=np.int64) for column in zip(*rows, strict=True)))


def rows(merged: Copies) -> list[tuple[int, int, int]]:
    columns = (merged.device_addresses, merged.host_addresses, merged.sizes_bytes)
    return list(zip(*(column.tolist() for column in columns), strict=True))


@pytest.mark.parametrize(
    ("given", "merged"),
    [
        ([(100, 500, 8)], [(100, 500, 8)]),
        ([(100, 500, 8), (108, 508, 4)], [(100, 500, 12)]),
        ([(100, 500, 8), (108, 508, 4), (112, 512, 1)], [(100, 500, 13)]),
        ([(100, 500, 8), (109, 508, 4)], [(100, 500, 8), (109, 508, 4)]),
        ([(100, 500, 8), (108, 509, 4)], [(100, 500, 8), (108, 509, 4)]),
        ([(108, 508, 4), (100, 500, 8)], [(108, 508, 4), (100, 500, 8)]),
        ([(0, 0, 1), (1, 1, 1), (3, 2, 1), (4, 3, 2)], [(0, 0, 2), (3, 2, 3)]),
    ],
)
def test_only_neighbours_on_both_sides_are_merged(given, merged):
    assert rows(merge(copies(*given), NONE)) == merged


def test_no_copy_reaches_over_a_border():
    given = copies(*((100 + i, 500 + i, 1) for i in range(10)))
    cut = [(100, 500, 3), (103, 503, 4), (107, 507, 3)]
    assert rows(merge(given, ids(503, 507))) == cut
    assert rows(merge(copies((100, 500, 10)), ids(503, 507))) == cut
    assert rows(merge(copies((100, 500, 10)), ids(400, 500, 510))) == [(100, 500, 10)]


def test_merged_copies_move_the_same_bytes():
    rng = random.Random(3)
    for _ in range(200):
        given, device, host = [], 1000, 5000
        for _ in range(rng.randint(1, 12)):
            size = rng.randint(1, 4)
            given.append((device, host, size))
            device += size + rng.choice([0, 0, 1])
            host += size + rng.choice([0, 0, 1])
        borders = ids(*sorted(rng.sample(range(4999, host + 2), rng.randint(0, 6))))

        def moved(all_rows: list[tuple[int, int, int]]) -> list[tuple[int, int]]:
            return [(d + i, h + i) for d, h, size in all_rows for i in range(size)]

        merged = rows(merge(copies(*given), borders))
        assert moved(merged) == moved(given)
        inner = set(borders.tolist())
        assert not any(h < border < h + size for _, h, size in merged for border in inner)
        for (d, h, size), following in pairwise(merged):
            joins = (d + size, h + size) == following[:2]
            assert not joins or following[1] in inner


def test_pages_that_follow_each_other_on_both_sides_are_one_copy_per_pinned_piece():
    lab = Lab(SHAPES["layers inside blocks"](BLOCKS, CPU))
    lab.rung("batch").store(ids(*range(2, 2 + SLOTS)), ids(*range(SLOTS))).wait()
    sizes = [size for batch in lab.fake.batches for _, _, size in batch]
    assert sizes == [SLOTS_PER_EXTENT * lab.plan.page_bytes] * 4
    lab.finish()


def test_the_driver_would_have_refused_a_copy_over_two_pieces():
    lab = Lab(SHAPES["layers inside blocks"](BLOCKS, CPU), borders=())
    with pytest.raises(RuntimeError, match="failed with 1 "):
        lab.rung("batch").store(ids(*range(2, 2 + SLOTS)), ids(*range(SLOTS)))
    lab.finish()


def test_staged_pages_for_slots_in_a_row_are_one_copy():
    lab = Lab(SHAPES["layers inside heads"](BLOCKS, CPU))
    lab.rung("staged", staging_pages=SLOTS).store(ids(9, 3, 17, 4), ids(3, 4, 5, 6)).wait()
    page = lab.plan.page_bytes
    assert [[size for _, _, size in batch] for batch in lab.fake.batches] == [[2 * page, 2 * page]]
    lab.finish()
