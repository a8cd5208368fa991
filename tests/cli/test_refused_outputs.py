"""Outputs that overlap inputs: an error message, exit code 4, and no change."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from dpca.cli import main as dpca_main
from dpca.jobs import fit_store, transform_store
from dpca.models.cells.cell_pca import CellPCA
from dpca.pipelines.celeba_cpca import main as cells
from dpca.pipelines.convergence_report import main as convergence
from dpca.pipelines.lsun_streaming import main as streaming
from dpca.pipelines.partition_report import main as partitions
from dpca.pipelines.reproduce_kernel import main as reproduce_kernel
from dpca.pipelines.reproduce_rednet import main as reproduce_rednet
from dpca.pipelines.reproduce_streaming import main as reproduce
from dpca.pipelines.reproduce_time import main as reproduce_time
from dpca.storage import ingest, open_stack
from dpca.storage.run import Run
from tests.cli.bad_cases import make_photos
from tests.conftest import smooth_images

Command = Callable[[list[str]], int]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A stack ``s``, a model ``m`` of it, scores ``sc``, photographs, and links to them; tests leave it as it is."""
    folder = tmp_path_factory.mktemp("inputs")
    make_photos(folder)
    np.save(folder / "a.npy", smooth_images(12, (24, 24, 3)))
    stack = ingest(folder / "a.npy", folder / "s", run=Run(threads=1))
    fit_store(stack, folder / "m", CellPCA(2, cell_shape=8, random_state=0))
    transform_store(open_stack(folder / "s"), folder / "m", folder / "sc")
    (folder / "x.report").mkdir()
    for name in ("s", "photos"):
        (folder / f"link-to-{name}").symlink_to(folder / name)
        os.link(folder / "photos" / "0.png", folder / "x.report" / f"{name}.png")
    before = _everything(folder)
    here = os.getcwd()
    os.chdir(folder)
    yield folder
    os.chdir(here)
    assert _everything(folder) == before


def _everything(folder: Path) -> dict[str, bytes | None]:
    return {str(p.relative_to(folder)): p.read_bytes() if p.is_file() else None for p in sorted(folder.rglob("*"))}


FIT = ["--cell", "8", "--components", "2"]
WRONG: dict[str, tuple[Command, list[str]]] = {
    "fit onto its stack": (dpca_main, ["fit", "s", "s", *FIT]),
    "fit into its stack": (dpca_main, ["fit", "s", "s/samples/m", *FIT]),
    "fit onto a link to its stack": (dpca_main, ["fit", "s", "link-to-s", *FIT]),
    "fit through a link into its stack": (dpca_main, ["fit", "s", "link-to-s/m", *FIT]),
    "fit a link to a stack onto it": (dpca_main, ["fit", "link-to-s", "photos/../s", *FIT]),
    "fit samples onto the store that holds them": (dpca_main, ["fit", "s/samples", "s", *FIT]),
    "transform onto its stack": (dpca_main, ["transform", "m", "s", "s"]),
    "encode onto its stack": (dpca_main, ["encode", "m", "s", "s", "--psnr", "30"]),
    "encode into its model": (dpca_main, ["encode", "m", "s", "m/scores", "--psnr", "30"]),
    "transform into its stack": (dpca_main, ["transform", "m", "s", "./s/scores"]),
    "transform onto its model": (dpca_main, ["transform", "m", "s", "m"]),
    "transform into its model": (dpca_main, ["transform", "m", "s", "m/scores"]),
    "reconstruct onto its model": (dpca_main, ["reconstruct", "m", "sc", "m"]),
    "reconstruct onto its scores": (dpca_main, ["reconstruct", "m", "sc", "sc"]),
    "reconstruct into its scores": (dpca_main, ["reconstruct", "m", "sc", "sc/again"]),
    "ingest onto its source": (dpca_main, ["ingest", "s", "s"]),
    "ingest into its source": (dpca_main, ["ingest", "photos", "photos/out.zarr"]),
    "ingest into one of its sources": (dpca_main, ["ingest", "photos/0.png", "photos", "photos/b/out.zarr"]),
    "ingest into a match": (dpca_main, ["ingest", "phot*", "photos/out.zarr"]),
    "ingest onto a folder that holds its source": (dpca_main, ["ingest", "photos/*.png", "photos"]),
    "compress into its source": (cells, ["--source", "photos", "--output", "photos/out.zarr"]),
    "compress through a link into its source": (
        cells,
        ["--source", "link-to-photos", "--output", "photos/new/out.zarr"],
    ),
    "compress onto its stack": (cells, ["--source", "s", "--output", "s"]),
    "compress with its source for a report": (cells, ["--source", "x.report", "--output", "x.zarr"]),
    "compress with its source in the report": (
        cells,
        ["--source", "x.report/s.png", "x.report/photos.png", "--output", "x.zarr"],
    ),
    "eigenimages of a source for a report": (streaming, ["--source", "x.report", "--output", "x.zarr"]),
    "convergence onto its stack": (convergence, ["--source", "s", "--output", "s"]),
    "convergence of a permuted source into it": (
        convergence,
        ["--source", "photos", "--shuffle", "1", "--output", "photos/o"],
    ),
    "partitions into their source": (partitions, ["--source", "photos", "--output", "photos/out.zarr"]),
    "partitions onto their stack": (partitions, ["--source", "s", "--output", "link-to-s"]),
}


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("name", WRONG)
def test_nothing_is_written_where_something_is_read(
    name: str, overwrite: bool, folder: Path, scheduler: str, capsys: pytest.CaptureFixture[str]
) -> None:
    command, argv = WRONG[name]
    before = _everything(folder)
    where = [] if command is convergence else ["--scheduler", scheduler]
    assert command([*argv, *where, *(["--overwrite"] if overwrite else [])]) == 4
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert error.count("\n") == 1
    assert "the input" in error
    assert "choose another output" in error
    assert _everything(folder) == before


def test_an_unfinished_work_folder_is_no_source_of_its_own_output(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], scheduler: str
) -> None:
    photos = make_photos(tmp_path)
    photos.rename(tmp_path / "out.zarr.partial")
    before = _everything(tmp_path)
    argv = ["--source", str(tmp_path / "out.zarr.partial"), "--output", str(tmp_path / "out.zarr")]
    assert cells([*argv, "--scheduler", scheduler]) == 4
    assert "the work folder of output" in capsys.readouterr().err
    assert _everything(tmp_path) == before


def test_the_tables_are_not_written_among_their_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "data").mkdir()
    argv = ["--data", str(tmp_path / "data"), "--output", str(tmp_path / "data" / "tables.md")]
    assert reproduce(argv) == 4
    assert "the input" in capsys.readouterr().err
    assert not any((tmp_path / "data").iterdir())


@pytest.mark.parametrize("program", [reproduce, reproduce_kernel, reproduce_rednet, reproduce_time])
def test_a_page_or_file_that_no_such_program_wrote_is_not_replaced(
    program: Command, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "page").mkdir()
    (tmp_path / "page" / "index.html").write_text("mine")
    (tmp_path / "tables.md").write_text("# Mine")
    (tmp_path / "numbers.json").write_text("{}")
    before = _everything(tmp_path)
    data = [] if program is reproduce_time else ["--data", str(tmp_path / "data")]
    for name in ("tables.md", "numbers.md", "numbers.json") if program is reproduce else ("page", "tables.md"):
        assert program([*data, "--output", str(tmp_path / name)]) == 4
        assert capsys.readouterr().err.count("\n") == 1
    assert _everything(tmp_path) == before


@pytest.mark.parametrize(
    "target",
    ["/", ".", "..", "a\udcff.zarr", "x" * 250, "file/out.zarr", "loop", "a/" * 2500 + "x", "dpca::s.zarr", "zip::s"],
)
def test_a_target_that_is_none_is_one_sentence(
    target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scheduler: str, capsys: pytest.CaptureFixture[str]
) -> None:
    photos = make_photos(tmp_path)
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    Path("file").write_text("x")
    Path("loop").symlink_to("loop")
    for command, argv in (
        (dpca_main, ["ingest", str(photos), target]),
        (cells, ["--source", str(photos), "--output", target]),
        (convergence, ["--source", str(photos), "--output", target]),
        (partitions, ["--source", str(photos), "--output", target]),
    ):
        assert command([*argv, *([] if command is convergence else ["--scheduler", scheduler])]) == 4
        error = capsys.readouterr().err
        assert error.startswith("error: ")
        assert error.count("\n") == 1
    assert sorted(os.listdir()) == ["file", "loop"]
