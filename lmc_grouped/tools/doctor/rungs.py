"""How pages would be copied between the engine's cache and host memory."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from lmc_grouped.tools.doctor.findings import Finding, note
from lmc_grouped.tools.doctor.questions import Reply, TorchFacts

if TYPE_CHECKING:
    from lmc_grouped.host.devices import Driver
    from lmc_grouped.tools.plan.layout import Layout
    from lmc_grouped.transfer.ladder import DeviceFacts


def check_copies(
    driver: "Driver | str", torch: Reply | None, layout: "Layout | None"
) -> list[Finding]:
    """Which way of copying groups would take, and why.

    Args:
        driver: the driver, or why there is none.
        torch: what torch says; without CUDA the engine's cache is in host memory.
        layout: groups to be told one by one; else short and long runs are.
    """
    from lmc_grouped.transfer.ladder import choose

    facts = _facts(driver, torch)
    choices = [(subject, choose(run_bytes, facts)) for subject, run_bytes in _runs(layout)]
    if len({(choice.rung, choice.reason) for _, choice in choices}) == 1:
        choices = [("all groups", choices[0][1])]
    return [note(subject, f"{choice.rung}: {choice.reason}") for subject, choice in choices]


def _facts(driver: "Driver | str", torch: Reply | None) -> "DeviceFacts":
    """Of the first device: vLLM's ranks are alike."""
    from lmc_grouped.transfer.ladder import DeviceFacts

    has_cuda = isinstance(torch, TorchFacts) and torch.cuda is not None
    if isinstance(driver, str) or not driver.devices or not has_cuda:
        return DeviceFacts("cuda" if has_cuda else "cpu")
    return DeviceFacts("cuda", driver.devices[0].capability, driver.version)


def _runs(layout: "Layout | None") -> Iterator[tuple[str, int]]:
    """Subject and bytes of one run.

    A layer's part of a page is one run in all that vLLM lays out, but where it keeps keys
    and values apart.
    """
    from lmc_grouped.transfer.ladder import LONG_RUN_BYTES

    if layout is None:
        size = f"{LONG_RUN_BYTES // 1024} KiB"
        yield f"runs below {size}", LONG_RUN_BYTES - 1
        yield f"runs from {size}", LONG_RUN_BYTES
        return
    for group in layout.table.groups:
        yield (
            f"group {group.group_id}, {group.kind}",
            group.page_bytes // max(len(group.layers), 1),
        )
