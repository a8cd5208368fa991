"""How the site of the documentation is built, without the network: ``python -m sphinx -W docs build/site``."""

import re
from collections.abc import Mapping
from typing import Any

from dpca import __version__
from dpca.cli.running import MEANINGS
from dpca.report.record import KEYS

project = "dpca"
author = "the dpca authors"
copyright = "2026, the dpca authors"
version = release = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "numpydoc"]
html_theme = "furo"
html_copy_source = False
html_title = f"dpca {release}"

highlight_language = "none"  # of what says nothing: drawings of stores and shards
default_role = "py:obj"  # `CellPCA` in a docstring is a link where the name has a page
autodoc_member_order = "groupwise"
autodoc_preserve_defaults = True
# What jobs and reports ask of an estimator: of interest to those who write one, who read the code.
autodoc_default_options = {
    "exclude-members": "announced, cells_for, check_before, expected_mse, fit_settings, job_settings, "
    "pictured_components, plan_fit, report_numbers, target_numbers"
}
autodoc_typehints = "none"  # numpydoc's sections state types, with shapes
numpydoc_show_class_members = False  # autodoc lists them
numpydoc_class_members_toctree = False
autosummary_generate = False
autodoc_mock_imports = ["torch"]  # an extra of gigabytes

myst_heading_anchors = 3
myst_enable_extensions = ["substitution"]


def _table(head: tuple[str, str], rows: Mapping[str, str]) -> str:
    lines = ["| {} | {} |".format(*head), "|---|---|"]
    return "\n".join([*lines, *("| {} | {} |".format(name, what.replace("|", r"\|")) for name, what in rows.items())])


# Tables of facts that stand in the code.
myst_substitutions = {
    "exit_codes": _table(("code", "meaning"), MEANINGS),
    "report_keys": _table(("key", "meaning"), {f"`{key}`": what for key, what in KEYS.items()}),
}
# Pages that include README.md, CHANGELOG.md and the like begin where these have their second heading.
suppress_warnings = ["myst.header"]

# Shapes hold what Python unpacks, as in (n_samples, *sample_shape), which is no emphasis.
_UNPACKED = re.compile(r"(?<![*`\w\\])\*(?=[a-z_]+\b(?!\*))")


def _escape_unpacked(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    lines[:] = [_UNPACKED.sub(r"\\*", line) for line in lines]


def _skip(app: Any, what: str, name: str, obj: Any, skip: bool, options: Any) -> bool | None:
    """Leave out what others document, and constants of a class, which say what its stores are called and the like."""
    function = getattr(obj, "fget", obj)
    module = getattr(function, "__module__", None) or "dpca"
    return None if callable(function) and module.partition(".")[0] == "dpca" else True


def setup(app: Any) -> None:
    """Connect what is above; the first sees what numpydoc, of priority 500, made of a docstring."""
    app.connect("autodoc-process-docstring", _escape_unpacked, priority=900)
    app.connect("autodoc-skip-member", _skip)
