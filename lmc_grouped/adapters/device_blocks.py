"""The engine's own block pool, as far as stores need it."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vllm.v1.core.block_pool import BlockPool


class DeviceBlocks:
    """Pins blocks of the engine's own pool, so that their bytes stay where they are."""

    def __init__(self, block_pool: "BlockPool") -> None:
        self._pool = block_pool

    def pin(self, block_id: int) -> None:
        """Keep the block from being reused."""
        self._pool.touch([self._pool.blocks[block_id]])

    def unpin(self, block_id: int) -> None:
        """Undo one ``pin``."""
        self._pool.free_blocks([self._pool.blocks[block_id]])

    def is_scarce(self) -> bool:
        """Whether less than a sixteenth of the engine's blocks is free."""
        return self._pool.get_num_free_blocks() * 16 < self._pool.num_gpu_blocks
