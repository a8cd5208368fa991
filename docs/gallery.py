"""Draws the pictures of the gallery: runs the blocks of ``gallery.md`` in order, and saves the last value of each."""

from __future__ import annotations

import ast
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
#: Heading and code of each block; the first one, with the data, has no heading of its own.
BLOCK = re.compile(r"(?:^### (\w+)\n\n)?```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
#: Pixels per inch.
_DPI = 80


def blocks() -> list[tuple[str, str]]:
    """Return the name of each picture and the code that draws it, first that of the data, without a name."""
    return BLOCK.findall((HERE / "gallery.md").read_text())


def draw(target: Path) -> None:
    """Save every picture as a PNG file in a folder."""
    target.mkdir(parents=True, exist_ok=True)
    space: dict[str, Any] = {}
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)  # blocks write small stores
        try:
            for name, code in blocks():
                parsed = ast.parse(code)
                if not name:
                    exec(compile(parsed, "gallery.md", "exec"), space)
                    continue
                *lines, last = parsed.body
                assert isinstance(last, ast.Expr), f"the block of {name} ends with something other than a picture"
                exec(compile(ast.Module(lines, []), name, "exec"), space)
                figure = eval(compile(ast.Expression(last.value), name, "eval"), space)
                figure.savefig(target / f"{name}.png", dpi=_DPI)
        finally:
            os.chdir(before)


if __name__ == "__main__":
    draw(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE / "images" / "gallery")
