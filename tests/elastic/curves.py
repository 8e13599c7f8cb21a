"""A plot: what three ways to cut a budget hold while short contexts become long and short again."""

from pathlib import Path

from lmc_grouped.tools.simulate.contexts import asked, uniform_lengths
from tests.elastic.cases import BUDGET_FACTORS, SCHEMES, setting
from tests.elastic.measure import Check, Meter

SHOWN = ("flash_next", "glm53_flash_like")
PART_BUDGETS = 2.0
"""Written of each of the three parts."""
_LABELS = {"shared": "shared rows", "sized": "fixed pools", "elastic": "elastic"}

Curves = dict[str, dict[str, list[Check]]]
"""layout -> scheme -> what was held."""


def curves() -> Curves:
    """Pools sized for the long contexts, retention 0."""
    found: Curves = {}
    for name in SHOWN:
        some = setting(name, BUDGET_FACTORS[name], periodic=False)
        long = some.layout.max_model_tokens - 1
        for scheme in SCHEMES:
            meter = Meter(some, scheme, long)
            for part, tokens in (("a", long // 16), ("b", long), ("c", long // 16)):
                meter.ask(asked(uniform_lengths(tokens), part), PART_BUDGETS)
            found.setdefault(name, {})[str(scheme)] = meter.checks
    return found


def write_plot(path: Path, found: Curves) -> None:
    """One panel for each layout; the same curves give the same file."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 3.6), layout="constrained")
    panels = figure.subplots(1, len(found), sharey=True)
    for axes, (name, by_scheme) in zip(panels, found.items(), strict=True):
        for scheme, checks in by_scheme.items():
            axes.plot(
                [check.written_budgets for check in checks],
                [100 * check.share for check in checks],
                label=_LABELS[scheme],
            )
        for switch in (PART_BUDGETS, 2 * PART_BUDGETS):
            axes.axvline(switch, color="grey", linestyle=":")
        axes.set_title(name)
        axes.set_xlabel("written, in budgets: short, long, short contexts")
        axes.set_ylim(0, 105)
        axes.grid(alpha=0.3)
    panels[0].set_ylabel("held, % of the ceiling's tokens")
    panels[0].legend(loc="lower left")
    with mpl.rc_context({"svg.hashsalt": "lmc-grouped", "svg.fonttype": "none"}):
        figure.savefig(path, metadata={"Date": None})
