"""HTML pages: templates that escape all text, and pictures that are part of the page."""

from __future__ import annotations

import base64
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template


def template(module_file: str, name: str) -> Template:
    """Return a template from the folder ``templates`` next to a module. It escapes all text.

    In templates, the filter ``data_uri`` is available.

    Parameters
    ----------
    module_file : str
        ``__file__`` of the module.
    name : str
        File name of the template.
    """
    environment = Environment(
        loader=FileSystemLoader(Path(module_file).with_name("templates")),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["data_uri"] = data_uri
    return environment.get_template(name)


def data_uri(png: bytes) -> str:
    """Return the source of an ``img`` element for the content of a PNG file."""
    return f"data:image/png;base64,{base64.b64encode(png).decode('ascii')}"
