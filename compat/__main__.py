"""``python -m compat docs`` writes ``docs/compat.md``."""

import sys

from compat.releases import FOLDER
from compat.report import documentation

PAGE = FOLDER.parent / "docs" / "compat.md"


def main() -> int:
    """Write the page; exit status 2 for anything else."""
    if sys.argv[1:] != ["docs"]:
        sys.stderr.write(f"{__doc__}\n")
        return 2
    PAGE.write_text(documentation(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
