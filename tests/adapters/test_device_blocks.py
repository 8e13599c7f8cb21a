"""The engine's own block pool."""

from vllm.v1.core.block_pool import BlockPool

from lmc_grouped.adapters.device_blocks import DeviceBlocks


def test_device_blocks_are_pinned_and_let_go_in_the_engines_own_pool():
    pool = BlockPool(64, enable_caching=False, hash_block_size=16)
    blocks = DeviceBlocks(pool)
    (block,) = pool.get_new_blocks(1)
    free = pool.get_num_free_blocks()
    blocks.pin(block.block_id)
    pool.free_blocks([block])
    assert pool.get_num_free_blocks() == free
    blocks.unpin(block.block_id)
    assert pool.get_num_free_blocks() == free + 1


def test_device_blocks_are_scarce_below_a_sixteenth():
    pool = BlockPool(64, enable_caching=False, hash_block_size=16)
    blocks = DeviceBlocks(pool)
    assert not blocks.is_scarce()
    pool.get_new_blocks(63 - 4)
    assert not blocks.is_scarce()
    pool.get_new_blocks(1)
    assert blocks.is_scarce()
