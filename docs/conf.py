"""How the site of the documentation is built, without the network: ``python -m sphinx -W docs build/site``."""

import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
import gallery
from api_names import api_table

from dpca import __version__
from dpca.cli.running import MEANINGS
from dpca.report.monitor import METRICS
from dpca.report.record import KEYS

project = "dpca"
author = "the dpca authors"
copyright = "2026, the dpca authors"
version = release = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "numpydoc"]
html_theme = "furo"
html_copy_source = False
html_static_path = ["static"]
html_css_files = ["site.css"]
html_js_files = ["site.js"]
html_title = f"dpca {release}"

highlight_language = "none"  # for blocks without a language, such as drawings of stores
default_role = "py:obj"  # `CellPCA` in a docstring links to its page, if it has one
autodoc_member_order = "groupwise"
autodoc_preserve_defaults = True
# Jobs and reports call these methods. They concern authors of estimators, who read the code.
autodoc_default_options = {
    "exclude-members": "announced, cell_shape_for, check_parameters_for, expected_mse, fit_settings, job_settings, "
    "component_maps, plan_fit, report_numbers, target_numbers"
}
autodoc_typehints = "none"  # the sections of numpydoc state types and shapes
numpydoc_show_class_members = False  # autodoc lists them
numpydoc_class_members_toctree = False
autosummary_generate = False
autodoc_mock_imports = ["torch"]  # an extra of gigabytes

myst_heading_anchors = 3
myst_enable_extensions = ["substitution"]


def _table(head: tuple[str, str], rows: Mapping[str, str]) -> str:
    lines = ["| {} | {} |".format(*head), "|---|---|"]
    return "\n".join([*lines, *("| {} | {} |".format(name, what.replace("|", r"\|")) for name, what in rows.items())])


# Tables of facts from the code.
myst_substitutions = {
    "api_names": api_table(),
    "exit_codes": _table(("code", "meaning"), MEANINGS),
    "metrics": _table(("metric", "meaning"), {f"`{name}`": what for name, what in METRICS.items()}),
    "report_keys": _table(("key", "meaning"), {f"`{key}`": what for key, what in KEYS.items()}),
}
# A page that includes part of README.md or CHANGELOG.md begins with a heading of the second level.
suppress_warnings = ["myst.header"]

# The star in a shape such as (n_samples, *sample_shape) is unpacking, not emphasis.
_UNPACKED = re.compile(r"(?<![*`\w\\])\*(?=[a-z_]+\b(?!\*))")


def _escape_unpacked(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    lines[:] = [_UNPACKED.sub(r"\\*", line) for line in lines]


def _skip(app: Any, what: str, name: str, obj: Any, skip: bool, options: Any) -> bool | None:
    """Skip members that other libraries document, and constants of classes, such as the kinds of their stores."""
    function = getattr(obj, "fget", obj)
    module = getattr(function, "__module__", None) or "dpca"
    return None if callable(function) and module.partition(".")[0] == "dpca" else True


def setup(app: Any) -> None:
    """Connect the functions above; the first runs after numpydoc, which has priority 500."""
    app.connect("builder-inited", lambda app: gallery.draw(Path(app.srcdir, "images", "gallery")))
    app.connect("autodoc-process-docstring", _escape_unpacked, priority=900)
    app.connect("autodoc-skip-member", _skip)
