"""Every notebook runs from top to bottom, as committed and on other stacks, and its sliders change what is shown."""

from __future__ import annotations

import os
import re
from pathlib import Path

import nbformat
import numpy as np
import pytest
from nbclient import NotebookClient

from dpca.storage import ingest

NOTEBOOKS = sorted((Path(__file__).parents[2] / "notebooks").glob("*.ipynb"))
LINE = re.compile(r"^SOURCE = .*$", re.MULTILINE)

#: On which other stacks each of them is tried.
OTHERS = {"1": ["gray"], "2": ["color"], "3": ["volumes"], "4": ["gray", "volumes"], "5": ["gray"], "6": ["volumes"]}

# As in `pyproject.toml`, which a kernel does not read.
STRICT = """
import warnings
warnings.simplefilter("error")
warnings.filterwarnings("ignore", "Numcodecs codecs are not in the Zarr version 3 specification")
from dpca.plots import drawing
drawing.DPI = 20  # large pictures take most of the time
"""
MOVE = """
def drawn(figure):
    pictures = [image.get_array().tobytes() for image in figure.artists]
    points = [bytes(points.get_offsets()) for axes in figure.axes for points in axes.collections]
    return pictures, points, [text.get_text() for text in figure.texts]

for slider in show.widget.children[:-1]:
    before = drawn(show.widget.result)
    slider.value = slider.options[-1] if hasattr(slider, "options") else slider.max
    assert drawn(show.widget.result) != before, slider
"""

# Jupyter's client warns of its own doings (event loops, sockets left to the garbage collector).
pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::ResourceWarning", "ignore::pytest.PytestWarning"
)


def execute(cells: list[nbformat.NotebookNode], folder: Path) -> list[nbformat.NotebookNode]:
    """Run cells in a clean kernel where warnings are errors; returns their outputs."""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(STRICT), *cells])
    NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(folder)}}).execute()
    return [output for cell in notebook.cells for output in cell.get("outputs", [])]


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_runs_and_its_sliders_move(path: Path, tmp_path: Path) -> None:
    cells = [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
    outputs = execute([*cells, nbformat.v4.new_code_cell(MOVE)], tmp_path)
    shown = [output for output in outputs if "image/png" in output.get("data", {})]
    assert len(shown) >= 2, "a notebook for exploring shows something"
    assert not [output for output in outputs if output.get("name") == "stderr"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_is_kept_without_outputs_and_says_what_to_change_and_what_is_next(path: Path) -> None:
    cells = nbformat.read(path, as_version=4).cells
    assert not [cell for cell in cells if cell.get("outputs") or cell.get("execution_count")]
    assert "SOURCE" in cells[0].source
    assert sum(len(LINE.findall(cell.source)) for cell in cells if cell.cell_type == "code") == 1
    assert "## What next" in cells[-1].source
    for name in re.findall(r"`(\w+\.ipynb|docs/[\w/.-]+)`", "".join(cell.source for cell in cells)):
        assert os.path.exists(path.parent / name) or os.path.exists(path.parents[1] / name), name


def test_they_run_on_other_stacks_by_one_line(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    shapes = {"color": (30, 24, 20, 3), "gray": (30, 24, 20), "volumes": (30, 12, 12, 12)}
    cells = []
    for name, shape in shapes.items():
        patterns = rng.normal(size=(14, *shape[1:]))
        for axis in range(1, 3):
            patterns = patterns + np.roll(patterns, 1, axis) + np.roll(patterns, 2, axis)
        samples = np.tensordot(rng.normal(size=(30, 14)) * 0.8 ** np.arange(14), patterns, 1)
        np.save(tmp_path / "samples.npy", np.clip(128 + 20 * samples, 0, 255).astype(np.uint8))
        ingest(tmp_path / "samples.npy", tmp_path / f"{name}.zarr", overwrite=True)
        for path in NOTEBOOKS:
            if name not in OTHERS[path.stem[0]]:
                continue
            for cell in nbformat.read(path, as_version=4).cells:
                if cell.cell_type == "code":
                    source = LINE.sub(f"SOURCE = {str(tmp_path / name) + '.zarr'!r}", cell.source)
                    cells.append(nbformat.v4.new_code_cell(source))
            cells.append(nbformat.v4.new_code_cell(MOVE))
    execute(cells, tmp_path)


def test_there_are_notebooks() -> None:
    assert [path.stem[0] for path in NOTEBOOKS] == [str(i + 1) for i in range(len(NOTEBOOKS))]
