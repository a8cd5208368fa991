"""Every notebook runs from top to bottom, as committed and on other stacks, and its sliders change what is shown."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path
from queue import Empty
from typing import Any

import nbformat
import numpy as np
import pytest
from nbclient import NotebookClient
from PIL import Image

from dpca.storage import ingest
from dpca.storage.run import Run


def number(path: Path) -> int:
    """Return the number of a notebook."""
    return int(path.stem.partition("_")[0])


NOTEBOOKS = sorted((Path(__file__).parents[2] / "notebooks").glob("*.ipynb"), key=number)
LINE = re.compile(r"^SOURCE = .*$", re.MULTILINE)

#: On which other stacks each of them is tried, and on which folder.
OTHERS = {
    1: ["channels"],
    2: ["color"],
    3: ["volumes"],
    4: ["gray", "volumes"],
    5: ["gray"],
    6: ["volumes"],
    7: ["photos"],
    8: ["gray"],
    9: ["gray"],
    10: ["gray"],
}
SHAPES = {"color": (23, 20, 3), "gray": (24, 20), "channels": (24, 20, 4), "volumes": (12, 12, 12)}

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

for slider in show.widget.children[:-1] if "show" in globals() else ():
    before = drawn(show.widget.result)
    slider.value = slider.options[-1] if hasattr(slider, "options") else slider.max
    assert drawn(show.widget.result) != before, slider
globals().pop("show", None)
"""

# Jupyter's client warns of its own doings (event loops, sockets left to the garbage collector).
pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::ResourceWarning", "ignore::pytest.PytestWarning"
)


def code(path: Path, source: Path | None = None) -> list[nbformat.NotebookNode]:
    """Return the cells of a notebook that compute, its fits watched for a second, and one that moves its sliders."""
    cells = [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
    texts = [cell.source.replace("SECONDS = 4", "SECONDS = 1") for cell in cells]
    if source is not None:
        texts = [LINE.sub(f"SOURCE = {str(source)!r}", text) for text in texts]
    return [nbformat.v4.new_code_cell(text) for text in (*texts, MOVE)]  # ids of their own


class Client(NotebookClient):
    """Looks every second whether a reply has come: pyzmq does not tell of one that comes while the client sends.

    A notebook with sliders makes it send. Without this, it then waits as long as a cell may take.
    """

    async def async_start_new_kernel_client(self) -> Any:
        """Return the client of a new kernel."""
        kernel: Any = await super().async_start_new_kernel_client()
        once = kernel.shell_channel.get_msg

        async def get_msg(timeout: float) -> Any:
            end = time.monotonic() + timeout
            while True:
                try:
                    return await once(timeout=1)
                except Empty:
                    if time.monotonic() >= end:
                        raise

        kernel.shell_channel.get_msg = get_msg
        return kernel


def execute(cells: list[nbformat.NotebookNode], folder: Path) -> list[nbformat.NotebookNode]:
    """Run cells in a clean kernel where warnings are errors; returns their outputs."""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(STRICT), *cells])
    Client(notebook, timeout=120, resources={"metadata": {"path": str(folder)}}).execute()
    return [output for cell in notebook.cells for output in cell.get("outputs", [])]


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_runs_and_its_sliders_move(path: Path, tmp_path: Path) -> None:
    outputs = execute(code(path), tmp_path)
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


def others(folder: Path) -> dict[str, Path]:
    """Write small stacks of smooth samples, and a folder of photographs with a folder for each class."""
    rng = np.random.default_rng(0)
    for name, shape in SHAPES.items():
        patterns = rng.normal(size=(14, *shape))
        for axis in range(1, 3):
            patterns = patterns + np.roll(patterns, 1, axis) + np.roll(patterns, 2, axis)
        samples = np.tensordot(rng.normal(size=(30, 14)) * 0.8 ** np.arange(14), patterns, 1)
        samples = np.clip(128 + 20 * samples, 0, 255).astype(np.uint8)
        np.save(folder / "samples.npy", samples)
        ingest(folder / "samples.npy", folder / f"{name}.zarr", run=Run(overwrite=True))
        for i, sample in enumerate(samples if name == "color" else ()):
            (folder / "photos" / str(i % 3)).mkdir(parents=True, exist_ok=True)
            Image.fromarray(sample).save(folder / "photos" / str(i % 3) / f"{i}.png")
    return {**{name: folder / f"{name}.zarr" for name in SHAPES}, "photos": folder / "photos"}


def test_they_run_on_other_stacks_by_one_line(tmp_path: Path) -> None:
    given = others(tmp_path)
    pairs = [(path, given[name]) for path in NOTEBOOKS for name in OTHERS[number(path)]]
    execute([cell for path, source in pairs for cell in code(path, source)], tmp_path)


def test_there_are_notebooks() -> None:
    assert list(map(number, NOTEBOOKS)) == list(range(1, 11))
