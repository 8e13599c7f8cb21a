"""Log lines of our own, whatever an earlier test did to the logger."""

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture
def our_log(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    """``caplog`` that sees our lines even after they were sent where vLLM's go."""
    logger = logging.getLogger("lmc_grouped")
    before = logger.handlers, logger.level, logger.propagate
    logger.handlers, logger.propagate = [caplog.handler], False
    logger.setLevel(logging.INFO)
    yield caplog
    logger.handlers, logger.level, logger.propagate = before


@pytest.fixture(autouse=True)
def no_lmcache_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """The budget comes from the test alone."""
    for name in ("LMCACHE_CONFIG_FILE", "LMCACHE_CHUNK_SIZE", "LMCACHE_MAX_LOCAL_CPU_SIZE"):
        monkeypatch.delenv(name, raising=False)
