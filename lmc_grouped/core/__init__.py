"""Groups, hits, plans, sizes and eviction: pure decisions, no engine and no tensors."""
