"""What was ingested serves any later job on the same source."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from PIL import Image

import dpca
from dpca import PCA, BandPCA, CellPCA, StreamingPCA
from dpca.jobs import (
    CompressionSettings,
    compress,
    find_done,
    open_input,
)
from dpca.pipelines.celeba_cpca import main as job
from dpca.pipelines.studies.convergence.study import ConvergenceSettings, report_convergence
from dpca.pipelines.studies.partitions import PartitionSettings, report_partitions
from dpca.storage import open_stack, verify
from dpca.storage.errors import DataError, StoreError
from dpca.storage.run import Run
from dpca.storage.survey import ReadOptions
from dpca.storage.transaction.workspace import Workspace
from tests.conftest import smooth_images

pytestmark = pytest.mark.usefixtures("small_pictures")

FEW = CompressionSettings(CellPCA(2, cell_shape=8), keep_stack=True)
MORE = CompressionSettings(CellPCA(3, cell_shape=8), keep_stack=True)
CANNOT = CompressionSettings(CellPCA(target_psnr=45.0, max_components=1, cell_shape=8))


class Made(NamedTuple):
    """Two finished stores of one source, and what the job that made the second one reported; not to be changed."""

    source: Path
    few: Path
    more: Path
    report: dict[str, Any]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, small_pictures: None) -> Made:
    folder = tmp_path_factory.mktemp("made")
    made = Made(folder / "a.npy", folder / "few.zarr", folder / "more.zarr", {})
    np.save(made.source, smooth_images(20, (24, 24, 3)))
    for output, settings in ((made.few, FEW), (made.more, MORE)):
        report, said = run(made.source, output, settings)
        assert ingests(said)
    return made._replace(report=report)


@pytest.fixture
def source(made: Made) -> Path:
    return made.source


@pytest.fixture
def output(tmp_path: Path) -> Path:
    return tmp_path / "out.zarr"


@pytest.fixture
def finished(made: Made, output: Path) -> Path:
    """A finished store of the source."""
    return copied(made.few, output)


def copied(store: Path, output: Path) -> Path:
    """Copy a store and its report."""
    shutil.copytree(store, output)
    shutil.copytree(store.with_suffix(".report"), output.with_suffix(".report"))
    return output


def run(
    source: Any, output: Path, settings: Any, said: list[str] | None = None, **options: Any
) -> tuple[dict[str, Any], list[str]]:
    said = [] if said is None else said
    given = open_input(source, axes=settings.axes)
    find_done(given, output, settings, overwrite=bool(options.get("overwrite")))  # as the programs do
    outcome = compress(given, output, settings, run=Run(say=said.append, **options))
    return dict(outcome.report), said


def ingests(said: list[str]) -> bool:
    return any(line.startswith("ingest ") for line in said)


def files(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def fail(source: Path, output: Path, settings: Any = CANNOT, **options: Any) -> list[str]:
    """Run a job that fails in its fit, which takes no time for scores and pictures; return what it said until then."""
    said: list[str] = []
    with pytest.raises(DataError, match=r"target_psnr.*\b45\b"):
        run(source, output, settings, said=said, **options)
    assert (output.parent / f"{output.name}.partial").is_dir()
    return said


def test_the_next_settings_take_over_what_a_fit_that_failed_had_ingested(made: Made, output: Path) -> None:
    assert ingests(fail(made.source, output))
    report, said = run(made.source, output, MORE)
    assert not ingests(said)
    assert any("ingested stack of a.npy" in line for line in said)
    assert list(report["stages"]) == ["start", "fit", "scores", "report"]
    assert list(made.report["stages"]) == ["start", "ingest", "fit", "scores", "report"]
    assert files(output) == files(made.more)
    assert verify(output) == []
    assert not output.with_name("out.zarr.partial").exists()


def test_what_a_killed_ingest_left_is_removed_when_the_job_goes_on(source: Path, output: Path) -> None:
    fail(source, output)
    left = next(output.with_name("out.zarr.partial").glob("store-*/stack")).with_name("stack.partial")
    left.mkdir()
    (left / "lock").touch()
    assert not ingests(fail(source, output))
    assert not left.exists()


def test_an_unfinished_job_that_holds_more_than_what_it_ingested_is_not_taken_over(
    source: Path, tmp_path: Path, output: Path
) -> None:
    fail(source, output)
    store = next((tmp_path / "out.zarr.partial").glob("store-*"))
    (store / "model").mkdir()
    before = files(tmp_path)
    with pytest.raises(StoreError, match="--overwrite"):
        run(source, output, MORE)
    assert files(tmp_path) == before
    assert not ingests(run(source, output, MORE, overwrite=True)[1])


@pytest.mark.parametrize("links", [True, False])
def test_replacing_a_finished_store_uses_its_stack_and_leaves_it_whole_until_the_end(
    made: Made, finished: Path, monkeypatch: pytest.MonkeyPatch, links: bool
) -> None:
    if not links:
        monkeypatch.setattr(os, "link", _no_links)
    fail(made.source, finished, overwrite=True)
    assert files(finished) == files(made.few)
    assert verify(finished) == []
    report, said = run(made.source, finished, MORE, overwrite=True)
    assert not ingests(said)
    assert "ingest" not in report["stages"]
    assert files(finished) == files(made.more)


def _no_links(source: Any, target: Any, link: Any = os.link, **options: Any) -> None:
    if "kept" in str(target):
        raise PermissionError(1, "Operation not permitted")
    link(source, target, **options)


def test_a_stack_that_nobody_asked_for_is_not_kept(made: Made, output: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings, publish = replace(MORE, keep_stack=False), Workspace.publish

    def stop(work: Workspace) -> None:
        if work.kind != "stack":
            raise KeyboardInterrupt
        publish(work)

    monkeypatch.setattr(Workspace, "publish", stop)
    with pytest.raises(KeyboardInterrupt):
        run(made.source, output, settings)
    monkeypatch.setattr(Workspace, "publish", publish)
    report, said = run(made.source, output, settings)
    assert not ingests(said)
    kept = {name: content for name, content in files(made.more).items() if not name.startswith("stack/")}
    assert files(output).keys() == kept.keys()
    assert {name for name in kept if files(output)[name] != kept[name]} == {"zarr.json"}
    assert verify(output) == []
    assert not output.with_name("out.zarr.partial").exists()
    assert report["bytes_given"] == made.source.stat().st_size
    assert report["bytes_decoded"] == 20 * 24 * 24 * 3
    sizes, sizes_with_stack = dict(report["bytes_written"]), dict(made.report["bytes_written"])
    for written in (sizes, sizes_with_stack):
        assert written.pop("total") == sum(written.values())
    assert sizes_with_stack.pop("stack") > 20 * 24 * 24 * 3
    assert sizes == sizes_with_stack
    assert run(made.source, output, settings)[0] == report
    assert report["settings"] == settings.as_dict()
    assert report["made_with"]["dpca"] == dpca.__version__
    stated = json.loads((output / "zarr.json").read_text())["attributes"]["dpca"]
    assert {name: stated[name] for name in ("job", "settings", "made_with")} == {
        name: report[name] for name in ("job", "settings", "made_with")
    }


def test_an_output_that_is_larger_than_its_input_says_so(source: Path, tmp_path: Path, output: Path) -> None:
    folder = photos(tmp_path / "photos")
    report, _ = run(folder, output, CompressionSettings(CellPCA(None, cell_shape=8)))
    assert report["bytes_given"] == sum(path.stat().st_size for path in folder.iterdir())
    assert [note for note in report["notes"] if note.startswith("the output has ") and "the input" in note]
    long = tmp_path / "long.npy"
    np.save(long, np.tile(np.load(source), (20, 1, 1, 1)))
    report, _ = run(long, tmp_path / "few.zarr", replace(FEW, keep_stack=False))
    assert report["bytes_given"] == long.stat().st_size
    assert not [note for note in report["notes"] if "the input" in note]


@pytest.mark.long
def test_other_cells_and_other_kinds_of_model_use_the_same_stack(source: Path, finished: Path) -> None:
    for settings in (
        CompressionSettings(CellPCA(2, cell_shape=5)),
        CompressionSettings(BandPCA(2, band_size=100)),
        CompressionSettings(StreamingPCA(3, random_state=0)),
        CompressionSettings(PCA(3, random_state=0)),
    ):
        report, said = run(source, finished, replace(settings, keep_stack=True), overwrite=True)
        assert not ingests(said)
        assert report["samples"] == 20
        assert verify(finished) == []


@pytest.mark.long
def test_reports_of_convergence_and_of_partitions_use_it_too(source: Path, finished: Path) -> None:
    given, said = open_input(source), list[str]()
    reading = ReadOptions()
    report_convergence(
        given,
        finished,
        ConvergenceSettings(("oja",), 2, 5, 2),
        reading=reading,
        run=Run(overwrite=True, say=said.append),
    )
    report_partitions(
        given,
        finished,
        PartitionSettings(cells=(8,), holistic=3, band_size=200, estimating=(10,)),
        reading=reading,
        run=Run(overwrite=True, say=said.append),
    )
    assert not ingests(said)
    assert any("ingested stack of a.npy" in line for line in said)


def photos(folder: Path) -> Path:
    folder.mkdir()
    for i, pixels in enumerate(smooth_images(9, (24, 24, 3))):
        Image.fromarray(pixels).save(folder / f"{i}.png")
    return folder


@pytest.fixture(scope="module")
def of_photos(tmp_path_factory: pytest.TempPathFactory, small_pictures: None) -> tuple[Path, Path]:
    """Photographs, and a finished store of them; not to be changed."""
    folder = tmp_path_factory.mktemp("photos")
    source = photos(folder / "photos")
    run(source, folder / "few.zarr", FEW)
    return source, folder / "few.zarr"


@pytest.mark.cases(1)
@pytest.mark.parametrize(
    "changes", [{"color": "gray"}, {"resize": (16, 16)}, {"crop": (20, 20)}, {"data_range": (0, 300)}], ids=str
)
def test_other_settings_of_ingest_make_another_stack(
    of_photos: tuple[Path, Path], output: Path, changes: dict[str, Any]
) -> None:
    source, store = of_photos
    _, said = run(source, copied(store, output), replace(FEW, reading=ReadOptions(**changes)), overwrite=True)
    assert ingests(said)
    assert not ingests(fail(source, output, replace(CANNOT, reading=ReadOptions(**changes)), overwrite=True))


def test_another_source_makes_another_stack(made: Made, finished: Path, tmp_path: Path) -> None:
    source = Path(shutil.copy2(made.source, tmp_path))
    assert find_done(open_input(source), finished, FEW) is not None
    np.save(source, smooth_images(20, (24, 24, 3), seed=1))
    assert ingests(fail(source, finished, overwrite=True))


def test_other_names_of_axes_make_another_stack(source: Path, finished: Path) -> None:
    named = CompressionSettings(StreamingPCA(2, random_state=0), axes=("z", "y", "x"), keep_stack=True)
    assert ingests(run(source, finished, named, overwrite=True)[1])
    assert open_stack(finished / "stack").axes == ("sample", "z", "y", "x")


def test_a_stack_without_some_samples_serves_only_who_accepts_that(tmp_path: Path, output: Path) -> None:
    source = photos(tmp_path / "photos")
    (source / "5.png").write_bytes(b"no image")
    run(source, output, replace(FEW, reading=ReadOptions(on_error="skip")))
    assert not ingests(fail(source, output, replace(CANNOT, reading=ReadOptions(on_error="skip")), overwrite=True))
    with pytest.raises(DataError, match=r"5\.png"):
        run(source, output, MORE, overwrite=True)


def lose_a_shard(stack: Path) -> None:
    next(p for p in (stack / "samples" / "c").rglob("*") if p.is_file()).unlink()


def flip_a_bit(stack: Path) -> None:
    shard = next(p for p in (stack / "samples" / "c").rglob("*") if p.is_file())
    content = bytearray(shard.read_bytes())
    content[100] ^= 4
    shard.write_bytes(bytes(content))


def tear_the_metadata(stack: Path) -> None:
    (stack / "samples" / "zarr.json").write_text("{")


def lose_the_names(stack: Path) -> None:
    (stack / "name" / "c" / "0").unlink()


def leave_it_unfinished(stack: Path) -> None:
    stack.rename(stack.with_name("stack.partial"))


DAMAGES = [lose_a_shard, flip_a_bit, tear_the_metadata, lose_the_names, leave_it_unfinished]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_stack_of_a_finished_store_that_is_not_whole_is_made_again(
    made: Made, finished: Path, damage: Callable[[Path], None]
) -> None:
    damage(finished / "stack")
    assert ingests(fail(made.source, finished, overwrite=True))
    (stack,) = finished.with_name("out.zarr.partial").glob("store-*/stack")
    assert files(stack) == files(made.more / "stack")


@pytest.mark.cases(2)
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_stack_of_an_unfinished_job_that_is_not_whole_is_made_again(
    made: Made, output: Path, damage: Callable[[Path], None]
) -> None:
    fail(made.source, output)
    damage(next(output.with_name("out.zarr.partial").glob("store-*/stack")))
    assert ingests(run(made.source, output, MORE, overwrite=True)[1])
    assert files(output) == files(made.more)


def test_a_target_that_needs_more_components_says_how_and_the_next_command_goes_on(
    source: Path, tmp_path: Path, scheduler: str, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["--source", str(source), "--output", str(tmp_path / "out.zarr"), "--scheduler", scheduler, "--cell", "8"]
    assert job([*argv, "--target-psnr", "45", "--max-components", "2"]) == 3
    error = capsys.readouterr().err
    assert re.search(r"--max-components K \(max_components=K\) above 2", error)
    assert job([*argv, "--target-psnr", "30", "--max-components", "16"]) == 0
    assert "ingest " not in capsys.readouterr().out.replace("ingested", "")
    report = json.loads((tmp_path / "out.report" / "report.json").read_text())
    assert "ingest" not in report["stages"]
