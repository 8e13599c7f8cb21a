"""Run something once a module has been imported, without importing it now."""

import importlib.util
import sys
from collections.abc import Callable
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


def when_imported(name: str, callback: Callable[[], object]) -> None:
    """Call back once: now if the module is there already, else right after its import.

    A second request for the same module replaces the first one.
    """
    if name in sys.modules:
        callback()
        return
    forget(name)
    sys.meta_path.insert(0, _Watcher(name, callback))


def forget(name: str) -> None:
    """Drop the request for that module, if there is one."""
    sys.meta_path[:] = [
        finder
        for finder in sys.meta_path
        if not (isinstance(finder, _Watcher) and finder.name == name)
    ]


class _Watcher(MetaPathFinder):
    def __init__(self, name: str, callback: Callable[[], object]) -> None:
        self.name = name
        self._callback = callback

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> ModuleSpec | None:
        if fullname != self.name:
            return None
        forget(self.name)  # first: the others must find it
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader = _ThenCall(spec.loader, self._callback)
        return spec


class _ThenCall(Loader):
    """The module's own loader, and the call afterwards."""

    def __init__(self, loader: Loader, callback: Callable[[], object]) -> None:
        self._loader = loader
        self._callback = callback

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._callback()
