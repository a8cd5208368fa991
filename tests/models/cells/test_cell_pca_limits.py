"""CellPCA at its edges: few, equal, distant, broken samples; scikit-learn's own checks; where it runs."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
import scipy.sparse
import zarr
from sklearn.decomposition import PCA
from sklearn.exceptions import NotFittedError
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

from dpca import CellPCA
from dpca.storage import DataError, open_stack
from dpca.storage.arrays.arrays import create_array, create_root, write_shard
from dpca.storage.arrays.layout import Layout
from dpca.storage.run import Run
from tests.conftest import smooth_images


def test_two_samples() -> None:
    """There is one direction, the difference of the samples; its variance is half of the squared difference."""
    x = np.array([[[1, 2], [3, 4]], [[4, 6], [3, 4]]], np.uint8)
    model = CellPCA(1, cell_shape=2).fit(x)
    np.testing.assert_allclose(model.explained_variance_, [[[12.5]]])
    np.testing.assert_allclose(model.components_[0], [[0.6, 0.8], [0, 0]], atol=1e-7)
    np.testing.assert_allclose(model.transform(x).ravel(), [-2.5, 2.5], rtol=1e-6)
    np.testing.assert_allclose(model.inverse_transform(model.transform(x)), x, atol=1e-6)
    np.testing.assert_allclose(model.explained_variance_ratio_, 1, rtol=1e-12)


def test_equal_samples_and_constant_cells() -> None:
    x = np.repeat(smooth_images(1, (8, 8)), 30, axis=0)
    x[:, :4, :4] = np.arange(30, dtype=np.uint8)[:, None, None]  # all that varies
    model = CellPCA(3, cell_shape=4).fit(x)
    np.testing.assert_allclose(model.total_variance_, [[16 * np.arange(30).var(ddof=1), 0], [0, 0]], rtol=1e-12)
    np.testing.assert_allclose(model.explained_variance_ratio_[0, 0], [1, 0, 0], atol=1e-12)
    np.testing.assert_array_equal(model.explained_variance_ratio_[1:], 0)
    assert np.abs(model.transform(x)[:, 1]).max() < 1e-4
    np.testing.assert_allclose(model.inverse_transform(model.transform(x)), x, atol=1e-4)


@pytest.mark.parametrize("shape", [(6, 7, 3), (50,), (5, 4, 6), (4, 3, 5, 2)])
def test_float32_samples_with_a_large_mean(shape: tuple[int, ...]) -> None:
    """Mean 10,000, deviation 1: squares of 1e8 would leave no digit of the variances."""
    rng = np.random.default_rng(0)
    x = (10_000 + rng.normal(0, 1, (400, *shape))).astype(np.float32)
    cell = tuple(min(3, s) for s in (shape[:-1] if shape[-1] < 4 else shape))
    model = CellPCA(2, cell_shape=cell).fit(x)
    place = (0,) * len(cell)
    box = tuple(slice(0, c) for c in cell)
    reference = PCA(2, svd_solver="full").fit(x[(slice(None), *box)].reshape(400, -1).astype(float))
    np.testing.assert_allclose(model.explained_variance_[place], reference.explained_variance_, rtol=1e-5)
    variances = model.transform(x).astype(float).var(axis=0, ddof=1)
    np.testing.assert_allclose(variances, model.explained_variance_, rtol=1e-4)
    measured = ((model.inverse_transform(model.transform(x)).astype(float) - x) ** 2).mean()
    assert model.expected_mse((0, 1)) == pytest.approx(measured, rel=1e-3)


def test_wide_integers_are_not_squeezed_into_float32() -> None:
    """Near 1e9, float32 represents only every 64th integer."""
    x = (10**9 + np.random.default_rng(0).integers(-20, 20, (60, 6, 6))).astype(np.int32)
    model = CellPCA(4, cell_shape=3).fit(x)
    assert model.components_.dtype == np.float64
    measured = ((model.inverse_transform(model.transform(x)) - x) ** 2).mean()
    assert model.expected_mse((0, 1)) == pytest.approx(measured, rel=1e-9)


def test_float64_keeps_its_digits_to_the_end() -> None:
    x = np.random.default_rng(0).normal(1e6, 1, (50, 6, 6))
    model = CellPCA(None, cell_shape=3).fit(x)
    assert model.components_.dtype == model.transform(x).dtype == np.float64
    assert np.abs(model.inverse_transform(model.transform(x)) - x).max() < 1e-8


@pytest.mark.parametrize("how", ["numpy", "zarr", "dask", "partial"])
@pytest.mark.parametrize("value", [np.nan, -np.inf])
def test_a_value_that_is_not_finite_names_its_sample(how: str, value: float, tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(40, 6, 6)).astype(np.float32)
    clean = CellPCA(2, cell_shape=3).fit(x)
    x[29, 5, 0] = value
    model = CellPCA(2, cell_shape=3)
    given: Any = x
    if how == "zarr":
        given = str(tmp_path / "x.zarr")
        zarr.create_array(given, data=x, chunks=(16, 3, 6))
    elif how == "dask":
        given = da.from_array(x, chunks=(25, 6, 4))
    with pytest.raises(DataError, match="sample.29.*finite"):
        model.partial_fit(given) if how == "partial" else model.fit(given)
    assert not hasattr(model, "components_")
    with pytest.raises(DataError, match="finite"), dask.config.set(scheduler="sync"):
        np.asarray(clean.transform(given))


@pytest.mark.parametrize(
    ("x", "says"),
    [
        (np.zeros((1, 4, 4)), "1 sample"),
        (np.zeros(7), "samples on axis 0"),
        (np.zeros((0, 4, 4)), "minimum of 1"),
        (np.zeros((5, 4, 4), complex), "Complex data"),
        (np.full((5, 4, 4), "a"), "real floating-point"),
        (scipy.sparse.eye_array(8), "sparse"),
    ],
)
@pytest.mark.parametrize("method", ["fit", "partial_fit"])
def test_what_cannot_be_analyzed(method: str, x: Any, says: str) -> None:
    if method == "partial_fit" and says.startswith("1 sample"):
        pytest.skip("the second sample may still come")
    with pytest.raises(DataError, match=says) as refusal:
        getattr(CellPCA(1, cell_shape=2), method)(x)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("cell", [2.5, (2.5, 2), "22", None, np.array([2, 2]), (2, None)])
def test_cells_that_are_no_integers(cell: Any) -> None:
    with pytest.raises(DataError, match="axis"):
        CellPCA(1, cell_shape=cell).fit(np.zeros((5, 8, 8)))


def test_batches_one_sample_at_a_time() -> None:
    x = smooth_images(30, (8, 9))
    model = CellPCA(3, cell_shape=4).partial_fit(x[:1])
    with pytest.raises(NotFittedError):
        model.transform(x)
    for i in range(1, 30):
        model.partial_fit(x[i : i + 1])
        assert model.n_samples_seen_ == i + 1
    np.testing.assert_array_equal(model.components_, CellPCA(3, cell_shape=4).fit(x).components_)
    # A batch of another shape or dtype is rejected and changes nothing.
    for other, says in ((x[:, :7], "first batch"), (x.astype(np.int16), "first batch")):
        with pytest.raises(DataError, match=says):
            model.partial_fit(other)
    assert model.n_samples_seen_ == 30


def test_a_fit_does_not_touch_its_input() -> None:
    x = smooth_images(30, (8, 9))
    x.flags.writeable = False
    CellPCA(3, cell_shape=4).partial_fit(x)
    model = CellPCA(3, cell_shape=4).fit(x)
    scores = model.transform(x)
    scores.flags.writeable = False
    model.inverse_transform(scores)


def stack(folder: Path, values: np.ndarray, axes: tuple[str, ...]) -> str:
    path = folder / "stack.zarr"
    facts = {"axes": list(axes), "data_range": [0, 255], "source": {"kind": "test", "name": "t", "count": len(values)}}
    array = create_array(
        create_root(path, kind="stack", fingerprint="f", **facts),
        "samples",
        values.shape,
        values.dtype,
        Layout(values.shape, values.shape),
        axes,
    )
    write_shard(array, 0, values)
    return str(path)


def test_the_axes_of_a_stack_decide_what_is_spatial(tmp_path: Path) -> None:
    """Six channels: by the shape alone they would be a third spatial axis."""
    path = stack(tmp_path, smooth_images(20, (8, 9)).repeat(6).reshape(20, 8, 9, 6), ("sample", "y", "x", "channel"))
    for given in (path, open_stack(path)):
        assert CellPCA(1, cell_shape=4).fit(given).grid_.grid_shape == (2, 3)
    assert CellPCA(1, cell_shape=4).fit(open_stack(path).samples).grid_.grid_shape == (2, 3, 2)
    assert CellPCA(1, cell_shape=(4, 4, 6)).fit(path).grid_.grid_shape == (2, 3, 1)


def test_channels_that_come_first_are_in_every_cell(tmp_path: Path) -> None:
    path = stack(tmp_path, np.zeros((5, 3, 8, 8), np.uint8), ("sample", "channel", "y", "x"))
    assert CellPCA(1, cell_shape=4).fit(path).grid_.grid_shape == (1, 2, 2)


def test_it_runs_on_the_current_cluster_or_the_one_given_or_here(tmp_path: Path, cluster: Any) -> None:
    x = smooth_images(60, (20, 18, 3))
    path = str(tmp_path / "x.zarr")
    zarr.create_array(path, data=x, chunks=(20, 20, 18, 3))
    here = CellPCA(3, cell_shape=9).fit(x)
    seen = cluster.run(lambda dask_worker: dask_worker.state.executed_count)

    def executed() -> int:
        counts = cluster.run(lambda dask_worker: dask_worker.state.executed_count)
        return sum(counts.values()) - sum(seen.values())

    with cluster.as_current():
        np.testing.assert_array_equal(CellPCA(3, cell_shape=9).fit(path).components_, here.components_)
        done = executed()
        assert done > 0
        CellPCA(3, cell_shape=9).fit(x)  # its memory is here
        assert executed() == done
    CellPCA(3, cell_shape=9).fit(path, run=Run(client=cluster))
    assert executed() > done


def test_lazy_results_on_a_cluster_do_not_carry_the_model_in_every_task(tmp_path: Path, cluster: Any) -> None:
    x = smooth_images(60, (40, 36, 3))
    model = CellPCA(20, cell_shape=9).fit(x)
    lazy = da.from_array(x, chunks=(2, 40, 36, 3))
    scores = model.transform(lazy)
    graph = dict(scores.__dask_graph__())
    assert len(pickle.dumps(model.basis_)) > 300_000
    assert sum(len(pickle.dumps(task)) > 300_000 for task in graph.values()) <= 2  # the model, and x itself
    with cluster.as_current():
        np.testing.assert_allclose(
            model.inverse_transform(scores)[7].compute(), model.inverse_transform(model.transform(x[7:8]))[0], atol=1e-2
        )


def test_in_a_pipeline() -> None:
    x = smooth_images(40, (8, 9))
    steps = make_pipeline(CellPCA(2, cell_shape=4), FunctionTransformer(lambda s: s.reshape(len(s), -1)))
    assert steps.fit(x).transform(x).shape == (40, 2 * 3 * 2)
    assert steps[0].get_feature_names_out().tolist()[-1] == "cell1_2_component1"
    again = pickle.loads(pickle.dumps(steps[0]))  # of a live object, by choice: its stores hold none
    np.testing.assert_array_equal(again.transform(x), steps[0].transform(x))


@pytest.mark.parametrize("k", [1, 7, 16, 17])
def test_components_are_orthonormal_and_ordered_in_every_cell(k: int) -> None:
    """Edge cells hold 4 x 4, 4 x 2, 1 x 4 and 1 x 2 attributes."""
    x = smooth_images(50, (5, 6))
    if k == 17:
        with pytest.raises(DataError, match="16"):
            CellPCA(k, cell_shape=4).fit(x)
        return
    model = CellPCA(k, cell_shape=4).fit(x)
    for i in range(model.grid_.n_parts):
        box = tuple(slice(a, b) for a, b in model.grid_.region(i))
        rows = model.components_[(slice(None), *box)].reshape(k, -1).astype(float)
        kept = min(k, rows.shape[1])
        np.testing.assert_allclose(rows @ rows.T, np.diag(np.arange(k) < kept).astype(float), atol=1e-6)
        values = model.explained_variance_.reshape(-1, k)[i]
        assert (np.diff(values) <= 0).all()
        assert (values[kept:] == 0).all()
        assert values.sum() <= model.total_variance_.ravel()[i] * (1 + 1e-12)


def test_an_integer_is_a_limit_for_short_axes_and_a_tuple_is_not() -> None:
    x = np.random.default_rng(0).normal(size=(30, 8, 25))
    model = CellPCA(3, cell_shape=10).fit(x)
    assert model.grid_.cell_shape == (8, 10)
    expected = CellPCA(3, cell_shape=(8, 10)).fit(x)
    np.testing.assert_array_equal(model.components_, expected.components_)
    assert CellPCA(3, cell_shape=np.int64(10)).partial_fit(x).grid_.cell_shape == (8, 10)
    with pytest.raises(DataError, match="larger"):
        CellPCA(3, cell_shape=(10, 10)).fit(x)
