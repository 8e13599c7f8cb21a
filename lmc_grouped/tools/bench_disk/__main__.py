"""`python -m lmc_grouped.tools.bench_disk`."""

from lmc_grouped.tools.bench_disk.command import main

raise SystemExit(main())
