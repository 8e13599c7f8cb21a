"""The stores that a command line names."""

from pathlib import Path
from typing import TYPE_CHECKING

from lmc_grouped.tools.errors import ToolError

if TYPE_CHECKING:
    from lmc_grouped.host.disk.inspection import StoreInfo

_SHORTEST_PREFIX = 4


def read_stores(root: Path, wanted: list[str] | None) -> "list[StoreInfo]":
    """Every store below ``root``, or those of the namespaces ``wanted``.

    Raises:
        ToolError: no such directory, or a namespace that is not there.
    """
    from lmc_grouped.host.disk.inspection import find_stores, inspect_store

    if not root.is_dir():
        state = "is a file" if root.exists() else "does not exist"
        raise ToolError(f"{root} {state}: give the directory of local_disk")
    try:
        paths = find_stores(root)
        if wanted:
            digests = {path.parent.name for path in paths}
            chosen = {_resolve(name, digests, root) for name in wanted}
            paths = [path for path in paths if path.parent.name in chosen]
        return [inspect_store(path) for path in paths]
    except OSError as error:
        raise ToolError(f"{root} cannot be read: {error}") from error


def _resolve(name: str, digests: set[str], root: Path) -> str:
    """The one namespace that begins so."""
    found = sorted(digest for digest in digests if digest.startswith(name))
    if len(name) < _SHORTEST_PREFIX:
        raise ToolError(f"{name!r} is too short: give at least {_SHORTEST_PREFIX} digits")
    if len(found) != 1:
        state = f"is the beginning of {len(found)} namespaces" if found else "is no namespace"
        raise ToolError(f"{name!r} {state} in {root}: `lmc-grouped disk ls {root}` lists them")
    return found[0]
