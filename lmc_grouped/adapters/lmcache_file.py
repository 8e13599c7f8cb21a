"""LMCache's configuration, read by LMCache itself."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any


class ConfigError(ValueError):
    """A setting that cannot be used: key, value, what is allowed, what to do."""


def override(config: Any, overrides: Mapping[str, Any], prefix: str) -> None:
    """Set ``lmcache.<setting>`` keys the way LMCache's own connector does.

    Raises:
        ConfigError: no such setting, or a value that LMCache cannot read.
    """
    from lmcache.v1.config_base import validate_and_set_config_value

    for key, value in overrides.items():
        name = f"{prefix}{key}"
        if key.startswith("_") or not hasattr(config, key) or callable(getattr(config, key)):
            raise ConfigError(f"{name} is no setting of this LMCache release")
        if not validate_and_set_config_value(config, key, value):
            raise ConfigError(
                f"{name} is {value!r}, which LMCache cannot read; see its documentation"
            )


def load() -> tuple[Any, set[str]]:
    """LMCache's configuration object and the names of the settings the user wrote.

    Raises:
        ConfigError: LMCache is missing, or its configuration cannot be read.
    """
    try:
        from lmcache.v1.config import LMCacheEngineConfig
    except ImportError as error:
        raise ConfigError(
            f"LMCache cannot be imported ({error}); install lmcache 0.5.0 or newer beside vLLM"
        ) from error
    import yaml

    user_set = {
        name.removeprefix("LMCACHE_").lower() for name in os.environ if name.startswith("LMCACHE_")
    }
    path = os.environ.get("LMCACHE_CONFIG_FILE")
    try:
        if path is None:
            config = LMCacheEngineConfig.from_env()
        else:
            config = LMCacheEngineConfig.from_file(path)
            config.update_config_from_env()
            user_set |= _keys_of_file(path)
        config.validate()
    except (
        OSError,
        ValueError,
        TypeError,
        AttributeError,
        AssertionError,
        yaml.YAMLError,
    ) as error:
        source = f"LMCACHE_CONFIG_FILE={path}" if path else "the LMCACHE_* environment"
        raise ConfigError(f"{source} cannot be read: {error}") from error
    return config, user_set


def _keys_of_file(path: str) -> set[str]:
    import yaml

    return set(yaml.safe_load(Path(path).read_text(encoding="utf-8")) or ())
