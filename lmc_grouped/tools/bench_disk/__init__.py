"""Benchmarks of the file tier: `python -m lmc_grouped.tools.bench_disk`."""
