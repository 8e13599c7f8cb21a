"""The log of the patches, wherever other tests have sent it."""

import logging
from collections.abc import Iterator

import pytest

from patches.base import LOGGER


@pytest.fixture
def lines() -> Iterator[list[str]]:
    """What the patches logged; the engine's handlers keep it from the root logger."""
    logger = logging.getLogger(LOGGER)
    written: list[str] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            written.append(record.getMessage())

    handler, level = Keep(), logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield written
    logger.removeHandler(handler)
    logger.setLevel(level)
