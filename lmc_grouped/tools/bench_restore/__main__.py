"""`python -m lmc_grouped.tools.bench_restore`."""

from lmc_grouped.tools.bench_restore.command import main

raise SystemExit(main())
