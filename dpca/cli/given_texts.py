"""The options of a command line as texts, to print another command with them."""

from __future__ import annotations

import argparse
from collections.abc import Collection, Iterator, Sequence


def repeated_options(
    given: argparse.ArgumentParser, argv: Sequence[str], other: argparse.ArgumentParser, without: Collection[str]
) -> list[str]:
    """Return the options of a command line that another command supports, as that command reads them.

    Parameters
    ----------
    given : ArgumentParser
        Parser of the command line. It reads nothing else afterwards, because it loses its types.
    argv : sequence of str
        The valid command line.
    other : ArgumentParser
        Parser of the other command.
    without : collection of str
        Names of options that are left out.
    """
    for action in given._actions:
        action.type = action.choices = None  # values stay texts
    values = vars(given.parse_args(argv))
    supported = {flag for action in other._actions for flag in action.option_strings}
    wanted = (action for action in given._actions if action.dest not in without)
    return [
        text
        for action in wanted
        if supported.issuperset(action.option_strings)
        for text in _texts(action, values.get(action.dest))
    ]


def _texts(action: argparse.Action, value: object) -> Iterator[str]:
    """Yield the arguments that set an option to a value, none for its default."""
    if not action.option_strings or value in (None, action.default):
        return
    if action.nargs == 0:  # a flag; the last of two is its negation
        yield action.option_strings[0 if value else -1]
    else:
        for one in value if isinstance(value, list) else [value]:
            yield f"{action.option_strings[0]}={one}"
