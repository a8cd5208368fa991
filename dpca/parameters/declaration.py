"""The declaration of a parameter, as a field of a dataclass.

A field holds what scikit-learn splits into a signature, ``_parameter_constraints`` and a docstring. attrs would do the
same with more machinery; scikit-learn's ``clone`` requires that constructors store values unchanged, as plain
dataclasses do.
"""

from __future__ import annotations

import inspect
import re
import textwrap
from dataclasses import MISSING, dataclass, field, fields
from enum import Enum
from functools import partial
from typing import Any

from dpca.parameters.kinds import Kind

#: The default of a parameter without one.
REQUIRED: Any = MISSING
_WIDTH = 120


class StoragePolicy(Enum):
    """Whether the store of a fitted model contains a parameter."""

    ALWAYS = 1
    #: If it differs from its default. Stores from before the parameter was added are then as they would be now.
    GIVEN = 2
    #: If it differs from its default and the model keeps the state of its fit, which depends on it.
    WITH_STATE = 3
    #: The same, for a parameter that was added later: a fit from before it is the same as a fit without it.
    LATER_WITH_STATE = 5
    #: As an array of the store, if it differs from its default.
    AS_ARRAY = 6
    #: It affects the fit only, or the layout of the store states it.
    NEVER = 4


@dataclass(frozen=True)
class Option:
    """The option of the command line, and so the key of a job file, that sets a parameter.

    Parameters
    ----------
    flag : str
    metavar : str, optional
    help : str, optional
        Default: the first sentence of the documentation.
    kind : Kind, optional
        Default: that of the parameter.
    const : object
        The value of an option without argument; with a ``metavar``, the argument is optional.
    exclusive : bool
        At most one of the exclusive options may be given.
    """

    flag: str
    metavar: str | None = None
    help: str = ""
    kind: Kind | None = None
    const: Any = None
    exclusive: bool = False

    @property
    def name(self) -> str:
        """The name of its value among the parsed options."""
        return self.flag[2:].replace("-", "_")


@dataclass(frozen=True)
class Parameter:
    """A parameter of an estimator; see `parameter`."""

    kind: Kind
    text: str
    default: Any
    none: bool
    kept: StoragePolicy
    option: Option | None
    shown: str

    def accepts(self, value: Any) -> bool:
        """Return whether a value is valid."""
        return (value is None and self.none) or self.kind.accepts(value)

    @property
    def help(self) -> str:
        """The help of its option. Default: the first sentence of the documentation, and the default value."""
        if self.option is not None and self.option.help:
            return self.option.help
        sentence = re.split(r"\.(?= |$)", self.text.split("\n")[0])[0].replace("`", "")
        for name, words in (("{parts}", "cells or bands"), ("{part}", "cell or band")):
            sentence = sentence.replace(name, words)
        default = "" if self.default in (None, False, REQUIRED) else f" (default: {self.default})"
        return sentence[0].lower() + sentence[1:] + default

    @property
    def expected(self) -> str:
        """The valid values, in errors."""
        return f"{self.kind.words}, or None" if self.none else self.kind.words


def parameter(
    default: Any,
    kind: Kind,
    text: str,
    *,
    kept: StoragePolicy = StoragePolicy.GIVEN,
    option: Option | None = None,
    none: bool = False,
    shown: str = "",
) -> Any:
    """Return the field of a parameter.

    Parameters
    ----------
    default : object
        `REQUIRED` if there is none.
    kind : Kind
    text : str
        The documentation, in lines. Each line is a paragraph or, with "- " in front, an entry of a list.
    kept : StoragePolicy
    option : Option, optional
    none : bool
        Whether None is valid. Always true if it is the default.
    shown : str
        The type in the documentation. Default: that of the kind.
    """
    shown = shown or kind.shown + (", optional" if default is None else " or None" if none else "")
    declared = Parameter(kind, text, default, none or default is None, kept, option, shown)
    return field(default=default, metadata={"parameter": declared})


always_stored = partial(parameter, kept=StoragePolicy.ALWAYS)
never_stored = partial(parameter, kept=StoragePolicy.NEVER)
stored_with_state = partial(parameter, kept=StoragePolicy.WITH_STATE)


def same_as(cls: type[Any], name: str) -> Any:
    """Return a field with the declaration of another class."""
    found = declared_in(cls)[name]
    return field(default=found.default, metadata={"parameter": found})


def declared_in(cls: type[Any]) -> dict[str, Parameter]:
    """Return the declarations of a class by name, in the order of its constructor."""
    found = fields(cls) if hasattr(cls, "__dataclass_fields__") else ()
    return {one.name: one.metadata["parameter"] for one in found if "parameter" in one.metadata}


def always_stored_names(cls: type[Any]) -> tuple[str, ...]:
    """Return the names of the parameters that stores always contain, of those that a class declares itself."""
    declared = declared_in(cls)
    names = [name for name in inspect.get_annotations(cls) if name in declared]
    return tuple(name for name in names if declared[name].kept is StoragePolicy.ALWAYS)


def section(cls: type[Any]) -> str:
    """Return the section "Parameters" of the docstring of a class, below its title, with the indentation of a class."""
    lines = []
    for name, one in declared_in(cls).items():
        lines.append(f"    {name} : {one.shown}")
        for line in one.text.split("\n"):
            indent = " " * (10 if line.startswith("- ") else 8)
            lines += textwrap.wrap(
                line, _WIDTH, initial_indent=" " * 8, subsequent_indent=indent, break_on_hyphens=False
            ) or [""]
    return "\n".join(lines) + "\n"
