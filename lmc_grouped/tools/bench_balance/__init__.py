"""What rebalancing costs an engine whose requests change: `make bench-balance`."""
