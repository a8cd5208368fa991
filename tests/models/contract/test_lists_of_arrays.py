"""A list of arrays stands for several variables, and is never taken for samples; lists of numbers are."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
import xarray
import zarr
from sklearn.base import clone

import dpca
from dpca import metrics, plots, timeseries
from dpca.storage import Appender, DataError

rng = np.random.default_rng(0)
FRAMES = rng.normal(size=(12, 8, 3))
LABELS = np.arange(12) % 2
FIELD = FRAMES + np.sin(np.arange(12) / 3)[:, None, None]
MODELS: dict[str, Any] = {
    "PCA": dpca.PCA(2),
    "StreamingPCA": dpca.StreamingPCA(2, random_state=0),
    "CellPCA": dpca.CellPCA(2, cell_shape=2, keep_state=True),
    "BandPCA": dpca.BandPCA(2, band_size=12),
    "KernelPCA": dpca.KernelPCA(2, n_landmarks=6, random_state=0),
    "PatchPCA": dpca.PatchPCA(2, patch_shape=2),
    "PatchCascade": dpca.PatchCascade([2], patch_shape=2),
    "TrajectoryPCA": dpca.TrajectoryPCA(2),
    "EOF": dpca.EOF(2),
    "StreamingRidgeClassifier": dpca.StreamingRidgeClassifier(),
    "SpectralClustering": dpca.SpectralClustering(2, random_state=0),
    "Denoiser": dpca.Denoiser(cell_shape=2),
    "MCA": dpca.MCA(2),
    "CCA": dpca.CCA(2, n_pca_modes=3),
}
_METHODS = (
    "transform",
    "inverse_transform",
    "partial_fit",
    "score",
    "score_samples",
    "project",
    "reconstruct",
    "predict",
)
KINDS: dict[str, Callable[[np.ndarray], Any]] = {
    "list": lambda x: [x, x],
    "tuple": lambda x: (x, x),
    "list of one": lambda x: [x],
    "list of rows": lambda x: list(x.reshape(len(x), -1)),
    "a list inside": lambda x: [[x, x], [x, x]],
    "a list of numbers, too": lambda x: [x.tolist(), x],
    "Dask": lambda x: [da.from_array(x), da.from_array(x)],
    "xarray": lambda x: [xarray.DataArray(x), xarray.DataArray(x)],
    "Zarr": lambda x: [zarr.array(x), zarr.array(x)],
}
#: The estimators of several variables, and the kinds that they take for these.
SEVERAL = {"EOF", "PCA", "StreamingPCA"}
VARIABLES = {"list", "tuple", "list of one", "Dask", "xarray", "Zarr"}


def test_these_are_all_estimators() -> None:
    public = {name: getattr(dpca, name) for name in dpca.__all__}
    estimators = {name for name, one in public.items() if inspect.isclass(one) and hasattr(one, "fit")}
    missing, gone = estimators - set(MODELS), set(MODELS) - estimators
    assert not missing, f"add a line to MODELS in {__file__} for {sorted(missing)}"
    assert not gone, f"remove {sorted(gone)} from MODELS in {__file__}: dpca does not export them"


def fit(model: Any, x: Any) -> Any:
    if isinstance(model, dpca.MCA | dpca.CCA):
        return model.fit(FIELD, x)
    return model.fit(x, LABELS) if isinstance(model, dpca.StreamingRidgeClassifier) else model.fit(x)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", MODELS)
def test_no_estimator_takes_variables_for_samples(name: str) -> None:
    x = FIELD if name != "EOF" else FIELD.reshape(12, -1)
    given = {kind: make(x) for kind, make in KINDS.items()}
    everything = given
    if name in SEVERAL:
        given = {kind: several for kind, several in given.items() if kind not in VARIABLES}
    for several in given.values():
        with pytest.raises(DataError, match="variables"):
            fit(clone(MODELS[name]), several)
    model, fresh = fit(clone(MODELS[name]), x), clone(MODELS[name])
    calls = {method: getattr(model, method) for method in _METHODS if hasattr(model, method)}
    if hasattr(type(fresh), "partial_fit"):
        calls["partial_fit"] = fresh.partial_fit
    for method, call in calls.items():
        takes = name == "EOF" or (name in SEVERAL and method == "partial_fit")
        for several in (given if takes else everything).values():
            with pytest.raises(DataError, match="variables"):
                call(several, LABELS) if (name, method) == ("StreamingRidgeClassifier", "score") else call(several)


@pytest.mark.parametrize("name", sorted(MODELS.keys() - SEVERAL - {"Denoiser", "SpectralClustering"}))
def test_the_error_names_the_estimator_of_several_variables(name: str, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", FIELD)
    both = {"u": FIELD, "p": FIELD[:, :4]}  # of any shapes
    data = xarray.Dataset({key: (("time", f"{key}_y", f"{key}_x"), x) for key, x in both.items()})
    for several in ([*both.values()], tuple(both.values()), both, data):
        with pytest.raises(DataError, match="EOF"):
            fit(clone(MODELS[name]), several)
    if "key" in inspect.signature(MODELS[name].fit).parameters and name not in ("MCA", "CCA"):
        with pytest.raises(DataError, match="EOF"):
            MODELS[name].fit(tmp_path / "x.npy", LABELS, key=["u", "p"])


CALLS: dict[str, Callable[[Any], Any]] = {
    "mse": lambda x: metrics.mse(x, x),
    "psnr": lambda x: metrics.psnr(np.stack(x), x, data_range=1),
    "ssim": lambda x: metrics.ssim(x, np.stack(x), data_range=1),
    "excess_loss": lambda x: metrics.excess_loss(np.eye(24)[:2], np.eye(24)[:2], x=x),
    "principal_angles": lambda x: metrics.principal_angles(x, x),
    "image_grid": plots.image_grid,
    "comparison": lambda x: plots.comparison(x, x, ["a", "b"], None, (0, 1)),
    "eigenimages": plots.eigenimages,
    "mode_maps": plots.mode_maps,
    "scores_scatter": plots.scores_scatter,
    "scores_over_time": plots.scores_over_time,
    "spectrum": lambda x: timeseries.spectrum(x),
    "cosine_content": timeseries.cosine_content,
    "landmarks": lambda x: dpca.KernelPCA(2, landmarks=x).fit(FIELD),
}


@pytest.mark.parametrize("name", CALLS)
def test_no_function_takes_variables_for_samples(name: str) -> None:
    for x in ([FIELD, FIELD], (FIELD[:, :, 0], FIELD[:, :, 0]), [da.from_array(FIELD)] * 2):
        with pytest.raises(DataError, match="variables"):
            CALLS[name](x)


def test_a_writer_takes_samples_and_lists_of_numbers(tmp_path: Path) -> None:
    with Appender(tmp_path / "s.zarr", (8, 3), np.float64) as writer:
        with pytest.raises(DataError, match="variables"):
            writer.append([FIELD[0], FIELD[1]])
        writer.append(FIELD[0].tolist())
        writer.append(FIELD[:2].tolist())
    assert dpca.storage.open_stack(tmp_path / "s.zarr").n_samples == 3


def test_lists_of_numbers_are_what_scikit_learn_takes() -> None:
    rows = FIELD.reshape(12, -1).tolist()
    model, expected = dpca.PCA(2).fit(rows), dpca.PCA(2).fit(FIELD.reshape(12, -1))
    np.testing.assert_array_equal(model.components_, expected.components_)
    np.testing.assert_array_equal(model.transform(rows[:3]), expected.transform(FIELD.reshape(12, -1)[:3]))
    few = [[np.float64(1), 2], [3, 4.5], (True, np.int8(3))]
    np.testing.assert_allclose(dpca.PCA(1).fit(few).mean_, np.mean(np.array(few, float), axis=0))
