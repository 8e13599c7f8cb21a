"""The layers: core <- host, transfer, adapters <- connector, tools <- cli."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import lmc_grouped

PACKAGE = "lmc_grouped"
PACKAGE_DIR = Path(lmc_grouped.__file__).parent
HEAVY = ("torch", "vllm", "lmcache")


@dataclass(frozen=True, slots=True)
class Layer:
    """What the modules of one folder may import, the standard library apart."""

    inner: frozenset[str]
    """Folders of this package, besides its own."""
    outer: frozenset[str]
    """Other packages."""
    lazy_inner: frozenset[str] = frozenset()
    """Folders besides `inner`, inside functions or under TYPE_CHECKING only."""
    any_lazy_outer: bool = False
    """Every other package inside functions or under TYPE_CHECKING."""


def layer(inner: str = "", outer: str = "", lazy_inner: str = "", *, any_lazy_outer: bool = False):
    words = [frozenset(text.split()) for text in (inner, outer, lazy_inner)]
    return Layer(*words, any_lazy_outer=any_lazy_outer)


# "" is the package's own __init__, which anything may import for __version__.
LAYERS = {
    "": layer(),
    "core": layer("", "msgspec"),
    "host": layer("core", "msgspec numpy zlib_ng"),
    "transfer": layer("core", "msgspec numpy torch"),
    "adapters": layer("core host", "msgspec numpy vllm torch lmcache yaml"),
    "connector": layer(
        "core host transfer adapters", "msgspec numpy torch vllm lmcache patches compat"
    ),
    "tools": layer(
        "core", "msgspec numpy", "host transfer adapters connector", any_lazy_outer=True
    ),
    "cli": layer("tools"),
}


@dataclass(frozen=True, slots=True)
class Import:
    target: str
    """Dotted name; for `from a import b` it is `a.b`."""
    lazy: bool
    """Inside a function or under TYPE_CHECKING: not run when the module loads."""
    line: int


class ImportFinder(ast.NodeVisitor):
    """Collects imports, `import_module("...")` and `__import__("...")`."""

    def __init__(self, module: str, *, is_package: bool) -> None:
        self.found: list[Import] = []
        self._parents = module.split(".") if is_package else module.split(".")[:-1]
        self._lazy = False

    def _add(self, target: str, node: ast.AST) -> None:
        self.found.append(Import(target, self._lazy, node.lineno))

    def _visit_lazily(self, nodes: list[ast.AST]) -> None:
        before, self._lazy = self._lazy, True
        for node in nodes:
            self.visit(node)
        self._lazy = before

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        for outside in (*node.decorator_list, node.args):
            self.visit(outside)
        self._visit_lazily(node.body)

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_Lambda(self, node: ast.Lambda) -> None:
        self.visit(node.args)
        self._visit_lazily([node.body])

    def visit_If(self, node: ast.If) -> None:
        if ast.unparse(node.test) not in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
            self.generic_visit(node)
            return
        self._visit_lazily(node.body)
        for other in node.orelse:
            self.visit(other)

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            self._add(alias.name, node)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        parents = self._parents[: len(self._parents) + 1 - node.level] if node.level else []
        base = ".".join([*parents, *([node.module] if node.module else [])])
        for alias in node.names:
            self._add(f"{base}.{alias.name}", node)

    def visit_Call(self, node: ast.Call) -> None:
        name = ast.unparse(node.func).rpartition(".")[2]
        match node.args:
            case [ast.Constant(value=str(target)), *_] if name in ("import_module", "__import__"):
                self._add(target, node)
        self.generic_visit(node)


def layer_of(dotted: str) -> str:
    """The folder of a name in this package; "" for the package itself."""
    parts = dotted.split(".")
    in_folder = len(parts) > 1 and (parts[1] in LAYERS or (PACKAGE_DIR / parts[1]).exists())
    in_file = len(parts) > 1 and (PACKAGE_DIR / f"{parts[1]}.py").exists()
    return parts[1] if in_folder or in_file else ""


def violation(found: Import, own: str) -> str | None:
    """Why `found` may not stand in a module of folder `own`; None when it may."""
    rule = LAYERS[own]
    when = "" if found.lazy else " when the module is loaded"
    package = found.target.split(".")[0]
    if package == PACKAGE:
        target = layer_of(found.target)
        allowed = {"", own} | rule.inner | (rule.lazy_inner if found.lazy else frozenset())
        return None if target in allowed else f"{own} imports {PACKAGE}.{target}{when}"
    if package in sys.stdlib_module_names or package in rule.outer:
        return None
    if found.lazy and rule.any_lazy_outer:
        return None
    return f"{own or PACKAGE} imports {package}{when}"


def violations(source: str, module: str, *, is_package: bool = False) -> list[str]:
    own = layer_of(module)
    if own not in LAYERS:
        return [f"{module}: '{own}' has no layer; give it one in LAYERS"]
    finder = ImportFinder(module, is_package=is_package)
    finder.visit(ast.parse(source))
    found = ((item, violation(item, own)) for item in finder.found)
    return [f"{module}:{item.line}: {why}" for item, why in found if why]


def modules() -> Iterator[tuple[str, Path]]:
    for path in sorted(PACKAGE_DIR.rglob("*.py")):
        parts = path.relative_to(PACKAGE_DIR.parent).with_suffix("").parts
        yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


def test_every_import_points_down_the_layers() -> None:
    wrong = [
        why
        for module, path in modules()
        for why in violations(path.read_text(), module, is_package=path.name == "__init__.py")
    ]
    assert wrong == []


def test_the_checker_sees_every_folder_of_the_package() -> None:
    seen = {layer_of(module) for module, _ in modules()}
    assert {"", "core", "host", "transfer", "adapters", "tools"} <= seen


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("lmc_grouped.core.index", "import torch"),
        ("lmc_grouped.core.index", "import numpy as np"),
        ("lmc_grouped.core.index", "def f():\n    from torch import nn"),
        ("lmc_grouped.core.index", "from lmc_grouped.host import region"),
        ("lmc_grouped.core.index", "from lmc_grouped import host"),
        ("lmc_grouped.core.index", "from ..host import region"),
        ("lmc_grouped.core.index", "from .. import connector"),
        ("lmc_grouped.core.index", "import importlib\nimportlib.import_module('vllm.config')"),
        ("lmc_grouped.core.index", "if TYPE_CHECKING:\n    import lmcache"),
        ("lmc_grouped.core.index", "try:\n    import torch\nexcept ImportError:\n    pass"),
        ("lmc_grouped.host.disk", "from lmc_grouped.adapters import engine"),
        ("lmc_grouped.transfer.ladder", "import lmc_grouped.host.region"),
        ("lmc_grouped.adapters.engine", "from lmc_grouped.connector import scheduler"),
        ("lmc_grouped.connector.worker", "def f():\n    import lmc_grouped.tools.plan"),
        ("lmc_grouped.tools.plan", "import httpx"),
        ("lmc_grouped.tools.plan", "class A:\n    from lmc_grouped import connector"),
        ("lmc_grouped.tools.plan", "def f():\n    from lmc_grouped import cli"),
        ("lmc_grouped.cli", "import torch"),
        ("lmc_grouped", "from lmc_grouped.core import groups"),
        ("lmc_grouped.fresh", "import os"),
    ],
)
def test_the_checker_flags_an_offending_source(
    module: str, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if module == "lmc_grouped.fresh":
        monkeypatch.setattr(f"{__name__}.layer_of", lambda _: "fresh")
    assert len(violations(source, module)) == 1


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("lmc_grouped.core.index", "import json\nimport msgspec\nfrom .groups import Kind"),
        ("lmc_grouped.core.index", "from lmc_grouped import __version__"),
        ("lmc_grouped.connector.worker", "import torch\nfrom lmc_grouped.adapters import engine"),
        ("lmc_grouped.tools.plan", "def f():\n    import httpx\n    import lmc_grouped.connector"),
        ("lmc_grouped.cli", "from lmc_grouped.tools import plan"),
    ],
)
def test_the_checker_passes_an_allowed_source(module: str, source: str) -> None:
    assert violations(source, module) == []


IMPORT_ALL = """
import importlib, pkgutil, sys
root = importlib.import_module(sys.argv[1])
names = [m.name for m in pkgutil.walk_packages(getattr(root, "__path__", []), root.__name__ + ".")]
for name in names:
    importlib.import_module(name)
print(len(names), *(heavy for heavy in sys.argv[2:] if heavy in sys.modules))
"""


def loaded_by(module: str) -> tuple[int, list[str]]:
    """Import `module` and all below it in a process of its own.

    Returns how many modules lie below it, and which of `HEAVY` were loaded.
    """
    command = [sys.executable, "-c", IMPORT_ALL, module, *HEAVY]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    count, *heavy = result.stdout.split()
    return int(count), heavy


@pytest.mark.parametrize("module", ["core", "host"])
def test_importing_a_low_layer_loads_no_engine(module: str) -> None:
    below = [path for path in (PACKAGE_DIR / module).rglob("*.py") if path.name != "__init__.py"]
    count, heavy = loaded_by(f"{PACKAGE}.{module}")
    assert heavy == []
    assert count >= len(below)


def test_importing_the_command_line_loads_no_engine() -> None:
    assert loaded_by(f"{PACKAGE}.cli")[1] == []


def test_the_import_probe_reports_a_heavy_package() -> None:
    assert loaded_by("torch.version")[1] == ["torch"]
