"""axe-core, which checks pages for people who do not see them or use no mouse: ``npm install --global axe-core``."""

from __future__ import annotations

import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest

#: Widths of a telephone, a tablet and a laptop.
WIDTHS = (390, 820, 1280)


@cache
def axe() -> str:
    """Return the script; skip the test if it is not installed."""
    if (npm := shutil.which("npm")) is None:
        pytest.skip("there is no npm to look for axe-core")
    root = subprocess.run([npm, "root", "--global"], capture_output=True, text=True, check=True).stdout.strip()
    path = Path(root, "axe-core", "axe.min.js")
    if not path.exists():
        pytest.skip("axe-core is not installed: npm install --global axe-core")
    return path.read_text()


def violations(page: Any) -> list[str]:
    """Return the rules that a page violates, with the first place of each."""
    page.evaluate(axe())
    found = page.evaluate("axe.run({resultTypes: ['violations']})")["violations"]
    return [f"{one['id']}: {one['nodes'][0]['html'][:200]}" for one in found]


def too_wide(page: Any) -> int:
    """Return by how many pixels a page is wider than its window."""
    return int(page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth"))
