"""Trials of an encoding: the step that is expected to leave an error leaves it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy.ndimage import gaussian_filter

from dpca import CellPCA
from dpca.codec import expected
from dpca.codec.cells import Components
from dpca.codec.goal import Goal, UnreachedError
from dpca.codec.quantized import KeptRows
from dpca.engine.sources.source import as_source
from dpca.jobs.compressed.encode import stated_facts
from dpca.jobs.compressed.encode_trials import Trials, cell_components
from dpca.storage import ingest
from dpca.storage.survey import ReadOptions


def trials(folder: Path, n_components: int, dtype: str, overlap: int, waves: bool) -> Trials:
    rng = np.random.default_rng(1)
    smooth = (4 if waves else 0, 2, 2)
    values = 500 * gaussian_filter(rng.normal(size=(64, 30, 36)), smooth) + rng.normal(0, 2, (64, 30, 36))
    values = np.clip(128 + values, 0, 255).astype(dtype)
    np.save(folder / "values.npy", values)
    stack = ingest(folder / "values.npy", folder / "stack.zarr", reading=ReadOptions(data_range=(0, 255)))
    model = CellPCA(n_components, cell_shape=8, overlap=overlap, shared=True).fit(stack)
    return Trials(as_source(stack), cell_components(model), stated_facts(stack, model.grid_, Goal("psnr", 32.0)))


@pytest.mark.pairwise
@pytest.mark.parametrize("waves", [False, True])
@pytest.mark.parametrize("overlap", [0, 4])
@pytest.mark.parametrize("dtype", ["uint8", "float32"])
def test_the_expected_step_leaves_the_error(tmp_path: Path, dtype: str, overlap: int, waves: bool) -> None:
    of = trials(tmp_path, 64, dtype, overlap, waves)
    assert of.waves is waves
    for psnr in (36.0, 42.0):
        allowed = 10 ** (-psnr / 10)
        codec = of.codec(of.at(of.step_for(allowed)))
        decoded = codec.decode(codec.of_samples(codec.encode(of.samples, np.int32)))
        error = np.square((of.samples.astype(float) - np.clip(decoded, 0, 255)) / 255).mean()
        assert -10 * np.log10(error) == pytest.approx(psnr, abs=0.5)


def test_too_few_components_are_not_expected_to_leave_a_small_error(tmp_path: Path) -> None:
    with pytest.raises(UnreachedError):
        trials(tmp_path, 2, "uint8", 0, False).step_for(1e-6)


def test_the_error_of_quantized_components_is_expected(tmp_path: Path) -> None:
    """Each of 20 cells has its own components, so their values are as many as a quarter of those of the samples."""
    rng = np.random.default_rng(2)
    values = gaussian_filter(rng.normal(size=(64, 32, 40)), (0, 2, 2)).astype(np.float32)
    np.save(tmp_path / "values.npy", values)
    stack = ingest(tmp_path / "values.npy", tmp_path / "stack.zarr", reading=ReadOptions(data_range=(-1, 1)))
    model = CellPCA(16, cell_shape=8).fit(stack)
    of = Trials(as_source(stack), cell_components(model), stated_facts(stack, model.grid_, Goal("psnr", 32.0)))
    for step in (0.1, 0.2):
        codec = of.codec(of.at(step))
        error = np.square(of.samples - codec.decode(codec.encode(of.samples, np.int32))).mean() / 4
        assert of.expectation.at(step).error / values[0].size == pytest.approx(error, rel=0.05)


def test_no_step_is_estimated_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    of, steps = trials(tmp_path, 64, "uint8", 4, False), list[float]()
    kept = expected.rows_kept

    def counted(components: Components, scores: np.ndarray, step: float, n_samples: int) -> KeptRows:
        steps.append(step)
        return kept(components, scores, step, n_samples)

    monkeypatch.setattr(expected, "rows_kept", counted)
    of.step_for(1e-4)  # two searches, and the second begins where the first one ends
    found = of.expected_step(1e-4, 8.0)
    assert 2 < len(steps) == len(set(steps)) < 9
    assert of.expectation.at(found).error == pytest.approx(1e-4 * 30 * 36, rel=0.02)


def test_components_of_one_cell_are_those_of_all_cells(tmp_path: Path) -> None:
    values = np.random.default_rng(3).normal(size=(90, 21, 19)).astype(np.float32)
    for model in (CellPCA(12, cell_shape=8, overlap=4, shared=True), CellPCA(12, cell_shape=8, shared=True)):
        model.fit(values)
        found, every = cell_components(model), model.grid_.all_parts(model.components_)
        for cell, rows in enumerate(every):
            np.testing.assert_allclose(found.rows[found.group[cell]], rows, atol=1e-6)
