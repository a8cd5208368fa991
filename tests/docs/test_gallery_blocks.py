"""Every picture of `dpca.plots` is in the gallery, in at most five lines."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from dpca import plots

FILE = Path(__file__).parents[2] / "docs" / "gallery.py"


@pytest.fixture(scope="module")
def gallery() -> Any:
    spec = importlib.util.spec_from_file_location("gallery", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_picture_has_its_lines(gallery: Any) -> None:
    data, *pictures = gallery.blocks()
    assert data[0] == ""
    assert sorted(name for name, _ in pictures) == plots.__all__, "add a heading and a block to docs/gallery.md"
    page = FILE.with_suffix(".md").read_text()
    for name, code in pictures:
        lines = [line for line in code.splitlines() if line]
        assert len(lines) <= 5, name
        assert f"plots.{name}(" in lines[-1]
        assert f"](images/gallery/{name}.png)" in page


@pytest.mark.long
def test_they_run_and_draw(gallery: Any, tmp_path: Path) -> None:
    gallery.draw(tmp_path)
    assert sorted(path.stem for path in tmp_path.iterdir()) == plots.__all__
    for path in tmp_path.iterdir():
        with Image.open(path) as picture:
            assert len(np.unique(np.asarray(picture.convert("L")))) > 20, path.stem
