"""Bands of few large samples, by blocks of attributes: the model of whole samples, and no task holds one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
import zarr
from sklearn.decomposition import PCA

from dpca import BandPCA
from dpca.engine.folds.rehearsal import Workers, rehearsing
from dpca.engine.sources.source import as_source
from dpca.jobs import reconstruct_store, transform_store
from dpca.models.cells import bands_by_blocks
from dpca.storage.errors import PlanError
from dpca.storage.run import Run
from dpca.storage.stack import open_stack
from dpca.storage.transaction.checkpoints import Checkpoints
from tests.helpers.patterned import patterned

SHAPE = (40, 90)


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let all samples count as large, and be read in several blocks."""
    monkeypatch.setattr(bands_by_blocks, "LARGE_SAMPLE", 0)
    monkeypatch.setattr("dpca.models.base.attribute_blocks._SHORT_TASK", 2**12)


def stored(folder: Path, x: Any, chunks: tuple[int, ...]) -> str:
    zarr.create_array(str(folder / "x.zarr"), data=x, chunks=chunks, overwrite=True)
    return str(folder / "x.zarr")


@pytest.mark.cases(4)
@pytest.mark.parametrize("dtype", ["uint8", "int16", "float32", "float64"])
@pytest.mark.parametrize("mapping", ["random", "raster", "mean", "mean-variance"])
@pytest.mark.usefixtures("large")
def test_every_band_is_the_pca_of_its_attributes(tmp_path: Path, dtype: str, mapping: str) -> None:
    x = patterned(9, SHAPE, dtype, 2)
    path = stored(tmp_path, x, (2, 16, 40))
    model = BandPCA(3, band_size=130, mapping=mapping, n_intervals=3, random_state=0).fit(path, run=Run(threads=2))
    assert "blocks of attributes" in model.fit_report_.note
    assert int(model.fit_report_.note.split()[0]) > 1
    labels, values = model.bands_.labels, x.astype(float)
    kept = sum(array.nbytes for array in (labels, model.components_, model.mean_))
    by_moments = 52 * labels.size if "mean" in mapping else 0
    assert model.fit_report_.plan.caller_bytes >= max(kept, by_moments)
    for band in range(model.bands_.n_parts):
        mine = labels == band
        rows = values[:, mine]
        k = min(3, rows.shape[1])
        expected = PCA(k, svd_solver="full").fit(rows)
        np.testing.assert_allclose(model.explained_variance_[band, :k], expected.explained_variance_, rtol=1e-9)
        assert model.total_variance_[band] == pytest.approx(rows.var(axis=0, ddof=1).sum(), rel=1e-9)
        np.testing.assert_allclose(model.mean_[mine], rows.mean(axis=0), rtol=1e-12, atol=1e-12)
        found = model.components_[:k, mine].astype(float)
        np.testing.assert_allclose(found @ found.T, np.eye(k), atol=2e-6)
        np.testing.assert_allclose(np.abs(found @ expected.components_.T), np.eye(k), atol=2e-5)


@pytest.mark.usefixtures("large")
def test_moments_and_bands_are_those_of_whole_samples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x = patterned(9, SHAPE, "float32", 2)
    path = stored(tmp_path, x, (1, 7, 90))
    options: Any = {"band_size": 64, "random_state": 0, "n_intervals": 4}
    model = BandPCA(2, **options).fit(path)
    monkeypatch.setattr(bands_by_blocks, "LARGE_SAMPLE", 2**40)
    other = BandPCA(2, **options).fit(path)
    np.testing.assert_array_equal(model.bands_.labels, other.bands_.labels)
    np.testing.assert_allclose(model.explained_variance_, other.explained_variance_, rtol=1e-9)
    np.testing.assert_allclose(model.mean_, other.mean_, rtol=1e-12)


@pytest.mark.usefixtures("large")
def test_small_memory_is_enough_also_if_samples_are_not_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x = patterned(6, (300, 1100), "uint8", 2)
    path, options = stored(tmp_path, x, (1, 50, 550)), {"band_size": 5000, "mapping": "random", "random_state": 0}
    run = Run(threads=1, memory=27 * 2**20)
    model = BandPCA(2, **options).fit(path, run=run)
    assert model.fit_report_.plan.task_bytes <= 27 * 2**20
    monkeypatch.setattr(bands_by_blocks, "LARGE_SAMPLE", 2**40)
    again = BandPCA(2, **options).fit(path, run=run)
    assert "blocks of attributes" in again.fit_report_.note
    np.testing.assert_array_equal(again.components_, model.components_)
    whole = BandPCA(2, **options).fit(path)
    assert "blocks of attributes" not in whole.fit_report_.note
    np.testing.assert_allclose(whole.explained_variance_, model.explained_variance_, rtol=1e-9)
    with pytest.raises(PlanError, match="allow"):
        BandPCA(2, **options).fit(path, run=Run(threads=1, memory=24 * 2**20))


@pytest.mark.usefixtures("large")
def test_directions_without_variance_have_no_component() -> None:
    x = patterned(7, SHAPE, "uint8", 2)
    x[:, :20] = 5
    model = BandPCA(6, band_size=90, mapping="raster").fit(x)
    assert set(model.ranks_[:20]) == {0}
    assert set(model.ranks_[20:]) == {6}
    assert not model.explained_variance_[:20].any()
    np.testing.assert_allclose(model.inverse_transform(model.transform(x)), x, atol=1e-3)
    assert np.isfinite(model.score(x))
    x[1:] = x[0]
    assert not BandPCA(2, band_size=90, mapping="raster").fit(x).components_.any()
    rng = np.random.default_rng(0)
    line = rng.normal(size=(9, 1, 1)) * rng.normal(size=SHAPE) + 7  # rounding errors are no direction
    model = BandPCA(4, band_size=90, mapping="raster").fit(line)
    assert set(model.ranks_) == {1}
    assert not model.components_[1:].any()
    assert not model.explained_variance_[:, 1:].any()


@pytest.mark.parametrize(
    "choice",
    [
        {"threshold": 0.7},
        {"total_components": 60},
        {"target_mse": 0.001},
        {"n_components": "marchenko-pastur"},
        {"target_mse": 0.002, "validation_fraction": 0.3},
    ],
)
@pytest.mark.usefixtures("large")
def test_the_number_of_components_may_follow_from_the_samples(
    choice: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    x = patterned(9, SHAPE, "uint8", 2)
    options: Any = {"band_size": 100, "mapping": "random", "random_state": 0, **choice}
    model = BandPCA(**options).fit(x)
    monkeypatch.setattr(bands_by_blocks, "LARGE_SAMPLE", 2**40)
    other = BandPCA(**options).fit(x)
    np.testing.assert_array_equal(model.ranks_, other.ranks_)
    np.testing.assert_allclose(model.explained_variance_, other.explained_variance_, rtol=1e-9)
    assert model.target_numbers().get("reached") == pytest.approx(other.target_numbers().get("reached"))


@pytest.mark.usefixtures("large")
def test_plans_and_rehearsals_have_the_size_of_the_model(tmp_path: Path) -> None:
    x = da.from_array(patterned(9, SHAPE, "uint8", 2), chunks=(3, 20, 90))
    model = BandPCA(2, band_size=100, mapping="random", random_state=0)
    path = stored(tmp_path, x.compute(), (1, 20, 90))
    with rehearsing(Workers(2, 2, 2**30), str(tmp_path)) as found:
        model.fit(path)
    assert found.costs
    fitted = BandPCA(2, band_size=100, mapping="random", random_state=0).fit(x)
    assert model.components_.shape == fitted.components_.shape
    np.testing.assert_array_equal(model.bands_.labels, fitted.bands_.labels)


@pytest.mark.usefixtures("large")
def test_checkpoints_and_threads_make_the_same_model(tmp_path: Path) -> None:
    path = stored(tmp_path, patterned(9, SHAPE, "float32", 2), (1, 7, 90))
    options: Any = {"band_size": 64, "random_state": 0}
    first = BandPCA(2, **options).fit(path, run=Run(threads=1))
    kept = Run(threads=2, checkpoints=Checkpoints(str(tmp_path / "kept")))
    for _ in range(2):
        again = BandPCA(2, **options).fit(path, run=kept)
        np.testing.assert_allclose(again.components_, first.components_, atol=1e-6)


@pytest.mark.usefixtures("large")
def test_workers_read_the_bands_from_a_store(tmp_path: Path, cluster: Any) -> None:
    path = stored(tmp_path, patterned(9, SHAPE, "uint8", 2), (1, 7, 90))
    options: Any = {"band_size": 64, "mapping": "random", "random_state": 0}
    expected = BandPCA(2, **options).fit(path, run=Run(threads=1))
    found = BandPCA(2, **options).fit(path, run=Run(client=cluster))
    np.testing.assert_allclose(found.components_, expected.components_, atol=1e-6)
    np.testing.assert_allclose(found.explained_variance_, expected.explained_variance_, rtol=1e-9)


@pytest.fixture
def boxes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let all samples be encoded and decoded in several boxes."""
    monkeypatch.setattr("dpca.representation.by_blocks.LARGE_SAMPLE", 0)
    monkeypatch.setattr("dpca.representation.by_blocks._TASK_BYTES", 2**15)
    monkeypatch.setattr("dpca.representation.linear._READ_FEATURES", 2**12)


@pytest.mark.parametrize(("dtype", "options"), [("uint8", {}), ("float64", {"weights": np.linspace(0, 2, 90)})])
@pytest.mark.usefixtures("boxes")
def test_scores_and_samples_by_boxes_are_those_in_memory(tmp_path: Path, dtype: str, options: dict[str, Any]) -> None:
    x = patterned(9, SHAPE, dtype, 2)
    if options:
        options = {"weights": np.broadcast_to(options["weights"], SHAPE)}
    path = stored(tmp_path, x, (2, 16, 40))
    model = BandPCA(3, band_size=130, n_intervals=3, **options).fit(path)
    expected = model.transform(x)
    assert expected.shape == (9, model.bands_.n_parts, 3)
    for given in (path, da.from_array(x, chunks=(4, 10, 30))):
        scores = model.transform(given)
        assert isinstance(scores, da.Array)
        assert scores.dtype == expected.dtype
        np.testing.assert_allclose(scores, expected, rtol=1e-4, atol=1e-4)
    samples = model.inverse_transform(da.from_array(expected))
    assert len(samples.chunks[1]) * len(samples.chunks[2]) > 1
    np.testing.assert_allclose(samples, model.inverse_transform(expected), rtol=1e-5, atol=1e-4)
    few = model.inverse_transform(da.from_array(expected[..., :1]), 1)
    np.testing.assert_allclose(few, model.inverse_transform(expected[..., :1], 1), rtol=1e-5, atol=1e-4)


@pytest.mark.usefixtures("boxes", "large")
def test_components_on_disk_are_those_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x = patterned(9, SHAPE, "uint8", 2)
    path = stored(tmp_path, x, (2, 16, 40))
    options: Any = {"band_size": 130, "mapping": "random", "random_state": 0}
    other = BandPCA(3, **options).fit(path)
    monkeypatch.setattr(bands_by_blocks, "MOST_BYTES", 0)
    model = BandPCA(3, **options).fit(path)
    assert isinstance(model.components_, da.Array)
    for name in ("components_", "mean_", "explained_variance_", "total_variance_", "ranks_"):
        np.testing.assert_array_equal(np.asarray(getattr(model, name)), getattr(other, name))
    saved = str(tmp_path / "model.zarr")
    model.save(saved)
    expected = other.transform(x)
    for one in (model, BandPCA.load(saved)):
        np.testing.assert_allclose(one.transform(x), expected, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(one.transform(path), expected, rtol=1e-4, atol=1e-4)
        back = other.inverse_transform(expected)
        np.testing.assert_allclose(one.inverse_transform(expected), back, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(one.inverse_transform(da.from_array(expected)), back, rtol=1e-4, atol=1e-4)
        assert one.score(x) == pytest.approx(other.score(x), rel=1e-6)


@pytest.mark.usefixtures("large")
def test_stores_of_scores_are_made_by_boxes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x = patterned(5, SHAPE, "uint8", 2)
    path, results = stored(tmp_path, x, (1, 16, 40)), []
    BandPCA(3, band_size=130, mapping="random", random_state=0).fit(path).save(str(tmp_path / "model.zarr"))
    stack = open_stack(path, data_range=(0, 255))
    for name in ("whole", "boxes"):
        scores, again = (str(tmp_path / f"{name}-{what}.zarr") for what in ("scores", "again"))
        transform_store(stack, str(tmp_path / "model.zarr"), scores)
        reconstruct_store(str(tmp_path / "model.zarr"), scores, again)
        results.append([zarr.open_group(scores)["scores"][:], open_stack(again).samples[:]])
        monkeypatch.setattr("dpca.jobs.scores.boxes.LARGE_SAMPLE", 0)
        monkeypatch.setattr("dpca.jobs.scores.boxes._LEAST_BOX", 2**9)
        monkeypatch.setattr("dpca.jobs.scores.boxes._BOX_BYTES", 2**14)
    np.testing.assert_allclose(results[0][0], results[1][0], rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(results[0][1], results[1][1])


@pytest.mark.parametrize("weights", [np.linspace(0.5, 2, 90), np.linspace(0, 2, 90)], ids=["positive", "some 0"])
@pytest.mark.parametrize("mapping", ["random", "mean-variance"])
@pytest.mark.usefixtures("large")
def test_weights_of_attributes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mapping: str, weights: np.ndarray
) -> None:
    x = patterned(9, SHAPE, "uint8", 2)
    options: Any = {"band_size": 100, "mapping": mapping, "n_intervals": 3, "random_state": 0}
    model = BandPCA(3, weights=weights, **options).fit(stored(tmp_path, x, (2, 16, 40)), run=Run(threads=2))
    assert "blocks of attributes" in model.fit_report_.note
    held = (model.components_, model.mean_, model.weights_, model.basis_.mean, model.bands_.labels)
    assert model.fit_report_.plan.caller_bytes >= sum(array.nbytes for array in held)
    rows = BandPCA(3, **options).fit(x * weights)
    monkeypatch.setattr(bands_by_blocks, "LARGE_SAMPLE", 2**40)
    whole = BandPCA(3, weights=weights, **options).fit(x)
    np.testing.assert_array_equal(model.bands_.labels, whole.bands_.labels)
    for other in (whole, rows):
        np.testing.assert_allclose(model.explained_variance_, other.explained_variance_, rtol=1e-5, atol=1e-9)
    np.testing.assert_allclose(model.mean_, x.mean(axis=0), rtol=1e-6)
    np.testing.assert_allclose(
        model.inverse_transform(model.transform(x)), whole.inverse_transform(whole.transform(x)), atol=1e-2
    )


@pytest.mark.usefixtures("large")
def test_all_components_are_those_with_variance(tmp_path: Path) -> None:
    x = patterned(9, SHAPE, "uint8", 2)
    path, options = stored(tmp_path, x, (2, 16, 40)), {"band_size": 130, "mapping": "random", "random_state": 0}
    model = BandPCA(**options).fit(path)
    assert "blocks of attributes" in model.fit_report_.note
    assert model.n_components_ == 8
    np.testing.assert_allclose(model.explained_variance_.sum(axis=1), model.total_variance_, rtol=1e-9)
    np.testing.assert_allclose(model.inverse_transform(model.transform(x)), x, atol=1e-3)
    basis, known = BandPCA(**options).plan_fit(as_source(path), ("y", "x"), Run())
    assert (basis.components.shape, known) == (model.components_.shape, True)
    model.save(tmp_path / "model")
    np.testing.assert_array_equal(BandPCA.load(tmp_path / "model").transform(x), model.transform(x))
    assert BandPCA(keep_state=True, **options).fit(x).n_components_ == 130


@pytest.mark.usefixtures("large")
def test_a_callback_receives_the_model_at_the_end(tmp_path: Path) -> None:
    path, seen = stored(tmp_path, patterned(40, SHAPE, "uint8", 2), (2, 16, 40)), list[Any]()
    model = BandPCA(2, band_size=130, mapping="random", random_state=0)
    model.fit(path, callback=seen.append, max_samples=20)
    assert "blocks of attributes" in model.fit_report_.note
    assert [(one.finished, one.n_samples_seen, one.model) for one in seen] == [(True, 40, model)]
