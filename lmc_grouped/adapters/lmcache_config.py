"""Configuration: LMCache's own file or environment, and our few extra keys.

``LMCACHE_CONFIG_FILE`` and ``LMCACHE_*`` mean what they mean to LMCache users.
``kv_connector_extra_config`` carries our keys and, like LMCache's own
connector, overrides written ``lmcache.<setting>``.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from lmc_grouped.adapters.lmcache_file import ConfigError, load, override
from lmc_grouped.core.groups import GroupTable
from lmc_grouped.core.pools import Partition

CHUNK_SIZE_VARIABLE = "LMCACHE_CHUNK_SIZE"
_OVERRIDE_PREFIX = "lmcache."
_REFERENCE_KEY = "mamba_state_slots_reference_tokens"
RETENTION_KEY = "lmc_grouped.retention"
TRANSFER_KEY = "lmc_grouped.transfer"
_SCRATCH_KEY = "scratch_policy"
_SCRATCH_POLICIES = ("skip", "reject")
_DENSE = "none"
_UNSERVED_SETTINGS = (
    "remote_url",
    "gds_path",
    "maru_path",
    "enable_p2p",
    "enable_pd",
    "enable_blending",
    "enable_controller",
)
"""Settings that ask LMCache for something this connector does not do yet."""


@dataclass(frozen=True, slots=True)
class DiskSettings:
    """Where pages are kept across restarts, and how many."""

    root: Path
    cap_bytes: int
    """Of the pages of one worker."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What the connector needs to know."""

    budget_bytes: int
    """Host bytes for the pools of one worker."""
    chunk_tokens: int | None
    """Store granularity when the user set ``chunk_size``; else the engine's alignment."""
    partition: Partition = Partition.AUTO
    """How the pools are cut."""
    reference_tokens: int | None = None
    """Length of the contexts to size for; else the model's maximum."""
    has_retention: bool = False
    """Whether ``retention_tokens`` replaces the engine's own rule."""
    retention_tokens: int | None = None
    rejects_scratch: bool = False
    """Whether a model with scratch groups is refused rather than served without them."""
    disk: DiskSettings | None = None
    """The file tier; ``None`` where ``local_disk`` is not set."""
    transfer: Any = "auto"
    """How pages are copied, in the user's word; ``transfer/ladder.py`` knows the allowed ones."""


def read_settings(extra_config: Mapping[str, Any]) -> Settings:
    """Read LMCache's configuration and the connector's extra keys.

    Raises:
        ConfigError: LMCache is missing, its configuration cannot be read, a
            key is unknown or a value is out of range.
    """
    overrides = _check_extra_keys(extra_config)
    reference = extra_config.get(_REFERENCE_KEY)
    retention = extra_config.get(RETENTION_KEY)
    config, user_set = load()
    override(config, overrides, _OVERRIDE_PREFIX)
    _refuse_unserved(config)
    chunk_set = "chunk_size" in user_set or "chunk_size" in overrides
    return Settings(
        budget_bytes=_budget_bytes(config),
        chunk_tokens=_chunk_tokens(config.chunk_size) if chunk_set else None,
        partition=_partition(extra_config.get("cpu_group_partition", Partition.AUTO)),
        reference_tokens=None if reference is None else _reference_tokens(reference),
        has_retention=RETENTION_KEY in extra_config,
        retention_tokens=None if retention is None else _retention_tokens(retention),
        rejects_scratch=_rejects_scratch(extra_config.get(_SCRATCH_KEY, "skip")),
        disk=_disk_settings(config),
        transfer=extra_config.get(TRANSFER_KEY, "auto"),
    )


def with_chunks(table: GroupTable, chunk_tokens: int | None, *, is_sparse: bool) -> GroupTable:
    """The table with hit boundaries as far apart as the user's ``chunk_size`` asks for.

    Args:
        table: the groups; its alignment is vLLM's own.
        chunk_tokens: ``chunk_size`` when the user set it.
        is_sparse: recurrent states are kept at proven points only.

    Raises:
        ConfigError: the chunk does not fit the groups; names the next values that do.
    """
    alignment = table.alignment_tokens
    if chunk_tokens is None:
        return table
    if chunk_tokens % alignment:
        blocking = next((g for g in table.groups if chunk_tokens % g.span_tokens), None)
        what = (
            f"group {blocking.group_id} has blocks of {blocking.span_tokens} tokens"
            if blocking
            else f"the groups align at {alignment} tokens, scratch rings included"
        )
        raise ConfigError(
            f"chunk_size is {chunk_tokens}, but {what}; use "
            f"{_valid_chunks(table, chunk_tokens, is_sparse=is_sparse)}, or leave chunk_size out"
        )
    if chunk_tokens > alignment and table.has_recurrent and is_sparse:
        raise ConfigError(
            f"chunk_size is {chunk_tokens}, {chunk_tokens // alignment} times the alignment of "
            f"{alignment}: recurrent states are kept at proven points only and would fall between "
            f"chunks; use {alignment}, or leave chunk_size out"
        )
    return msgspec.structs.replace(table, alignment_tokens=chunk_tokens)


def _valid_chunks(table: GroupTable, chunk_tokens: int, *, is_sparse: bool) -> str:
    """The next chunk sizes that fit, as advice."""
    alignment = table.alignment_tokens
    lower = max(chunk_tokens // alignment, 1) * alignment
    if table.has_recurrent and is_sparse:
        return f"{alignment} (multiples like {lower + alignment} need dense retention)"
    return f"{lower} or {lower + alignment}"


def _check_extra_keys(extra_config: Mapping[str, Any]) -> dict[str, Any]:
    ours = ("cpu_group_partition", _REFERENCE_KEY, RETENTION_KEY, _SCRATCH_KEY, TRANSFER_KEY)
    overrides: dict[str, Any] = {}
    for key, value in extra_config.items():
        if key.startswith(_OVERRIDE_PREFIX):
            overrides[key.removeprefix(_OVERRIDE_PREFIX)] = value
        elif key not in ours:
            raise ConfigError(
                f"kv_connector_extra_config has the unknown key {key!r}; allowed are "
                f"{', '.join(ours)} and {_OVERRIDE_PREFIX}<setting of LMCache>"
            )
    return overrides


def _partition(value: Any) -> Partition:
    try:
        return Partition(value)
    except ValueError:
        raise ConfigError(
            f"cpu_group_partition is {value!r}; allowed are {', '.join(Partition)}"
        ) from None


def _reference_tokens(value: Any) -> int:
    if type(value) is not int or value <= 0:
        raise ConfigError(
            f"{_REFERENCE_KEY} is {value!r}; it must be a positive number of tokens, the length "
            "of the contexts that the pools are sized for"
        )
    return value


def _rejects_scratch(value: Any) -> bool:
    if value not in _SCRATCH_POLICIES:
        raise ConfigError(
            f"{_SCRATCH_KEY} is {value!r}; allowed are {', '.join(_SCRATCH_POLICIES)}"
        )
    return bool(value == "reject")


def check_scratch(table: GroupTable, settings: Settings) -> None:
    """Refuse groups that are left out, where the user asked for that.

    Raises:
        ConfigError: names the groups.
    """
    if settings.rejects_scratch and table.excluded:
        left_out = ", ".join(f"{group.group_id} ({group.reason})" for group in table.excluded)
        raise ConfigError(
            f"{_SCRATCH_KEY} is 'reject', and the model has groups that are not stored: "
            f"{left_out}; use 'skip' to serve it without them: the engine rebuilds them from tokens"
        )


def _retention_tokens(value: Any) -> int | None:
    if value == _DENSE:
        return None
    if type(value) is not int or value < 0:
        raise ConfigError(
            f"{RETENTION_KEY} is {value!r}; allowed are {_DENSE!r} (keep what serves every "
            "boundary), 0 (only what serves resume points) or a number of tokens"
        )
    return value


def _refuse_unserved(config: Any) -> None:
    for name in _UNSERVED_SETTINGS:
        value = getattr(config, name, None)
        if value:
            raise ConfigError(
                f"LMCache setting {name} is {value!r}, which lmc_grouped does not serve yet; "
                "remove it (host memory, local_cpu, is the tier that works)"
            )
    if not config.local_cpu:
        raise ConfigError(
            "LMCache setting local_cpu is false: pages reach every other tier through host "
            "memory; set local_cpu: true"
        )


def _budget_bytes(config: Any) -> int:
    return _size_bytes("max_local_cpu_size", config.max_local_cpu_size)


def _size_bytes(name: str, gigabytes: Any) -> int:
    is_number = isinstance(gigabytes, (int, float)) and not isinstance(gigabytes, bool)
    size_bytes = int(gigabytes * 2**30) if is_number and math.isfinite(gigabytes) else 0
    if size_bytes <= 0:
        raise ConfigError(f"{name} is {gigabytes!r} GB per worker; it must be a number above 0")
    return size_bytes


def _disk_settings(config: Any) -> DiskSettings | None:
    """``local_disk`` as LMCache writes it: a path, or ``file://`` and a path."""
    value = config.local_disk
    if not value:
        if config.max_local_disk_size:
            raise ConfigError(
                f"max_local_disk_size is {config.max_local_disk_size!r} but local_disk is not "
                "set; set local_disk to a directory, or leave max_local_disk_size out"
            )
        return None
    path = str(value).removeprefix("file://")
    if "," in path:
        raise ConfigError(
            f"local_disk is {value!r}; lmc_grouped takes one directory, on one file system"
        )
    cap_bytes = _size_bytes("max_local_disk_size", config.max_local_disk_size)
    return DiskSettings(Path(path).absolute(), cap_bytes)


def _chunk_tokens(chunk_size: Any) -> int:
    if type(chunk_size) is not int or chunk_size <= 0:
        raise ConfigError(f"chunk_size is {chunk_size!r}; it must be a positive number of tokens")
    return chunk_size
