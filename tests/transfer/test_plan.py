"""The plan of a group's copies against an obvious model: one byte at a time."""

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from lmc_grouped.transfer.copies import Copies
from lmc_grouped.transfer.grids import find_grids
from lmc_grouped.transfer.plan import HostPool, PagePlan
from tests.transfer.layouts import Layer, Layout

MAX_BLOCKS = 6


def bytes_of(copies: Copies) -> dict[int, int]:
    """host address -> device address, of every byte copied."""
    pairs = [
        (host + i, device + i)
        for device, host, size in zip(
            copies.device_addresses.tolist(),
            copies.host_addresses.tolist(),
            copies.sizes_bytes.tolist(),
            strict=True,
        )
        for i in range(size)
    ]
    assert len(dict(pairs)) == len(pairs), "a host byte is written twice"
    return dict(pairs)


def expected_bytes(
    views: list[torch.Tensor], pool: HostPool, blocks: list[int], slots: list[int]
) -> dict[int, int]:
    """The same, worked out from what a page is."""
    expected: dict[int, int] = {}
    for block, slot in zip(blocks, slots, strict=True):
        extent, position = divmod(slot, pool.slots_per_extent)
        host = pool.address + extent * pool.extent_stride_bytes + position * pool.page_bytes
        for view in views:
            for place in np.ndindex(tuple(view.shape[1:])):
                expected[host] = view[(block, *place)].data_ptr()
                host += 1
    return expected


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    """Layers with up to two outer axes in any order in memory, padded or not."""
    layers: list[Layer] = []
    sizes: list[int] = []
    for number in range(draw(st.integers(1, 3))):
        axes = {"blocks": draw(st.integers(2, MAX_BLOCKS))}
        axes |= {f"outer {i}": draw(st.integers(1, 3)) for i in range(draw(st.integers(0, 2)))}
        run = draw(st.integers(1, 4))
        stride, strides = run + draw(st.sampled_from([0, 0, 1, 3])), {}
        for axis in draw(st.permutations(sorted(axes))):
            strides[axis] = stride
            stride *= axes[axis]
        outer = [axis for axis in axes if axis != "blocks"]
        shape = (axes["blocks"], *(axes[axis] for axis in outer), run)
        in_bytes = (strides["blocks"], *(strides[axis] for axis in outer), 1)
        is_shared = bool(sizes) and draw(st.booleans())
        if is_shared:  # right behind the layer before it
            layers.append(Layer(len(sizes) - 1, sizes[-1], shape, in_bytes))
            sizes[-1] += stride
        else:
            layers.append(Layer(len(sizes), 0, shape, in_bytes))
            sizes.append(stride)
        del number
    return Layout(tuple(layers), tuple(sizes))


@given(st.data())
def test_every_byte_of_every_page_is_copied_once_and_from_the_right_place(data: st.DataObject):
    views = (layout := data.draw(layouts())).views(layout.allocate())
    plan = PagePlan.of(3, views)
    slots_per_extent, extents = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 3))
    gap = data.draw(st.sampled_from([0, 2]))
    buffer = np.zeros((extents, slots_per_extent * plan.page_bytes + gap), dtype=np.uint8)
    pages = buffer[:, : slots_per_extent * plan.page_bytes]
    pool = HostPool.of(pages.reshape(extents, slots_per_extent, plan.page_bytes))
    assert pool.num_slots == slots_per_extent * extents
    count = data.draw(st.integers(0, min(plan.num_blocks, pool.num_slots)))
    blocks = data.draw(st.permutations(range(plan.num_blocks)))[:count]
    slots = data.draw(st.permutations(range(pool.num_slots)))[:count]
    if data.draw(st.booleans()):
        blocks, slots = sorted(blocks), sorted(slots)
    copies = plan.copies(pool, np.array(blocks, dtype=np.int64), np.array(slots, dtype=np.int64))
    assert bytes_of(copies) == expected_bytes(views, pool, blocks, slots)


@given(layouts())
def test_runs_cannot_be_merged_any_further(layout: Layout):
    plan = PagePlan.of(3, layout.views(layout.allocate()))
    for i in range(len(plan.run_bytes) - 1):
        is_adjacent = plan.device_addresses[i] + plan.run_bytes[i] == plan.device_addresses[i + 1]
        same_stride = plan.block_strides_bytes[i] == plan.block_strides_bytes[i + 1]
        assert not (is_adjacent and same_stride) or len(layout.allocation_bytes) > 1


@given(layouts())
def test_grids_are_the_runs_in_their_order(layout: Layout):
    plan = PagePlan.of(3, layout.views(layout.allocate()))
    grids = find_grids(plan, len(plan.run_bytes))
    assert grids is not None
    runs = []
    for grid in grids:
        offset = grid.page_offset_bytes
        for place in np.ndindex(grid.shape):
            steps = sum(i * stride for i, stride in zip(place, grid.strides_bytes, strict=True))
            runs.append((grid.device_address + steps, grid.block_stride_bytes, offset))
            offset += grid.run_bytes
    assert runs == list(
        zip(
            plan.device_addresses.tolist(),
            plan.block_strides_bytes.tolist(),
            plan.page_offsets_bytes.tolist(),
            strict=True,
        )
    )


def plan_of(*shape: int, dims: tuple[int, ...] | None = None) -> PagePlan:
    """One layer; ``dims`` permutes the shape that lies in memory."""
    view = torch.zeros(shape, dtype=torch.uint8)
    return PagePlan.of(0, [view.permute(dims) if dims else view])


def test_heads_of_several_layers_are_one_grid():
    memory = torch.zeros(5, 7, 4, 16, dtype=torch.uint8)  # layers, heads, blocks, run
    plan = PagePlan.of(0, [layer.transpose(0, 1) for layer in memory])
    grids = find_grids(plan, 1)
    assert grids is not None
    assert [(grid.shape, grid.strides_bytes) for grid in grids] == [((5 * 7,), (4 * 16,))]
    padded = torch.zeros(5, 8, 4, 16, dtype=torch.uint8)[:, :7]
    plan = PagePlan.of(0, [layer.transpose(0, 1) for layer in padded])
    grids = find_grids(plan, 1)
    assert grids is not None
    assert [(grid.shape, grid.strides_bytes) for grid in grids] == [((5, 7), (8 * 64, 64))]
    assert find_grids(plan, 0) is None


def test_layers_that_follow_each_other_in_every_block_are_one_run():
    memory = torch.zeros(6, 3, 40, dtype=torch.uint8)  # blocks, layers, run
    plan = PagePlan.of(0, [memory[:, i] for i in range(3)])
    assert plan.run_bytes.tolist() == [120]
    assert plan.block_strides_bytes.tolist() == [120]


def test_layers_in_other_allocations_stay_apart_even_where_they_are_neighbours():
    memory = torch.zeros(2, 40, dtype=torch.uint8)
    block = memory.numpy()
    neighbours = [torch.from_numpy(block[:, :20]), torch.from_numpy(block[:, 20:])]
    assert neighbours[0].untyped_storage().data_ptr() != neighbours[1].untyped_storage().data_ptr()
    assert PagePlan.of(0, neighbours).run_bytes.tolist() == [20, 20]


def test_neighbouring_pages_are_one_copy_until_a_block_a_slot_or_an_extent_breaks_off():
    plan = plan_of(20, 8)
    memory = np.zeros((2, 5, 8), dtype=np.uint8)
    copies = plan.copies(
        HostPool.of(memory), np.array([1, 2, 3, 4, 6, 7, 9]), np.array([3, 4, 5, 6, 7, 8, 1])
    )
    # Slot 5 begins an extent; block 6 does not follow 4; slot 1 does not follow 8.
    assert copies.sizes_bytes.tolist() == [16, 16, 16, 8]
    assert (copies.host_addresses - memory.ctypes.data).tolist() == [24, 40, 56, 8]
    assert (copies.device_addresses - plan.device_addresses[0]).tolist() == [8, 24, 48, 72]


def test_pages_with_bytes_between_their_blocks_are_copies_of_their_own():
    view = torch.zeros(20, 10, dtype=torch.uint8)[:, :8]
    memory = np.zeros((1, 5, 8), dtype=np.uint8)
    copies = PagePlan.of(0, [view]).copies(
        HostPool.of(memory), np.array([1, 2, 3]), np.array([0, 1, 2])
    )
    assert copies.sizes_bytes.tolist() == [8, 8, 8]


def test_a_rank_without_layers_copies_nothing():
    plan = PagePlan.of(0, [])
    assert (plan.num_blocks, plan.page_bytes) == (0, 0)
    memory = np.zeros((1, 5, 0), dtype=np.uint8)
    copies = plan.copies(HostPool.of(memory), np.array([1, 2]), np.array([0, 1]))
    assert copies.sizes_bytes.tolist() == []
