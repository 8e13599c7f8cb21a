"""Readers of command-line values that several commands share."""

import argparse
from collections.abc import Callable
from typing import TypeVar

DENSE = "none"
Value = TypeVar("Value")


def named(parse: Callable[[str], Value]) -> Callable[[str], Value]:
    """Let argparse print the reason beside the argument's name."""

    def parse_argument(text: str) -> Value:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return parse_argument


def whole_number(text: str) -> int:
    """An integer; ValueError for anything else."""
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"{text[:64]!r} is not a whole number") from None


def positive(text: str) -> int:
    """An integer above 0; ValueError for anything else."""
    number = whole_number(text)
    if number <= 0:
        raise ValueError(f"{number} is not positive")
    return number


def retention(text: str) -> int | None:
    """A retention interval in tokens, None for dense; ValueError for anything else."""
    if text == DENSE:
        return None
    number = whole_number(text)
    if number < 0:
        raise ValueError(f"{number} is negative: give {DENSE}, 0 or a number of tokens")
    return number
