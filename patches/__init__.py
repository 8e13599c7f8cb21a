"""Run-time patches for LMCache's own multi-process connector on releases that lack a fix.

Every patch asks the release a question first and changes nothing where the
answer is right. Which patch mends what in which release: ``docs/compat.md``.
"""

from patches.base import Patch, State, UnknownPatch
from patches.registry import PATCHES, apply, chosen, revert

__all__ = ["PATCHES", "Patch", "State", "UnknownPatch", "apply", "chosen", "revert"]
