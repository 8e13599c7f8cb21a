"""What a patch is, and how it is put in place and taken out again.

What is in place is recorded on the replacing functions themselves, so that
applying twice changes nothing and nobody keeps a list that can go stale.
"""

import functools
import inspect
import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from importlib import import_module
from types import ModuleType
from typing import Any

LOGGER = "lmc_grouped.patches"
"""Below the package's own logger, whose lines go where the engine's go."""
PACKAGE = "lmcache"
_PATCH, _ORIGINAL, _WRAP = "_lmc_grouped_patch", "_lmc_grouped_original", "_lmc_grouped_wrap"

logger = logging.getLogger(LOGGER)

Function = Callable[..., Any]


class State(StrEnum):
    """What became of a patch."""

    APPLIED = "applied"
    NOT_NEEDED = "not needed"
    """The release gives the right answer by itself."""
    NOT_HERE = "not here"
    """The release does not have what the patch is about, or it cannot be imported here."""
    UNCLEAR = "unclear"
    """The question to the release failed in a way the patch does not know."""
    OFF = "off"


class UnknownPatch(ValueError):
    """A name that is no patch."""


@dataclass(frozen=True, slots=True)
class Site:
    """One function or method to replace."""

    modules: tuple[str, ...]
    """Where releases define it; the first that has it counts."""
    path: str
    """``function`` or ``Class.method``."""
    wrap: Callable[[Function], Function] = field(repr=False)
    """Makes the replacement from the original."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Patch:
    """One defect of LMCache, mended while the process runs."""

    name: str
    summary: str
    """What it changes, in a few words."""
    upstream: str
    """Where upstream mends or reports it; empty when nobody has."""
    retire_when: str
    has_defect: Callable[[], bool] = field(repr=False)
    """Asks the imported release; ImportError where it does not have what the patch is about."""
    sites: tuple[Site, ...] = field(repr=False)
    in_cache_server: bool = False
    """Whether the cache server, which has no vLLM, needs it as well."""

    def apply(self) -> State:
        """Put the patch in place where the release needs it; says so in one log line."""
        state = self._apply()
        log = logger.warning if state is State.UNCLEAR else logger.info
        log(
            "lmc_grouped patch %s (%s): %s; upstream: %s; to be retired when %s",
            self.name,
            self.summary,
            state,
            self.upstream or "not reported",
            self.retire_when,
        )
        return state

    def _apply(self) -> State:
        try:
            places = [_Place.of(site) for site in self.sites]
        except (ImportError, AttributeError):
            return State.NOT_HERE
        if all(_has(place.current, self.name) for place in places):
            return State.APPLIED
        try:
            with _quiet():
                has_defect = self.has_defect()
            if not has_defect:
                return State.NOT_NEEDED
        except ImportError:
            return State.NOT_HERE
        except Exception:
            logger.exception("lmc_grouped patch %s cannot tell whether it is needed", self.name)
            return State.UNCLEAR
        for place, site in zip(places, self.sites, strict=True):
            place.put(_replacement(place.current, self.name, site.wrap))
        return State.APPLIED

    def revert(self) -> bool:
        """Take the patch out; whether it was in place."""
        was_there = False
        for site in self.sites:
            try:
                place = _Place.of(site)
            except (ImportError, AttributeError):
                continue
            if _has(place.current, self.name):
                place.put(_without(place.current, self.name))
                was_there = True
        return was_there


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a function lives in the imported release."""

    owner: Any
    """A module or a class."""
    name: str
    is_static: bool
    current: Function

    @classmethod
    def of(cls, site: Site) -> "_Place":
        """Find the site; ImportError or AttributeError when the release has none."""
        missing: Exception = AttributeError(f"{site.path} is in none of {site.modules}")
        for name in site.modules:
            try:
                owner: Any = import_module(name)
                *parents, attribute = site.path.split(".")
                for parent in parents:
                    owner = getattr(owner, parent)
                found = inspect.getattr_static(owner, attribute)
            except (ImportError, AttributeError) as error:
                missing = error
                continue
            is_static = isinstance(found, staticmethod)
            return cls(owner, attribute, is_static, found.__func__ if is_static else found)
        raise missing

    def put(self, function: Function) -> None:
        """Replace the function where it is defined and wherever its name was imported."""
        if not isinstance(self.owner, ModuleType):
            setattr(self.owner, self.name, staticmethod(function) if self.is_static else function)
            return
        for module, name in list(_bound_names(self.current)):
            setattr(module, name, function)


@contextmanager
def _quiet() -> Iterator[None]:
    """A question to a release is no event of the engine's: nothing of it is logged."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)


def _bound_names(function: Function) -> Iterator[tuple[ModuleType, str]]:
    for module_name, module in list(sys.modules.items()):
        if module_name.partition(".")[0] == PACKAGE and isinstance(module, ModuleType):
            for name, value in list(vars(module).items()):
                if value is function:
                    yield module, name


def _replacement(
    original: Function, patch_name: str, wrap: Callable[[Function], Function]
) -> Function:
    replacement = functools.wraps(original)(wrap(original))
    for name, value in ((_PATCH, patch_name), (_ORIGINAL, original), (_WRAP, wrap)):
        setattr(replacement, name, value)
    return replacement


def _has(function: Function, patch_name: str) -> bool:
    """Whether the patch is in place, maybe under others."""
    while hasattr(function, _PATCH):
        if getattr(function, _PATCH) == patch_name:
            return True
        function = getattr(function, _ORIGINAL)
    return False


def _without(function: Function, patch_name: str) -> Function:
    """The function without one patch; those above it are put on again."""
    below: Function = getattr(function, _ORIGINAL)
    if getattr(function, _PATCH) == patch_name:
        return below
    rest = _without(below, patch_name)
    return _replacement(rest, getattr(function, _PATCH), getattr(function, _WRAP))
