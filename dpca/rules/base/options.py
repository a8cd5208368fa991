"""Checks of the options of rules, schedules and gains. The field of an option states its default and its check."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import fields
from functools import partial
from numbers import Integral, Real
from typing import Any

import numpy as np

Check = dict[str, Callable[[str, Any], None]]
"""Metadata of a dataclass field: a function of its name and a value, which raises ValueError for an invalid value."""


def check_options(options: Any, default: Check | None = None) -> None:
    """Reject an invalid value of a dataclass. ``default`` is the check of fields without a check of their own."""
    for one in fields(options):
        if check := (one.metadata or default or {}).get("check"):
            check(one.name, getattr(options, one.name))


def finite(words: str, *, above: float = -math.inf, least: float = -math.inf, most: float = math.inf) -> Check:
    """Return the check of a finite number; see `check_number`."""
    return {"check": partial(check_number, words=words, above=above, least=least, most=most)}


def count(what: str, *, least: int = 1) -> Check:
    """Return the check of an integer; see `check_count`."""
    return {"check": partial(check_count, what=what, least=least)}


def instance(kinds: Any, words: str) -> Check:
    """Return the check of a value of one of some types. ``words`` describe them in the error."""

    def check(name: str, value: Any) -> None:
        if not isinstance(value, kinds):
            raise ValueError(f"{name} is {value!r}: give {words}")

    return {"check": check}


def or_none(check: Check) -> Check:
    """Return a check that also allows None."""
    return {"check": lambda name, value: None if value is None else check["check"](name, value)}


FLAG = instance(bool | np.bool_, "True or False")


def check_number(
    name: str, value: Any, words: str, *, above: float = -math.inf, least: float = -math.inf, most: float = math.inf
) -> None:
    """Reject an option unless it is a finite number with above < number and least <= number <= most.

    ``words`` describe the allowed values in the error.
    """
    number = isinstance(value, Real) and not isinstance(value, bool | np.bool_)
    if not number or not (above < value and least <= value <= most and abs(value) < math.inf):
        raise ValueError(f"{name} is {value!r}: give {words}")


def check_count(name: str, value: Any, what: str, *, least: int = 1) -> None:
    """Reject an option unless it is an integer of at least ``least``. In the error, ``what`` follows this number."""
    if not isinstance(value, Integral):
        raise ValueError(f"{name} is {value!r}: give an integer, {least} or more {what}")
    check_number(name, value, f"{least} or more {what}", least=least)
