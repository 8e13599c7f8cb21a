"""Benchmark of copies between cache and pool: `python -m lmc_grouped.tools.bench_transfer`."""
