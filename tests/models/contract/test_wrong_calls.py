"""Calls that make no sense: each is refused in one sentence, by an error that a program can tell from a bug."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask.array as da
import h5py
import numpy as np
import pytest
import xarray
import zarr
from sklearn.exceptions import NotFittedError

from dpca import PCA, BandPCA, CellPCA, KernelPCA, StreamingPCA
from dpca.engine.folds.plan import PlanError
from dpca.storage import DataError, StoreError

REFUSALS = (DataError, StoreError, PlanError, NotFittedError)
KINDS: dict[type, dict[str, Any]] = {
    StreamingPCA: {"n_components": 2},
    PCA: {"n_components": 2},
    CellPCA: {"n_components": 2, "cell_shape": 3},
    BandPCA: {"n_components": 2, "band_size": 9},
    KernelPCA: {"n_components": 2},
}
X = np.random.default_rng(0).normal(size=(12, 6, 6)).astype(np.float32)
pytestmark = [
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
every_kind = pytest.mark.parametrize("kind", list(KINDS), ids=[kind.__name__ for kind in KINDS])
#: No parameter of any estimator takes one of these.
NEVER: list[Any] = [object(), {"a": 1}, b"x", np.array([[1, 2], [3, 4]]), -1.5, float("nan"), -(10**30), len]
#: What a value of each of these needs beside it to have a meaning.
BESIDE: dict[str, dict[str, Any]] = {
    **{
        name: {"n_components": None, "data_range": (0, 1)}
        for name in ("threshold", "total_components", "ratio", "target_mse", "target_psnr", "target_ssim")
    },
    "validation_fraction": {"n_components": None, "target_mse": 0.5, "data_range": (0, 1)},
    "max_components": {"n_components": None, "threshold": 0.5},
    "data_range": {"n_components": None, "target_mse": 0.5},
    "n_streams": {"method": "oja", "execution": "averaged"},
    "round_size": {"method": "oja", "execution": "averaged"},
    "n_least": {"solver": "covariance"},
    "n_iter": {"solver": "randomized"},
}


def refused(function: Callable[[], Any], *others: type[Exception]) -> str:
    """What is said, in one line."""
    with pytest.raises((*REFUSALS, *others)) as told:
        function()
    assert "\n" not in str(told.value), str(told.value)
    assert str(told.value)
    return str(told.value)


@every_kind
def test_parameters_that_are_none(kind: type) -> None:
    for name in list(inspect.signature(kind).parameters):
        for value in NEVER:
            parameters = {**KINDS[kind], **BESIDE.get(name, {}), name: value}
            try:
                refused(lambda given=parameters: kind(**given).fit(X))
                if hasattr(kind, "partial_fit") and name not in ("n_passes", "execution", "n_streams", "round_size"):
                    refused(lambda given=parameters: kind(**given).partial_fit(X))
            except BaseException as error:
                raise AssertionError(f"{name}={value!r}") from error


@pytest.mark.parametrize(
    "model",
    [
        StreamingPCA(2, batch_size=10**15),
        StreamingPCA(2, oversampling=10**15),
        BandPCA(2, band_size=9, n_intervals=10**15),
        BandPCA(2, band_size=9, n_estimating=1),
        PCA(2, random_state=2**32),
        StreamingPCA(10**30),
        CellPCA(2, cell_shape=(10**30, 3)),
        CellPCA(cell_shape=3, total_components=10**30),
    ],
)
def test_numbers_beyond_all_measure(model: Any) -> None:
    for method in ("fit", "partial_fit"):
        if method == "partial_fit" and not hasattr(model, method):
            continue
        if getattr(model, "oversampling", None):
            continue  # as many directions as there are attributes are all it takes
        refused(lambda use=method: getattr(model, use)(X))


def test_a_cell_or_a_band_of_any_size_is_at_most_all_attributes() -> None:
    assert CellPCA(2, cell_shape=10**30).fit(X).grid_.n_parts == 1
    assert BandPCA(2, band_size=10**30, mapping="raster").fit(X).bands_.n_parts == 1


def wrong_samples(folder: Path) -> dict[str, Any]:
    group = zarr.create_group(zarr.storage.MemoryStore())
    group.create_array("a", data=X)
    zarr.create_group(folder / "empty")
    (folder / "text").write_text("no store")
    (folder / "folder").mkdir()
    file = h5py.File(folder / "x.h5", "w")
    file.create_dataset("a", data=X)
    masked = np.ma.masked_greater(X, 0)
    nan = X.copy()
    nan[3, 2, 1] = np.nan
    return {
        "None": None,
        "a number": 3,
        "a dict": {"a": X},
        "a set": {1, 2},
        "a class": int,
        "bytes": b"ab",
        "a generator": (row for row in X),
        "paths": ["a.zarr", "b.zarr"],
        "ragged": [[1, 2], [3]],
        "huge integers": [[10**400, 1], [1, 2]],
        "a model": PCA(2),
        "one axis": X[0, 0],
        "no axis": np.array(3.0),
        "no samples": X[:0],
        "no attributes": np.empty((5, 0)),
        "objects": np.array([[None, 1], [2, 3]], object),
        "names": np.full((5, 6, 6), "a"),
        "complex": X.astype(complex),
        "dates": np.zeros((5, 6, 6), "M8[s]"),
        "records": np.zeros((5, 6, 6), [("a", "f4")]),
        "masked": masked,
        "NaN": nan,
        "infinite": np.where(X > 1, np.inf, X),
        "nowhere": str(folder / "nowhere"),
        "no path": "",
        "NUL": "a\0b",
        "a long name": "x" * 5000,
        "a text": folder / "text",
        "a folder": folder / "folder",
        "an empty group": folder / "empty",
        "an opened empty group": zarr.open_group(folder / "empty", mode="r"),
        "a group in memory": group,
        "Dask, no samples": da.zeros((0, 6, 6)),
        "Dask, names": da.from_array(np.full((5, 6, 6), "a")),
        "Dask, complex": da.from_array(X.astype(complex)),
        "Dask, one axis": da.zeros(5),
        "Dask, NaN": da.from_array(nan),
        "a file of HDF5": file,
        "a data set of xarray": xarray.Dataset({"a": (("x", "y", "z"), X)}),
    }


@pytest.mark.cases(2)
@every_kind
def test_samples_that_are_none(kind: type, tmp_path: Path) -> None:
    fitted = kind(**KINDS[kind]).fit(X)
    for name, value in wrong_samples(tmp_path).items():
        uses: dict[str, Callable[[Any], Any]] = {
            "fit": kind(**KINDS[kind]).fit,
            "transform": fitted.transform,
            "inverse_transform": fitted.inverse_transform,
            "load": kind.load,  # type: ignore[attr-defined]
        }
        for other in ("partial_fit", "score_samples"):
            if hasattr(kind, other):
                uses[other] = getattr(kind(**KINDS[kind]) if other == "partial_fit" else fitted, other)
        if name == "a dict" and getattr(kind, "supports_variables", False):
            del uses["fit"]  # one of several variables is enough
            uses.pop("partial_fit", None)
        for use, function in uses.items():
            # scikit-learn's own word for values that are no numbers at all.
            others = (TypeError,) if name == "objects" else ()
            try:
                refused(lambda f=function, v=value: computed(f(v)), *others)
            except BaseException as error:
                raise AssertionError(f"{use}({name})") from error


def computed(result: Any) -> Any:
    return result.compute(scheduler="synchronous") if isinstance(result, da.Array) else result


@every_kind
def test_other_levels_shapes_and_models(kind: type, tmp_path: Path) -> None:
    fitted = kind(**KINDS[kind]).fit(X)
    scores = fitted.transform(X)
    for level in (0, -1, True, 2.5, "2", 10**30, [1], {}, np.array([1, 2])):
        refused(lambda n=level: fitted.inverse_transform(scores, n))
    for shape in ((3, 6), (3, 6, 7), (3, 36), (3, 6, 6, 1)):
        refused(lambda s=shape: fitted.transform(np.zeros(s)))
    refused(lambda: fitted.inverse_transform(np.zeros((3, 7, 7, 7))))
    for method in ("transform", "inverse_transform", "score_samples", "merge"):
        if hasattr(kind, method):
            refused(lambda m=method: getattr(kind(**KINDS[kind]), m)(X))
    refused(lambda: kind(**KINDS[kind]).save(tmp_path / "m"))  # type: ignore[attr-defined]
    refused(lambda: kind(**KINDS[kind]).get_feature_names_out())  # type: ignore[attr-defined]
    fitted.save(tmp_path / "model")
    for other in KINDS:
        if other is not kind:
            refused(lambda k=other: k.load(tmp_path / "model"))  # type: ignore[attr-defined]
    if hasattr(kind, "merge"):
        for value in (None, 3, "x", X, PCA(2).fit(X)):
            refused(lambda v=value: kind(**KINDS[kind]).partial_fit(X).merge(v))  # type: ignore[attr-defined]


@every_kind
def test_a_group_is_what_it_holds(kind: type, tmp_path: Path) -> None:
    """An opened group, of ours or of anyone, means the stack in it."""
    group = zarr.create_group(tmp_path / "g")
    group.create_array("samples", data=X, chunks=(5, 6, 6))
    group.create_array("name", data=np.arange(12))
    opened = zarr.open_group(tmp_path / "g", mode="r")
    by_group, by_array = kind(**KINDS[kind], random_state=0), kind(**KINDS[kind], random_state=0)
    if kind is CellPCA:
        by_group, by_array = kind(**KINDS[kind]), kind(**KINDS[kind])
    np.testing.assert_array_equal(by_group.fit(opened).transform(X), by_array.fit(opened["samples"]).transform(X))
    np.testing.assert_array_equal(by_group.transform(opened).compute(), by_group.transform(opened["samples"]).compute())
    scores = zarr.create_group(tmp_path / "scores")
    scores.create_array("scores", data=by_group.transform(X))
    if by_group.transform(X).ndim > 1:
        back = by_group.inverse_transform(zarr.open_group(tmp_path / "scores", mode="r")).compute()
        np.testing.assert_allclose(back, by_group.inverse_transform(by_group.transform(X)), rtol=1e-5, atol=1e-6)


@every_kind
def test_a_value_that_is_not_finite_is_named_by_its_sample(kind: type) -> None:
    nan = X.copy()
    nan[3, 2, 1] = np.nan
    for samples in (nan, nan.reshape(12, -1)) if kind is not CellPCA else (nan,):
        said = refused(lambda x=samples: kind(**KINDS[kind]).fit(x))
        assert "sample 3 of" in said
        assert "HistGradientBoosting" not in said
