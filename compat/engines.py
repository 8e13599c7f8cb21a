"""The engines that are pinned, and where each keeps what a connector needs."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache

from compat.releases import FOLDER


@dataclass(frozen=True, slots=True)
class Engine:
    """One version of an engine."""

    name: str
    """What people call it."""
    distribution: str
    version: str
    python_tag: str
    wheels: Mapping[str, str] = field(repr=False, compare=False)
    surface: Mapping[str, str] = field(repr=False, compare=False)
    """What ``compat.engine_surface`` answers on it."""
    pip_options: tuple[str, ...] = ()
    beside: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """Name and version."""
        return f"{self.name} {self.version}"


@cache
def engines() -> tuple[Engine, ...]:
    """All pinned engines."""
    pins = tomllib.loads((FOLDER / "engines.toml").read_text(encoding="utf-8"))
    return tuple(
        Engine(
            **{
                **entry,
                "pip_options": tuple(entry.get("pip_options", ())),
                "beside": tuple(entry.get("beside", ())),
            }
        )
        for entry in pins["engine"]
    )
