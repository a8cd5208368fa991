"""The index of the API: each public name with the first sentence of its documentation."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from importlib import import_module

import dpca

#: Modules with public names, in the order of the index. The names of `dpca.torch` need an extra.
MODULES = ("dpca", "dpca.plots", "dpca.metrics", "dpca.analysis", "dpca.timeseries", "dpca.storage", "dpca.jobs")
# A sentence ends with a period before another one.
_END = re.compile(r"(?<!\bal)\. (?=[A-Z])")


def names() -> Iterator[tuple[str, str]]:
    """Yield each public name, with its module, and a sentence on it."""
    for module in map(import_module, MODULES):
        for name in getattr(module, "__all__", None) or _defined(module):
            found = getattr(module, name) if name != "torch" else None
            text = inspect.getdoc(found) if found is not None else "Datasets and networks for PyTorch, an extra."
            if module is dpca or not inspect.ismodule(found):
                yield f"{module.__name__}.{name}", sentence(text or "")


def _defined(module: object) -> list[str]:
    """Return the public functions that a module without ``__all__`` defines."""
    functions = inspect.getmembers(module, inspect.isfunction)
    return [name for name, found in functions if found.__module__ == module.__name__ and not name.startswith("_")]


def sentence(text: str) -> str:
    """Return the first sentence of a docstring, on one line, as Markdown."""
    first = " ".join(text.split("\n\n")[0].split())
    plain = (_END.split(first)[0].rstrip(".") + ".").replace("``", "`")
    return re.sub(r"([|*])", r"\\\1", plain)


def api_table() -> str:
    """Return the index as a table."""
    lines = ["| name | what it is or does |", "|---|---|"]
    for name, what in names():
        lines.append(f"| {{py:obj}}`{name}` | {what} |")
    return "\n".join(lines)
