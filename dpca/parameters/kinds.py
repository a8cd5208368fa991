"""Kinds of parameters: which values are valid, what errors and the documentation call them, and how text is read."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from numbers import Integral, Rational, Real
from typing import Any


@dataclass(frozen=True)
class Kind:
    """A type with a range.

    Parameters
    ----------
    words : str
        The valid values, in errors.
    shown : str
        The type, in the documentation.
    accepts : callable
        Whether a value is valid.
    read : callable
        Reads a value from a command line. Raises `ValueError`.
    names : tuple of str
        The names among the valid values.
    """

    words: str
    shown: str
    accepts: Callable[[Any], bool]
    read: Callable[[str], Any] = str
    names: tuple[str, ...] = ()

    def __or__(self, other: Kind) -> Kind:
        def read(text: str) -> Any:
            try:
                return self.parse(text)
            except ValueError:
                return other.parse(text)

        return Kind(
            f"{self.words}, or {other.words}",
            f"{self.shown} or {other.shown}",
            lambda value: self.accepts(value) or other.accepts(value),
            read,
            self.names + other.names,
        )

    def parse(self, text: str) -> Any:
        """Return the value in a text.

        Raises
        ------
        ValueError
            If the value is invalid.
        """
        if not self.accepts(value := self.read(text)):
            raise ValueError(f"'{text}' is not {self.words}")
        return value


def is_integer(value: Any) -> bool:
    """Return whether a value is an integer of Python or NumPy, and not a truth value."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def is_number(value: Any) -> bool:
    """Return whether a value is a finite number of Python or NumPy."""
    floating = isinstance(value, Real) and not isinstance(value, Rational)
    return (floating or is_integer(value)) and abs(value) < math.inf


def whole(least: int, most: int | None = None) -> Kind:
    """Return the kind of the integers of at least ``least``, and at most ``most``."""
    words = f"an integer from {least} to {most:,}" if most else f"an integer of at least {least}"
    words = "a positive integer" if (least, most) == (1, None) else words
    return Kind(words, "int", lambda x: is_integer(x) and least <= x and (most is None or x <= most), int)


def number(*, above: float | None = None, least: float | None = None, below: float = math.inf, most: float = 0) -> Kind:
    """Return the kind of the finite numbers above or from a bound, and below or up to another."""
    start = f"above {above:g}" if above is not None else "" if least is None else f"of at least {least:g}"
    end = f"at most {most:g}" if most else f"below {below:g}" if below < math.inf else ""
    words = f"a number {start}{' and ' if start and end else ''}{end}"
    return Kind(
        "a positive number" if words == "a number above 0" else words,
        "float",
        lambda x: (
            is_number(x)
            and (above is None or x > above)
            and (least is None or x >= least)
            and (x <= most if most else x < below)
        ),
        float,
    )


def choice(*names: str) -> Kind:
    """Return the kind of some names."""
    *first, last = (f"'{name}'" for name in names)
    shown = ", ".join(f'"{name}"' for name in names)
    return Kind(
        f"{', '.join(first)} or {last}" if first else last,
        f"{{{shown}}}" if first else shown,
        lambda value: isinstance(value, str) and value in names,
        names=names,
    )


def _is_flag(value: Any) -> bool:
    # NumPy calls its truth values bool or bool_, in different versions.
    return type(value).__name__ in ("bool", "bool_") or (is_integer(value) and value in (0, 1))


def instance(name: str, words: str, shown: str) -> Kind:
    """Return the kind of the objects of a class with this name. Nothing is imported for it."""
    return Kind(words, shown, lambda value: any(base.__name__ == name for base in type(value).__mro__))


def sequence(kind: Kind) -> Kind:
    """Return the kind of the sequences of at least one value of a kind, and of arrays of them."""

    def accepts(value: Any) -> bool:
        return (
            not isinstance(value, str)
            and hasattr(value, "__len__")
            and len(value) > 0
            and all(map(kind.accepts, value))
        )

    return Kind(f"a sequence, each entry {kind.words}", f"sequence of {kind.shown}", accepts)


def pair_of(kind: Kind) -> Kind:
    """Return the kind of the tuples of two values of a kind, each of which may be None."""

    def accepts(value: Any) -> bool:
        return isinstance(value, tuple) and len(value) == 2 and all(x is None or kind.accepts(x) for x in value)

    return Kind(f"a tuple of two, each {kind.words}", f"tuple of two {kind.shown}", accepts)


def array(words: str, shown: str = "array") -> Kind:
    """Return the kind of all objects that an estimator converts to an array and checks, and no text."""
    return Kind(words, shown, lambda value: not isinstance(value, str | bytes))


def _are_lengths(value: Any) -> bool:
    return is_integer(value) or (isinstance(value, Sequence) and bool(value) and all(map(is_integer, value)))


def _are_names(value: Any) -> bool:
    return isinstance(value, str) or (isinstance(value, Sequence) and all(isinstance(name, str) for name in value))


def _read_lengths(text: str) -> int | tuple[int, ...]:
    lengths = tuple(whole(1).parse(part) for part in text.split("x"))
    return lengths[0] if len(lengths) == 1 else lengths


def _are_bounds(value: Any) -> bool:
    return hasattr(value, "__len__") and len(value) == 2 and all(map(is_number, value)) and value[0] < value[1]


FLAG = Kind("True or False", "bool", _is_flag)
TEXT = Kind("a name", "str", lambda value: isinstance(value, str))
LENGTHS = Kind("one integer, or one for each spatial axis", "int or tuple of int", _are_lengths, _read_lengths)
NAMES = Kind("a letter or a name for each axis", "str or sequence of str", _are_names)
BOUNDS = Kind("two finite numbers, the lower first", "tuple of float", _are_bounds)
SEED = whole(0, 2**32 - 1) | instance("RandomState", "a RandomState", "RandomState")
