"""Answers as text: the documentation page and the tables of the command line."""

from collections.abc import Mapping, Sequence

from compat.cases import CASES, Case
from compat.engine_surface import QUESTIONS
from compat.engines import engines
from compat.expectations import Defect, Entry, expectations, extension
from compat.releases import Release, releases, revisions
from patches import PATCHES

HEAD = """\
# LMCache, release by release

What each release does with vLLM's KV-cache groups, asked of the real releases on a CPU with
vLLM 0.32. Generated from `compat/` by `python -m compat docs`; do not edit. `make compat` asks all
releases again and fails when an answer differs from this page, in either direction.

A cell says `right`, or what is wrong: `wrong` (another answer, and no error) or `raises`. Patches
in brackets turn the answer into the right one. The answers themselves are in `compat/expected/`,
the questions in `compat/cases/`. Our own converter (`lmc_grouped/adapters/lmcache_groups.py`) is
asked the same conversions with the types of each release and is right in all of them, and equal to
the release's own where that is right.
"""

NOTES = """\
Read off, not asked: every release takes the tokens of its allocation telemetry from group 0, even
when that is a scratch ring.
"""


def documentation() -> str:
    """The text of ``docs/compat.md``."""
    known = {release: expectations(release.version) for release in releases()}
    parts = [HEAD, _matrix(known), NOTES, _defects(known), _patches(known)]
    parts += [_extensions(), _revisions(), _engines()]
    return "\n".join(parts)


def cell(entry: Entry | None) -> str:
    """One cell of the matrix."""
    if entry is None:
        return "right"
    what = "raises" if entry.raises else "wrong"
    return f"{what} ({', '.join(entry.mended_by)})" if entry.mended_by else what


def _matrix(known: Mapping[Release, Mapping[str, Entry]]) -> str:
    rows = [
        [_title(case), *(cell(entries.get(case.name)) for entries in known.values())]
        for case in CASES
    ]
    dates = ["released in 2026", *(f"{release.released:%m-%d}" for release in known)]
    return _table(["question", *(release.version for release in known)], [dates, *rows])


def _title(case: Case) -> str:
    return f"{case.title} [{', '.join(case.field_cases)}]" if case.field_cases else case.title


def _defects(known: Mapping[Release, Mapping[str, Entry]]) -> str:
    found: dict[Defect, dict[str, None]] = {}
    for release, entries in known.items():
        for entry in entries.values():
            found.setdefault(entry.defect, {})[release.version] = None
    rows = [
        [defect.reason, _range(list(versions)), defect.link] for defect, versions in found.items()
    ]
    head = (
        "## What is wrong\n\n"
        "A release tag as the link: mended in that release, the pull request is not identified.\n\n"
    )
    return head + _table(["defect", "releases", "upstream"], rows)


def _patches(known: Mapping[Release, Mapping[str, Entry]]) -> str:
    rows = []
    for patch in PATCHES:
        needed = [
            release.version
            for release, entries in known.items()
            if any(patch.name in entry.mended_by for entry in entries.values())
        ]
        where = "engine and cache server" if patch.in_cache_server else "engine"
        upstream = patch.upstream or "not reported"
        rows.append([patch.name, patch.summary, _range(needed), where, upstream, patch.retire_when])
    columns = ["patch", "what it does", "mends", "runs in", "upstream", "retire when"]
    return PATCHES_HEAD + _table(columns, rows)


PATCHES_HEAD = """\
## Patches

For LMCache's own multi-process connector; ours does not need them. They come with this package as a
vLLM plugin: when an engine process imports that connector, each patch asks the release whether it
has the defect, changes nothing where it has not, and logs one line either way.
`LMC_GROUPED_PATCHES` is `auto` (default), `none`, or a list such as `P1,P2`; P1 needs P2. The cache
server is no vLLM process: start it with `python -m patches lmcache.cli.main server ...` where a
patch runs in it too. With `auto`, an engine whose GPU the compiled operations below hold no code
for gets `LMCACHE_MP_TRANSFER_MODE=engine_driven`, unless that is set.

"""


EXTENSIONS_HEAD = """\
## Compiled operations

What the wheels' extension holds for GPUs, read from its fat binaries (`lmc-grouped doctor
--wheel`). None has code or PTX for compute capability 7.0: [sm70.md](sm70.md).

"""


def _extensions() -> str:
    rows = []
    for release in releases():
        found = extension(release.version)
        ptx = ", ".join(found.ptx) or "none"
        sass = ", ".join(found.sass)
        rows.append([release.version, f"`{found.module}`", sass, ptx, str(found.cuda_major)])
    columns = ["release", "module", "compiled for", "PTX", "needs CUDA runtime"]
    return EXTENSIONS_HEAD + _table(columns, rows)


def _revisions() -> str:
    rows = [
        [f"`{revision.commit[:8]}`", revision.what, revision.observed, revision.link]
        for revision in revisions()
    ]
    head = (
        "## Revisions that field reports name\n\n"
        "No index carries them: recorded from the reports, not run here.\n\n"
    )
    return head + _table(["commit", "what", "observed", "source"], rows)


def _engines() -> str:
    rows = [
        [words, *(engine.surface[name] for engine in engines())]
        for name, words in QUESTIONS.items()
    ]
    head = (
        "## Engines\n\n"
        "Where each keeps what a connector needs; what we use of it is in "
        "[engines.md](engines.md).\nOur connector reads both lines; under ReVolta it was run on a "
        "CPU, on what that engine's own code\nregisters, but not in its model runner as a whole "
        "and not on a GPU.\n\n"
    )
    return head + _table(["question", *(engine.title for engine in engines())], rows)


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _range(versions: Sequence[str]) -> str:
    """``0.5.0 to 0.5.4`` for neighbours among the pins, else a list."""
    if not versions:
        return "-"
    pinned = [release.version for release in releases()]
    first, last = pinned.index(versions[0]), pinned.index(versions[-1])
    if list(versions) != pinned[first : last + 1]:
        return ", ".join(versions)
    return versions[0] if first == last else f"{versions[0]} to {versions[-1]}"
