"""What was ingested serves any later job on the same source."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from dpca import PCA, BandPCA, CellPCA, StreamingPCA
from dpca.jobs import (
    CompressionSettings,
    compress,
    find_done,
    open_input,
)
from pipelines.celeba_cpca import main as job
from pipelines.studies.convergence.study import ConvergenceSettings, report_convergence
from pipelines.studies.partitions import PartitionSettings, report_partitions
from storage import open_stack, verify
from storage.errors import DataError, StoreError
from tests.conftest import smooth_images

pytestmark = pytest.mark.usefixtures("small_pictures")

FEW = CompressionSettings(CellPCA(2, cell_shape=8))
MORE = CompressionSettings(CellPCA(3, cell_shape=8))
CANNOT = CompressionSettings(CellPCA(target_psnr=45.0, max_components=1, cell_shape=8))


@pytest.fixture
def source(tmp_path: Path) -> Path:
    np.save(tmp_path / "a.npy", smooth_images(20, (24, 24, 3)))
    return tmp_path / "a.npy"


def run(source: Any, output: Path, settings: Any, **options: Any) -> tuple[dict[str, Any], list[str]]:
    said: list[str] = []
    given = open_input(source, axes=settings.axes)
    find_done(given, output, settings, overwrite=bool(options.get("overwrite")))  # as the programs do
    outcome = compress(given, output, settings, say=said.append, **options)
    return dict(outcome.report), said


def ingests(said: list[str]) -> bool:
    return any(line.startswith("ingest ") for line in said)


def files(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def fail(source: Path, output: Path) -> None:
    with pytest.raises(DataError, match="target_psnr is 45"):
        run(source, output, CANNOT)
    assert (output.parent / f"{output.name}.partial").is_dir()


def test_the_next_settings_take_over_what_a_fit_that_failed_had_ingested(source: Path, tmp_path: Path) -> None:
    fail(source, tmp_path / "out.zarr")
    report, said = run(source, tmp_path / "out.zarr", MORE)
    assert not ingests(said)
    assert "found the 20 samples of a.npy ingested" in said
    assert list(report["stages"]) == ["fit", "scores"]
    calm, said = run(source, tmp_path / "calm.zarr", MORE)
    assert ingests(said)
    assert list(calm["stages"]) == ["ingest", "fit", "scores"]
    assert files(tmp_path / "out.zarr") == files(tmp_path / "calm.zarr")
    assert verify(tmp_path / "out.zarr") == []
    assert not (tmp_path / "out.zarr.partial").exists()


def test_an_unfinished_job_that_holds_more_than_what_it_ingested_is_not_taken_over(
    source: Path, tmp_path: Path
) -> None:
    fail(source, tmp_path / "out.zarr")
    store = next((tmp_path / "out.zarr.partial").glob("store-*"))
    (store / "model").mkdir()
    before = files(tmp_path)
    with pytest.raises(StoreError, match="--overwrite"):
        run(source, tmp_path / "out.zarr", MORE)
    assert files(tmp_path) == before
    assert not ingests(run(source, tmp_path / "out.zarr", MORE, overwrite=True)[1])


@pytest.mark.parametrize("links", [True, False])
def test_replacing_a_finished_store_uses_its_stack_and_leaves_it_whole_until_the_end(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, links: bool
) -> None:
    run(source, tmp_path / "out.zarr", FEW)
    old = files(tmp_path / "out.zarr")
    if not links:
        monkeypatch.setattr(os, "link", _no_links)
    with pytest.raises(DataError, match="target_psnr is 45"):
        run(source, tmp_path / "out.zarr", CANNOT, overwrite=True)
    assert files(tmp_path / "out.zarr") == old
    assert verify(tmp_path / "out.zarr") == []
    report, said = run(source, tmp_path / "out.zarr", MORE, overwrite=True)
    assert not ingests(said)
    assert "ingest" not in report["stages"]
    run(source, tmp_path / "calm.zarr", MORE)
    assert files(tmp_path / "out.zarr") == files(tmp_path / "calm.zarr")


def _no_links(source: Any, target: Any, link: Any = os.link, **options: Any) -> None:
    if "kept" in str(target):
        raise PermissionError(1, "Operation not permitted")
    link(source, target, **options)


def test_other_cells_and_other_kinds_of_model_use_the_same_stack(source: Path, tmp_path: Path) -> None:
    run(source, tmp_path / "out.zarr", FEW)
    for settings in (
        CompressionSettings(CellPCA(2, cell_shape=5)),
        CompressionSettings(BandPCA(2, band_size=100)),
        CompressionSettings(StreamingPCA(3, random_state=0)),
        CompressionSettings(PCA(3, random_state=0)),
    ):
        report, said = run(source, tmp_path / "out.zarr", settings, overwrite=True)
        assert not ingests(said)
        assert report["samples"] == 20
        assert verify(tmp_path / "out.zarr") == []


def test_reports_of_convergence_and_of_partitions_use_it_too(source: Path, tmp_path: Path) -> None:
    run(source, tmp_path / "out.zarr", FEW)
    given, said = open_input(source), list[str]()
    reading = {"color": "auto", "resize": None, "crop": None, "on_error": "stop", "data_range": None}
    report_convergence(
        given,
        tmp_path / "out.zarr",
        ConvergenceSettings(("oja",), 2, 5, 2),
        reading=reading,
        overwrite=True,
        say=said.append,
    )
    report_partitions(
        given,
        tmp_path / "out.zarr",
        PartitionSettings(cells=(8,), holistic=3, band_size=200, estimating=(10,)),
        reading=reading,
        overwrite=True,
        say=said.append,
    )
    assert not ingests(said)
    assert "found the 20 samples of a.npy ingested" in said


def photos(folder: Path, broken: bool = False) -> Path:
    folder.mkdir()
    for i, pixels in enumerate(smooth_images(9, (24, 24, 3))):
        Image.fromarray(pixels).save(folder / f"{i}.png")
    if broken:
        (folder / "5.png").write_bytes(b"no image")
    return folder


@pytest.mark.parametrize(
    "changes", [{"color": "grey"}, {"resize": (16, 16)}, {"crop": (20, 20)}, {"data_range": (0, 300)}], ids=str
)
def test_other_settings_of_ingest_make_another_stack(tmp_path: Path, changes: dict[str, Any]) -> None:
    source = photos(tmp_path / "photos")
    run(source, tmp_path / "out.zarr", FEW)
    _, said = run(source, tmp_path / "out.zarr", replace(FEW, **changes), overwrite=True)
    assert ingests(said)
    _, said = run(source, tmp_path / "out.zarr", replace(MORE, **changes), overwrite=True)
    assert not ingests(said)


def test_another_source_makes_another_stack(source: Path, tmp_path: Path) -> None:
    run(source, tmp_path / "out.zarr", FEW)
    np.save(source, smooth_images(20, (24, 24, 3), seed=1))
    assert ingests(run(source, tmp_path / "out.zarr", FEW, overwrite=True)[1])


def test_other_names_of_axes_make_another_stack(source: Path, tmp_path: Path) -> None:
    run(source, tmp_path / "out.zarr", FEW)
    named = CompressionSettings(StreamingPCA(2, random_state=0), axes=("z", "y", "x"))
    assert ingests(run(source, tmp_path / "out.zarr", named, overwrite=True)[1])
    assert open_stack(tmp_path / "out.zarr" / "stack").axes == ("sample", "z", "y", "x")


def test_a_stack_without_some_samples_serves_only_who_accepts_that(tmp_path: Path) -> None:
    source = photos(tmp_path / "photos", broken=True)
    skipping = replace(FEW, on_error="skip")
    run(source, tmp_path / "out.zarr", skipping)
    assert not ingests(run(source, tmp_path / "out.zarr", replace(MORE, on_error="skip"), overwrite=True)[1])
    with pytest.raises(DataError, match=r"5\.png"):
        run(source, tmp_path / "out.zarr", MORE, overwrite=True)


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


@pytest.mark.parametrize("damage", [lose_a_shard, flip_a_bit, tear_the_metadata, lose_the_names, leave_it_unfinished])
@pytest.mark.parametrize("finished", [True, False])
def test_a_stack_that_is_not_whole_is_made_again(
    source: Path, tmp_path: Path, damage: Callable[[Path], None], finished: bool
) -> None:
    if finished:
        run(source, tmp_path / "out.zarr", FEW)
        damage(tmp_path / "out.zarr" / "stack")
    else:
        fail(source, tmp_path / "out.zarr")
        damage(next((tmp_path / "out.zarr.partial").glob("store-*/stack")))
    _, said = run(source, tmp_path / "out.zarr", MORE, overwrite=True)
    assert ingests(said)
    run(source, tmp_path / "calm.zarr", MORE)
    assert files(tmp_path / "out.zarr") == files(tmp_path / "calm.zarr")


def test_a_target_that_needs_more_components_says_how_and_the_next_command_goes_on(
    source: Path, tmp_path: Path, scheduler: str, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["--source", str(source), "--output", str(tmp_path / "out.zarr"), "--scheduler", scheduler, "--cell", "8"]
    assert job([*argv, "--target-psnr", "45", "--max-components", "2"]) == 3
    error = capsys.readouterr().err
    assert re.search(r"raise --max-components K \(max_components=K\) above 2", error)
    assert job([*argv, "--target-psnr", "30", "--max-components", "16"]) == 0
    assert "ingest " not in capsys.readouterr().out.replace("ingested", "")
    report = json.loads((tmp_path / "out.report" / "report.json").read_text())
    assert "ingest" not in report["stages"]
