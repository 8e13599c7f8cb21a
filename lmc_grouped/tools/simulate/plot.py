"""Hit rate against budget, drawn by matplotlib."""

from pathlib import Path
from typing import TYPE_CHECKING

from lmc_grouped.tools.errors import ToolError
from lmc_grouped.tools.simulate.answer import Answer
from lmc_grouped.tools.simulate.pools import Scheme

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMATS = (".png", ".svg")
_LABELS = {
    Scheme.SHARED: "shared rows",
    Scheme.DENSE: "a pool per group, dense",
    Scheme.SIZED: "a pool per group, sized by retention",
    Scheme.ELASTIC: "elastic pools",
}
_MARKERS = {Scheme.SHARED: "s", Scheme.DENSE: "o", Scheme.SIZED: "D", Scheme.ELASTIC: "^"}


def check_plot(path: Path) -> None:
    """Refuse early what could not be drawn after a long run.

    Raises ToolError: an unknown format, a missing folder, or no matplotlib.
    """
    if path.suffix.lower() not in FORMATS:
        raise ToolError(f"--plot {path}: the name must end in one of {', '.join(FORMATS)}")
    if not path.parent.is_dir():
        raise ToolError(f"--plot {path}: there is no folder {path.parent}")
    try:
        import matplotlib as _  # noqa: F401
    except ImportError as error:
        raise ToolError(
            f"--plot needs matplotlib ({error}): install it with "
            "`pip install matplotlib`, or this project with its extra `plot`"
        ) from error


def write_plot(path: Path, found: Answer) -> None:
    """Draw one line per partition; the same answer gives the same file.

    Raises ToolError when the file cannot be written.
    """
    import matplotlib as mpl

    figure = _figure(found)
    # Otherwise an SVG carries the time and random ids.
    metadata = {"Date": None} if path.suffix.lower() == ".svg" else None
    try:
        with mpl.rc_context({"svg.hashsalt": "lmc-grouped", "svg.fonttype": "none"}):
            figure.savefig(path, dpi=120, metadata=metadata)
    except OSError as error:
        raise ToolError(f"cannot write {path}: {error.strerror or error}") from error


def _figure(found: Answer) -> "Figure":
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.2), layout="constrained")
    axes = figure.subplots()
    for scheme in dict.fromkeys(run.partition for run in found.runs):
        runs = [run for run in found.runs if run.partition is scheme]
        axes.plot(
            [run.budget_bytes_per_worker * found.workers / 2**30 for run in runs],
            [100 * run.hit_rate for run in runs],
            marker=_MARKERS[scheme],
            label=_LABELS[scheme],
        )
    axes.set_xlabel(f"host budget, GiB over {found.workers} worker(s)")
    axes.set_ylabel("hit rate, % of prompt tokens")
    axes.set_title(f"{found.layout or 'layout'}, trace {found.trace}")
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend()
    return figure
