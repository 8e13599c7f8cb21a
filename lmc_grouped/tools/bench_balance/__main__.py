"""`python -m lmc_grouped.tools.bench_balance`."""

import sys

from lmc_grouped.tools.bench_balance.command import main

sys.exit(main())
