"""Every Python and shell block of README and guides runs, in order, on small data with the names in the block."""

from __future__ import annotations

import re
import shlex
import tarfile
from collections.abc import Callable, Iterator
from glob import glob, has_magic
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import tifffile
import xarray
import zarr

from dpca import storage
from dpca.cli import main
from tests.conftest import smooth_images, write_images

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", DOCS / "quickstart.md", DOCS / "research.md", *sorted((DOCS / "guides").glob("*.md"))]
BLOCK = re.compile(r"^```(\S*)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)

#: Shell lines that do not run here, by their beginnings, with the reason.
NOT_RUN = {
    "python3 -m venv": "creates an environment; continuous integration runs the line with the tests",
    "dask scheduler": "runs until interrupted; tests/cli/test_given_cluster.py runs it",
    "dask worker": "runs on other machines; tests/cli/test_given_cluster.py runs it here",
    "dpca explore": "serves until interrupted; tests/explore/test_command.py runs it",
    "pip install": "installs a viewer; tests/jobs/export/test_viewers.py reads an export by the loaders of viewers",
    "napari": "opens a window",
    "dpca compress /shared/": "has the address of another machine",
    "dpca plan tb.zarr": "takes half a minute; tests/jobs/plans/test_job_plan.py plans less",
    "python pipelines/lsun_streaming.py": "needs LMDB files of LSUN; tests/pipelines/test_lsun_streaming.py runs it",
    "python pipelines/convergence_report.py": "takes a minute; tests/pipelines/test_convergence_report.py runs it",
    "python pipelines/partition_report.py": "takes a minute; tests/pipelines/test_partition_report.py runs it",
    "python pipelines/time_report.py": "is run by tests/pipelines/test_time_report.py",
    "python pipelines/reproduce_time.py": "takes minutes; tests/studies/test_time.py runs less",
    "python pipelines/reproduce_rednet.py": "needs LFW; tests/pipelines/test_reproduce_rednet.py runs it on less",
    "python pipelines/reproduce_streaming.py": "takes hours; tests/pipelines/test_reproduce_streaming.py runs less",
}
#: Commands that need no cluster.
ALONE = {"info", "watch", "compare", "plan", "synthetic", "export"}


def _array(path: Path, values: np.ndarray[Any, Any]) -> None:
    np.save(path, values)


def _photons(means: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.random.default_rng(0).poisson(means).astype(np.uint16)


def _stack(path: Path) -> None:
    _array(path.with_name("made.npy"), smooth_images(80, (30, 20)))
    storage.ingest(path.with_name("made.npy"), path)


def _tars(path: Path) -> None:
    photos = write_images(path / "tarred", 24, (20, 20, 3))
    for number, some in enumerate((sorted(photos.iterdir())[:12], sorted(photos.iterdir())[12:])):
        for name in ("lfw", "faces"):
            with tarfile.open(path / f"{name}-{number}.tar", "w") as tar:
                for photo in some:
                    tar.add(photo, photo.name)


def _photos(path: Path) -> None:
    write_images(path, 60, (40, 40, 3))


def _mixed(path: Path) -> None:
    write_images(path, 30, (44, 50, 3))
    (path / "broken.jpg").write_bytes(b"\xff\xd8\xff")


def _netcdf(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file["air"] = (smooth_images(40, (16, 24)).astype(np.int16) - 128) * 8
        file["air"].attrs.update(scale_factor=np.float32(0.01), add_offset=np.float32(273))
        for axis, (dim, values) in enumerate({"time": range(40), "lat": range(16), "lon": range(24)}.items()):
            file[dim] = np.array(values)
            file[dim].make_scale()
            file["air"].dims[axis].attach_scale(file[dim])
        file["time"].attrs["units"] = "days since 2001-01-01"


def _fields(path: Path) -> None:
    values = smooth_images(20, (16, 24)).astype(np.float32)
    fields = {"u": values / 100, "p": values * 400 + 50000}
    data = {name: (("time", "y", "x"), field) for name, field in fields.items()}
    xarray.Dataset(data, {"time": np.arange(20.0)}).to_netcdf(path, engine="scipy")


def _divided(path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(40, 24, 20)).astype(np.float32)
    x[::3, 4, 5], x[1, 2:4] = np.inf, -np.inf
    np.save(path, x)


def _masked(path: Path) -> None:
    values = smooth_images(48, (8, 12)).astype(np.float32)
    values[:, 2:5, 3:9] = np.nan
    values[3, 0, 0] = np.nan
    coords = {"time": np.arange("2001-01", "2005-01", dtype="M8[M]").astype("M8[ns]")}
    places = {"lat": np.linspace(-70, 70, 8), "lon": np.arange(0, 360, 30)}
    field = xarray.DataArray(values, dims=("time", "lat", "lon"), coords=coords | places, name="sst")
    field.to_netcdf(path, engine="scipy")


def _example(path: Path) -> None:
    path.parent.mkdir(parents=True)
    path.write_bytes((ROOT / "docs" / "examples" / "incoming" / path.name).read_bytes())


def _zarr(path: Path) -> None:
    frames = smooth_images(12, (96, 192)).reshape(12, 2, 16, 24, 24)
    image = {"axes": [{"name": axis} for axis in "tczyx"], "datasets": [{"path": "0"}]}
    group = zarr.create_group(path, attributes={"ome": {"version": "0.5", "multiscales": [image]}})
    group.create_array("0", data=frames, chunks=(1, 1, 8, 24, 24))


#: Data that a page may use, by the word in its text, and the function that writes it.
def _ocean(path: Path) -> None:
    fields = smooth_images(6, (40, 50)).astype(np.float32)
    fields[:, 5:30, 20:40] = np.nan
    zarr.create_array(str(path), data=fields, chunks=(1, 20, 25))


MADE: dict[str, Callable[[Path], None]] = {
    "photos/": _photos,
    "mixed/": _mixed,
    "-*.tar": lambda path: _tars(path.parent),
    "docs/examples/incoming/monday.tar ": lambda path: _example(path.with_name(path.name.strip())),
    '"stack.zarr"': lambda path: _stack(path.with_name("stack.zarr")),
    "volumes.npy": lambda path: _array(path, smooth_images(24, (64, 64)).reshape(24, 16, 16, 16)),
    "stained.npy": lambda path: _array(path, smooth_images(240, (16, 16)).reshape(12, 2, 10, 16, 16)),
    "movie.npy": lambda path: _array(path, smooth_images(30, (24, 32))),
    "embryo.npy": lambda path: _array(path, smooth_images(1, (24, 32))[0] > 100),
    "plate.zarr": _zarr,
    "timelapse.tif": lambda path: tifffile.imwrite(path, _photons(smooth_images(30, (24, 24)))),
    "air.nc": _netcdf,
    "sst.nc": _masked,
    "divided.npy": _divided,
    "ocean.zarr": _ocean,
    "fields.nc": _fields,
}


def blocks(page: Path) -> Iterator[tuple[str, str]]:
    """Yield language and text of the fenced blocks of a page."""
    for language, text in BLOCK.findall(page.read_text()):
        if not language.startswith("{"):
            yield language, text


def lines(text: str) -> Iterator[str]:
    """Yield the nonempty lines of a shell block, with continued lines joined."""
    yield from filter(None, text.replace("\\\n", " ").splitlines())


def reason(line: str) -> str | None:
    """Return the entry of `NOT_RUN` for a line, or None if the line runs here."""
    return next((beginning for beginning in NOT_RUN if line.startswith(beginning)), None)


def run(line: str, scheduler: str) -> int:
    """Run a shell line with a dpca command, and return its exit code."""
    program, *words = shlex.split(line, comments=True)
    words = [found for word in words for found in (sorted(glob(word)) if has_magic(word) else [word])]
    if words[0] not in ALONE:
        words += ["--scheduler", scheduler]
    assert program == "dpca", line
    return main(words)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
@pytest.mark.usefixtures("small_pictures")
@pytest.mark.filterwarnings("ignore::dpca.models.ConvergenceWarning", "ignore::dpca.models.OrderWarning")
def test_all_blocks_run(page: Path, tmp_path: Path, scheduler: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for word, make in MADE.items():
        if word in page.read_text():
            make(tmp_path / word.rstrip("/"))
    space: dict[str, Any] = {"__name__": page.stem}
    for language, text in blocks(page):
        if language == "python":
            exec(compile(text, f"{page.name}: {text.splitlines()[0]}", "exec"), space)
        for line in lines(text) if language == "sh" else ():
            if reason(line) is None:
                assert run(line, scheduler) == 0, line


def test_all_blocks_name_their_language() -> None:
    found = [(page, language) for page in PAGES for language, _ in blocks(page)]
    assert {language for _, language in found} == {"python", "sh", "text"}
    assert {page for page, _ in found} == set(PAGES)
    for page in PAGES:  # an indented block would not run
        assert not re.search(r"\n\n {4}\S", page.read_text()), page


def test_every_line_that_does_not_run_is_on_a_page() -> None:
    shell = [line for page in PAGES for language, text in blocks(page) if language == "sh" for line in lines(text)]
    assert {reason(line) for line in shell} == {None, *NOT_RUN}
