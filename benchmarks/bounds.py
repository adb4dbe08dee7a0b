"""Bounds of what a command line gives: what no run can use is refused by its argument's name."""

from __future__ import annotations

import argparse
import math


def count(text: str) -> int:
    """How many of something: 1 or more.

    Raises:
        argparse.ArgumentTypeError: it is less.
        ValueError: it is no whole number.
    """
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be 1 or more")
    return number


def seconds(text: str) -> float:
    """A time that something takes: 1 s or more.

    Raises:
        argparse.ArgumentTypeError: it is less, or has no end.
        ValueError: it is no number.
    """
    number = float(text)
    if not 1 <= number < math.inf:
        raise argparse.ArgumentTypeError("must be 1 s or more, and finite")
    return number
