"""`python -m lmc_grouped.tools.bench_transfer`."""

from lmc_grouped.tools.bench_transfer.command import main

raise SystemExit(main())
