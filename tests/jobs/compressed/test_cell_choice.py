"""The choice of the cells of a compressed store."""

from __future__ import annotations

import math
import os
import signal
import threading
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest
from scipy.ndimage import gaussian_filter

from dpca import CellPCA, open_compressed
from dpca.cli import main
from dpca.codec.goal import Goal
from dpca.jobs import CompressionSettings, compress, encode_store
from dpca.jobs.compressed import cell_trial
from dpca.jobs.compressed.cell_choice import cells_in_words, cells_tried, choose_cells, reasons
from dpca.jobs.compressed.cell_trial import CellTrial
from dpca.report.record import read_report, report_folder
from dpca.storage import DataError, Stack, ingest
from dpca.storage.disk import folder_bytes
from dpca.storage.run import Run
from dpca.storage.survey import ReadOptions
from dpca.storage.transaction.markers import DoneMarkers

pytestmark = pytest.mark.usefixtures("small_pictures")
CELL = 8
LIKE = CellPCA(ratio=3.0, cell_shape=CELL, overlap=4, shared=True)


def images(kind: str) -> np.ndarray:
    rng = np.random.default_rng(0)
    if kind == "shared":  # every sample is another picture
        values = 150 * gaussian_filter(rng.normal(size=(96, 48, 48)), (0, 1, 1))
    else:  # a scene whose cells, or which as a whole, becomes lighter and darker
        grid = 1 if kind == "whole" else 3
        light, scene = rng.normal(0, 30, (640, grid, 1, grid, 1)), rng.normal(size=(grid, 24 // grid, grid, 24 // grid))
        values = (light * scene).reshape(640, 24, 24)
    return np.clip(128 + values + rng.normal(0, 2, values.shape), 0, 255).astype(np.uint8)


def stack_of(folder: Path, values: np.ndarray) -> Stack:
    np.save(folder / "values.npy", values)
    return ingest(folder / "values.npy", folder / "stack.zarr", reading=ReadOptions(data_range=(0, 255)))


@pytest.mark.cases(1)
@pytest.mark.parametrize("kind", ["shared", "own", "whole"])
def test_what_the_samples_have_in_common_decides(tmp_path: Path, kind: str) -> None:
    stack = stack_of(tmp_path, images(kind))
    chosen = choose_cells(stack, LIKE, Goal.of(psnr=32.0))
    assert chosen.parameters["shared"] is (kind == "shared")
    assert chosen.parameters["cell_shape"] == [24 if kind == "whole" else CELL] * 2
    tried = {cells_in_words(cells): cells["bytes"] for cells in chosen.tried}
    assert {cells_in_words(cells) for cells in cells_tried(LIKE, stack.sample_shape, ("y", "x"))} <= set(tried)
    least = min(tried, key=lambda cells: tried[cells] or np.inf)
    assert least in chosen.words[0]
    assert cells_in_words(chosen.parameters) == least
    # Where the memory is short, what fits decides.
    assert choose_cells(stack, LIKE, Goal.of(psnr=32.0), lambda cells: False).parameters["shared"]


def test_reasons_say_what_whole_samples_would_have_taken() -> None:
    cells, whole = ({"cell_shape": [n, n], "overlap": 0, "shared": n == 8} for n in (8, 24))
    told = reasons(cells, 100.0, [(cells, 100.0), (whole, math.inf)], Goal.of(psnr=36.0), [24, 24])
    assert told[1] == "components of whole samples cannot reach 36 dB"
    told = reasons(cells, 100.0, [(cells, 100.0), (whole, 240.0)], Goal.of(psnr=36.0), [24, 24])
    assert told == [
        "the smallest store of 2 kinds that were tried has cells of 8 x 8, shared components",
        "components of whole samples would make it about 2.4 times larger",
    ]


@pytest.mark.long
@pytest.mark.parametrize("kind", ["shared", "own"])
def test_with_a_ratio_the_least_error_decides(tmp_path: Path, kind: str) -> None:
    stack = stack_of(tmp_path, images(kind))
    assert choose_cells(stack, LIKE, Goal.of(ratio=6.0)).parameters["shared"] is (kind == "shared")


@pytest.mark.parametrize("kind", ["shared", pytest.param("whole", marks=pytest.mark.long)])
def test_the_same_stack_gets_the_same_cells_with_any_number_of_threads(tmp_path: Path, kind: str) -> None:
    stack, found = stack_of(tmp_path, images(kind)), []
    for threads in (1, 3):
        with dask.config.set(num_workers=threads):
            found.append(choose_cells(stack, LIKE, Goal.of(ssim=0.9)))
    assert found[0] == found[1]


def test_cells_that_another_thread_begins_take_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values = 300 * gaussian_filter(np.random.default_rng(0).normal(size=(48, 75, 75)), (0, 1, 1))
    stack = stack_of(tmp_path, np.clip(128 + values, 0, 255).astype(np.uint8))
    begun: list[tuple[bool, bool]] = []
    in_part = CellTrial._in_part

    def counted(trial: Any, grid: Any) -> Any:
        part = in_part(trial, grid)
        begun.append((grid.n_parts == 1, part is not None))
        return part

    monkeypatch.setattr(CellTrial, "_in_part", counted)
    found = choose_cells(stack, LIKE, Goal.of(psnr=36.0))
    assert begun == [(True, True), (False, True)]  # each once
    monkeypatch.setattr(CellTrial, "begin", lambda *given: None)
    assert choose_cells(stack, LIKE, Goal.of(psnr=36.0)) == found


def test_cells_that_wait_are_not_fitted_after_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stack, fitted, both = stack_of(tmp_path, images("shared")), [0], threading.Barrier(2, timeout=60)
    of_trials = CellTrial._trials

    def fails(trial: Any, *given: Any, shared: bool) -> Any:
        fitted[0] += 1
        if shared:
            both.wait()  # the other thread holds the second kind until the first one has failed
            if threading.current_thread() is threading.main_thread():
                raise KeyboardInterrupt
            ended.wait(60)
        return of_trials(trial, *given, shared=shared)

    ended, close = threading.Event(), CellTrial.close

    def closes(trial: Any) -> None:
        close(trial)
        ended.set()

    monkeypatch.setattr(CellTrial, "_trials", fails)
    monkeypatch.setattr(CellTrial, "close", closes)
    with pytest.raises(KeyboardInterrupt):
        choose_cells(stack, LIKE, Goal.of(psnr=32.0))
    assert fitted == [2]


class Stops:
    """Progress that ends the run after two kinds of cells."""

    def __init__(self, stage: str, total: int, unit: str) -> None:
        self.left = 2

    def advance(self, n: int) -> None:
        self.left -= 1
        if not self.left:
            raise KeyboardInterrupt

    def close(self) -> None:
        pass


@pytest.mark.parametrize("goal", [{"psnr": 32.0}, {"ssim": 0.8}, {"max_error": 9.0}], ids=str)
def test_a_resumed_choice_keeps_what_it_has_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, goal: dict[str, float]
) -> None:
    stack = stack_of(tmp_path, images("own")[:80])
    whole, kept = choose_cells(stack, LIKE, Goal.of(**goal)), tmp_path / "kept"
    kept.mkdir()
    with pytest.raises(KeyboardInterrupt):
        choose_cells(stack, LIKE, Goal.of(**goal), run=Run(progress=Stops), kept=DoneMarkers(kept, kept))
    tried: list[tuple[int, ...]] = []
    init = cell_trial.Trials.__init__

    def counted(self: Any, source: Any, components: Any, *rest: Any, **named: Any) -> None:
        tried.append(components.grid.cell_shape)
        init(self, source, components, *rest, **named)

    monkeypatch.setattr(cell_trial.Trials, "__init__", counted)
    assert choose_cells(stack, LIKE, Goal.of(**goal), kept=DoneMarkers(kept, kept)) == whole
    assert tried == [(CELL, CELL)] * 2  # not the shared cells and the whole samples that were tried before


def test_a_command_that_is_terminated_while_it_chooses_keeps_what_it_has_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], scheduler: str
) -> None:
    """Its first line comes before it reads samples."""
    np.save(tmp_path / "movie.npy", images("own")[:200])
    read, cost, encoded = CellTrial.__init__, CellTrial.cost, CellTrial._encoded
    said: list[str] = []
    tried: list[tuple[tuple[int, ...], bool]] = []
    signals = [signal.SIGTERM]

    def reads(trial: Any, *given: Any) -> None:
        said.append(capsys.readouterr().out)
        read(trial, *given)

    def encodes(trial: Any, grid: Any, *, shared: bool) -> Any:
        tried.append((grid.cell_shape, shared))
        return encoded(trial, grid, shared=shared)

    def stops_after_two(trial: Any, parameters: Any) -> Any:
        found = cost(trial, parameters)
        if len(tried) == 2 and signals:
            os.kill(os.getpid(), signals.pop())
        return found

    monkeypatch.setattr(CellTrial, "__init__", reads)
    monkeypatch.setattr(CellTrial, "_encoded", encodes)
    monkeypatch.setattr(CellTrial, "cost", stops_after_two)

    def chosen(output: str, code: int) -> Any:
        said.clear()
        tried.clear()
        command = ["compress", str(tmp_path / "movie.npy"), str(tmp_path / output), "--scheduler", scheduler]
        assert main(command) == code
        if code:
            return None
        report = read_report(report_folder(str(tmp_path / output)))
        assert report is not None
        of_the_store = {"overlap": 0, "shared": False} | report
        assert report["cells_chosen"] == {name: of_the_store[name] for name in ("cell_shape", "overlap", "shared")}
        assert (report["cells_chosen"]["shared"], report["settings"]["model"]["shared"]) == (False, True)
        return report["cells_tried"]

    chosen("out.zarr", 143)
    assert "choose cells: " in said[0].splitlines()[-1]
    before = tried.copy()
    assert "same command resumes" in capsys.readouterr().err
    assert not (tmp_path / "out.zarr").exists()
    resumed = chosen("out.zarr", 0)
    assert tried
    assert not {*before} & {*tried}
    after = tried.copy()
    assert resumed == chosen("whole.zarr", 0)
    assert tried == before + after


def test_cells_fit_the_samples() -> None:
    shared, whole, own = cells_tried(LIKE, (40, 30, 20), ("z", "y", "x"))
    assert (shared["cell_shape"], shared["overlap"], own["overlap"]) == ([4, 4, 4], 2, 0)
    assert whole["cell_shape"] == [40, 30, 20]
    assert cells_tried(LIKE, (6, 5, 3), ("y", "x", "channel")) == [
        {"cell_shape": [6, 5], "overlap": 0, "shared": False}
    ]


@pytest.mark.long
def test_a_job_chooses_cells_and_takes_as_many_components_as_its_goal_does(tmp_path: Path) -> None:
    values = images("own")[:90]
    stack = stack_of(tmp_path, values)
    told: list[str] = []

    def job(name: str, **how: Any) -> dict[str, Any]:
        settings = CompressionSettings(goal={"psnr": 36.0}, **how)
        return dict(compress(stack, tmp_path / name, settings, run=Run(say=told.append)).report)

    chosen = job("chosen.zarr", model=LIKE, choose_cells=True)
    assert list(chosen["stages"]) == ["start", "choose cells", "fit", "encode", "report"]
    assert any("cells of 8 x 8, own components" in note for note in chosen["notes"])
    assert chosen["cells_chosen"] == {"cell_shape": [8, 8], "overlap": 0, "shared": False}
    assert {"cell_shape": [8, 8], "overlap": 0, "shared": False} in [
        {name: value for name, value in cells.items() if name != "bytes"} for cells in chosen["cells_tried"]
    ]
    told.clear()
    wider = job("wider.zarr", model=CellPCA(1, cell_shape=12))
    assert "choose cells" not in wider["stages"]
    assert any("fit up to 2" in line for line in told)
    for name in ("chosen", "wider"):
        error = open_compressed(tmp_path / f"{name}.zarr")[...].astype(float) - values
        assert -10 * np.log10(np.square(error / 255).mean()) > 35.9
    with pytest.raises(DataError, match="choose_cells"):
        compress(stack, tmp_path / "none.zarr", CompressionSettings(LIKE, choose_cells=True))


def test_own_components_of_noise_are_given_up_after_some_cells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stack = stack_of(tmp_path, images("shared"))
    tried: list[tuple[int, ...]] = []
    init = cell_trial.Trials.__init__

    def counted(self: Any, source: Any, components: Any, *rest: Any, **named: Any) -> None:
        tried.append((*components.grid.sample_shape, len(components.rows)))
        init(self, source, components, *rest, **named)

    monkeypatch.setattr(cell_trial.Trials, "__init__", counted)
    choose_cells(stack, LIKE, Goal.of(psnr=32.0))
    # Twice shared, whole, and some own. Threads decide about the order.
    assert sorted(tried) == [(48, 48, 1)] * 3 + [(16 * CELL, CELL, 16)]


@pytest.mark.parametrize("alike", [True, False])
def test_whole_samples_are_fitted_to_some_values_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, alike: bool
) -> None:
    rng = np.random.default_rng(0)
    scenes = gaussian_filter(rng.normal(size=(3 if alike else 64, 75, 75)), (0, 1, 1))
    values = 100 * np.tensordot(rng.normal(size=(64, 3)), scenes, 1) if alike else 300 * scenes
    stack = stack_of(tmp_path, np.clip(128 + values + rng.normal(0, 2, values.shape), 0, 255).astype(np.uint8))
    fitted: list[tuple[int, ...]] = []
    own = cell_trial.own_components

    def counted(grid: Any, *rest: Any) -> Any:
        fitted.append(grid.sample_shape)
        return own(grid, *rest)

    monkeypatch.setattr(cell_trial, "own_components", counted)
    monkeypatch.setattr(cell_trial, "_OWN_VALUES", 1)  # 16 components of whole samples at most
    chosen = choose_cells(stack, LIKE, Goal.of(psnr=36.0))
    assert fitted[0] == (25, 25)
    assert ((75, 75) in fitted) is alike
    whole = next(cells for cells in chosen.tried if cells["cell_shape"] == [75, 75])
    assert bool(whole["bytes"]) is alike


@pytest.mark.parametrize("kind", ["shared", "own"])
def test_expected_bytes_are_near_those_of_stores(tmp_path: Path, kind: str) -> None:
    stack = stack_of(tmp_path, images(kind)[:96])
    for tried in choose_cells(stack, LIKE, Goal.of(psnr=36.0)).tried:
        if not (tried["shared"] and tried["bytes"]):
            continue  # others are only estimated where they are not the smallest, and too low then
        model = CellPCA(**{name: tried[name] for name in ("cell_shape", "overlap", "shared")}).fit(stack)
        name = f"{tried['overlap']}.zarr"
        model.save(tmp_path / "model.zarr", overwrite=True)
        encode_store(stack, tmp_path / "model.zarr", tmp_path / name, psnr=36.0)
        assert tried["bytes"] == pytest.approx(folder_bytes(tmp_path / name), rel=0.15)
