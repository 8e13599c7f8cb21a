"""The questions put to every release, with their right answers.

Importing this package loads neither torch nor vLLM nor LMCache: a case builds
its input when it is asked, inside a probe.
"""

from compat.cases.conversion import CONVERSIONS
from compat.cases.model import Answer, Case, Conversion, Row
from compat.cases.scheduling import SCHEDULING

CASES: tuple[Case, ...] = (*CONVERSIONS, *SCHEDULING)

__all__ = ["CASES", "Answer", "Case", "Conversion", "Row", "find"]


def find(name: str) -> Case:
    """The case of that name; ``KeyError`` when there is none."""
    for case in CASES:
        if case.name == name:
            return case
    raise KeyError(f"no case is called {name!r}")
