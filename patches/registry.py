"""All patches, and which of them are wanted."""

from collections.abc import Sequence

from patches import contiguity, cpu_layout, recurrent_views, ring_alignment, scratch_groups
from patches import zero_spans as spans
from patches.base import Patch, State, UnknownPatch

PATCHES: tuple[Patch, ...] = (
    scratch_groups.PATCH,
    spans.PATCH,
    contiguity.PATCH,
    recurrent_views.PATCH,
    cpu_layout.PATCH,
    ring_alignment.PATCH,
)

AUTO, NONE = "auto", "none"


def chosen(names: str) -> Sequence[Patch]:
    """The patches that ``auto``, ``none`` or a list like ``P1,P2`` asks for.

    Raises:
        UnknownPatch: a name is none of these.
    """
    wanted = names.strip()
    if wanted.lower() == AUTO:
        return PATCHES
    if wanted.lower() == NONE:
        return ()
    by_name = {patch.name: patch for patch in PATCHES}
    asked = [name.strip().upper() for name in wanted.split(",")]
    for name in asked:
        if name not in by_name:
            raise UnknownPatch(
                f"{name!r} in {names!r} is no patch; "
                f"allowed are {AUTO}, {NONE} or a list of {', '.join(by_name)}"
            )
    return [by_name[name] for name in asked]


def apply(names: str = AUTO, *, cache_server: bool = False) -> dict[str, State]:
    """Apply what is asked for; the state of every patch by name.

    ``cache_server`` leaves out what only engine processes have.

    Raises:
        UnknownPatch: a name in the list is no patch.
    """
    wanted = {patch.name for patch in chosen(names)}
    states = {}
    for patch in PATCHES:
        here = patch.in_cache_server or not cache_server
        states[patch.name] = patch.apply() if here and patch.name in wanted else State.OFF
    return states


def revert() -> list[str]:
    """Take out every patch that is in place; their names."""
    return [patch.name for patch in reversed(PATCHES) if patch.revert()]
