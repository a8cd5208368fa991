"""Several variables in `PCA` and `StreamingPCA`: against the SVD of all of them side by side."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
import xarray as xr
import zarr

from dpca import EOF, PCA, StreamingPCA, load
from dpca.storage import DataError, verify

N, K, SHAPES = 40, 3, ((4, 5), (2, 3, 2))
RNG = np.random.default_rng(0)
SERIES = RNG.normal(size=(N, K)) * [30, 15, 5]


def made(shape: tuple[int, ...], scale: float) -> np.ndarray:
    d = int(np.prod(shape))
    return (scale * (SERIES @ RNG.normal(size=(K, d)) + RNG.normal(size=(N, d)) + 7)).reshape(N, *shape)


A, B = made(SHAPES[0], 1.0), made(SHAPES[1], 100.0)
U = xr.DataArray(
    A,
    {"time": np.arange(N) * 2, "lat": np.linspace(-60, 60, 4), "lon": np.arange(5) * 10.0},
    ("time", "lat", "lon"),
    "u",
    {"units": "m/s"},
)
P = xr.DataArray(B, {"time": np.arange(N) * 2, "z": [1.0, 2.0]}, ("time", "z", "y", "x"), "p")
COS = np.sqrt(np.cos(np.deg2rad(np.linspace(-60, 60, 4))))[:, None]
NAMED: dict[str, Any] = {"weights": {"u": 3.0, "p": 0.1}}
BOTH: dict[str, Any] = {"standardize": "variable", "weights": (1 + np.arange(20.0).reshape(4, 5), 0.5)}
FORMS: dict[str, Any] = {
    "list": [A, B],
    "tuple": (A, B),
    "dict": {"u": A, "p": B},
    "Dataset": xr.Dataset({"u": U, "p": P}),
    "labelled": [U, P],
    "mixed": {"u": A, "p": P},
    "Dask": [da.from_array(A, chunks=(7, 2, 5)), da.from_array(B, chunks=(9, 2, 3, 2))],
    "lazy": xr.Dataset({"u": U.chunk(time=7), "p": P.chunk(time=9)}),
    "Zarr": [zarr.array(A), zarr.array(B)],
}
MODELS: dict[str, Callable[..., Any]] = {
    "covariance": lambda **how: PCA(K, solver="covariance", **how),
    "dual": lambda **how: PCA(K, solver="dual", **how),
    "stream": lambda **how: StreamingPCA(K, random_state=0, **how),
}


def truth(how: dict[str, Any], counts: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the factors, and variances and components of all variables side by side."""
    counts = np.ones(N) if counts is None else counts
    given = how.get("weights") or (1.0, 1.0)
    given = [*given.values()] if isinstance(given, dict) else given
    rows, factors = [], []
    for x, w in zip((A, B), given, strict=True):
        w = COS if isinstance(w, str) else w
        w = np.broadcast_to(w, x.shape[1:]).ravel().astype(float)
        flat = x.reshape(N, -1) - np.average(x.reshape(N, -1), axis=0, weights=counts)
        variance = np.average(flat**2, axis=0, weights=counts)
        if how.get("standardize") is True:
            w = w / np.sqrt(variance)
        if how.get("standardize") == "variable":
            w = w / np.sqrt((variance * w**2).sum())
        rows.append(flat * w * np.sqrt(counts)[:, None])
        factors.append(w)
    _, s, v = np.linalg.svd(np.concatenate(rows, axis=1), full_matrices=False)
    return np.concatenate(factors), s[:K] ** 2 / (counts.sum() - 1), v[:K]


def values_of(found: Any) -> list[np.ndarray]:
    if isinstance(found, xr.Dataset):
        return [found["u"].values, found["p"].values]
    return [np.asarray(x) for x in (found.values() if isinstance(found, dict) else found)]


@pytest.mark.pairwise
@pytest.mark.parametrize(
    "how",
    [{}, {"standardize": True}, {"standardize": "variable"}, {"weights": (2.0, 0.1)}, NAMED, BOTH],
    ids=["plain", "each", "variable", "numbers", "named", "both"],
)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", MODELS)
def test_models_are_those_of_all_side_by_side(name: str, form: str, how: dict[str, Any], tmp_path: Path) -> None:
    x = FORMS[form]
    if isinstance(how.get("weights"), dict) and form not in ("dict", "Dataset", "lazy", "mixed", "labelled"):
        how = {"weights": [3.0, 0.1]}
    model = MODELS[name](**how).fit(x)
    factors, variances, rows = truth(how)
    np.testing.assert_allclose(model.explained_variance_, variances, rtol=1e-9)
    np.testing.assert_allclose(np.abs((model.components_ * rows).sum(axis=1)), 1, atol=1e-9)
    for found, expected in zip(values_of(model.by_variable(model.mean_)), (A, B), strict=True):
        np.testing.assert_allclose(found, expected.mean(axis=0), rtol=1e-9, atol=1e-9)
    maps = model.by_variable(model.components_)
    assert type(maps) is type(x)
    assert [part.shape for part in values_of(maps)] == [(K, *shape) for shape in SHAPES]
    np.testing.assert_array_equal(np.hstack([p.reshape(K, -1) for p in values_of(maps)]), model.components_)
    flat = np.hstack([x.reshape(N, -1) for x in (A, B)])
    expected = ((flat - flat.mean(axis=0)) * factors) @ model.components_.T
    scores = model.transform(x)
    assert isinstance(scores, xr.DataArray) == (form in ("Dataset", "labelled", "lazy", "mixed"))
    np.testing.assert_allclose(np.asarray(scores), expected, atol=1e-8 * np.abs(expected).max())
    back = model.inverse_transform(scores)
    assert type(back) is type(x)
    full = expected @ model.components_ / factors + flat.mean(axis=0)
    np.testing.assert_allclose(np.hstack([p.reshape(N, -1) for p in values_of(back)]), full, atol=1e-6)
    # In a store, and back.
    model.save(tmp_path / "model.zarr")
    assert verify(tmp_path / "model.zarr") == []
    again = load(tmp_path / "model.zarr")
    np.testing.assert_array_equal(np.asarray(again.transform(x)), np.asarray(scores))
    for ours, theirs in ((again.inverse_transform(scores), back), (again.by_variable(again.components_), maps)):
        assert type(ours) is type(theirs)
        for a, b in zip(values_of(ours), values_of(theirs), strict=True):
            np.testing.assert_array_equal(a, b)
    if form in ("Dataset", "lazy"):
        xr.testing.assert_identical(again.inverse_transform(scores).compute(), back.compute())
        xr.testing.assert_identical(again.transform(x).compute(), scores.compute())
    np.testing.assert_allclose(again.fit(x).explained_variance_, variances, rtol=1e-9)


def test_labels_are_those_of_each_variable() -> None:
    model = PCA(K).fit(FORMS["Dataset"])
    scores = model.transform(FORMS["Dataset"])
    assert scores.dims == ("time", "component")
    back = model.inverse_transform(scores)
    assert (back["u"].dims, back["p"].dims) == (U.dims, P.dims)
    assert back["u"].attrs == U.attrs
    xr.testing.assert_equal(back["u"].coords.to_dataset(), U.coords.to_dataset())
    plain = model.inverse_transform(scores.values)  # scores without names
    assert plain["p"].dims == P.dims
    maps = model.by_variable(model.components_)
    assert maps["u"].dims == ("component", "lat", "lon")
    assert model.by_variable(model.mean_)["p"].dims == ("z", "y", "x")


def test_latitudes_are_those_of_each_variable() -> None:
    found = PCA(K, weights={"u": "coslat", "p": 0.01}).fit(FORMS["Dataset"])
    np.testing.assert_allclose(found.explained_variance_, truth({"weights": {"u": "coslat", "p": 0.01}})[1])
    with pytest.raises(DataError, match="p"):
        PCA(K, weights="coslat").fit(FORMS["Dataset"])


@pytest.mark.parametrize("standardize", [True, "variable"])
@pytest.mark.parametrize("name", MODELS)
def test_samples_have_weights_also_in_deviations(name: str, standardize: Any) -> None:
    for counts in (RNG.integers(0, 4, N).astype(float), RNG.uniform(0, 3, N)):
        found = MODELS[name](standardize=standardize).fit([A, B], sample_weight=counts)
        _, variances, rows = truth({"standardize": standardize}, counts)
        np.testing.assert_allclose(found.explained_variance_, variances, rtol=1e-6)
        np.testing.assert_allclose(np.abs((found.components_ * rows).sum(axis=1)), 1, atol=1e-6)


@pytest.mark.parametrize("standardize", [True, "variable"])
@pytest.mark.parametrize("name", MODELS)
def test_one_variable_is_standardized_as_in_eof(name: str, standardize: Any) -> None:
    found = MODELS[name](standardize=standardize).fit(A)
    expected = EOF(K, standardize=standardize, solver="auto").fit(A)
    np.testing.assert_allclose(found.explained_variance_, expected.explained_variance_, rtol=1e-9)
    np.testing.assert_allclose(found.inverse_transform(found.transform(A)), expected.reconstruct(), atol=1e-8)


def test_constant_attributes_do_not_count() -> None:
    x = A.copy()
    x[:, 1, 2] = 0.1  # not a sum of powers of 2
    model = PCA(2, standardize=True).fit(x)
    assert model.weights_[7] == 0
    assert model._variance is None  # it would take memory
    np.testing.assert_allclose(model.total_variance_, 19 * N / (N - 1))
    np.testing.assert_allclose(model.inverse_transform(model.transform(x))[:, 1, 2], 0.1)


def test_batches_and_streams_have_several_variables() -> None:
    whole = StreamingPCA(K, weights=[1.0, 0.01], random_state=0).fit([A, B])
    model = StreamingPCA(K, weights=[1.0, 0.01], random_state=0)
    for part in (slice(0, 15), slice(15, N)):
        model.partial_fit([A[part], B[part]])
    np.testing.assert_allclose(model.explained_variance_, whole.explained_variance_, rtol=1e-9)
    assert [x.shape for x in model.inverse_transform(model.transform([A, B]))] == [A.shape, B.shape]
    *_, last = StreamingPCA(K, weights=[1.0, 0.01], random_state=0).iter_fit([A, B])
    np.testing.assert_allclose(last.model.explained_variance_, whole.explained_variance_, rtol=1e-9)
    assert [x.shape for x in last.model.by_variable(last.model.mean_)] == [*SHAPES]


def test_callbacks_have_the_variables() -> None:
    shapes = []
    StreamingPCA(K, random_state=0).fit(
        {"u": A, "p": B}, callback=lambda progress: shapes.append(progress.model.by_variable(progress.model.mean_))
    )
    assert shapes
    assert all(found["p"].shape == SHAPES[1] for found in shapes)


def test_gaps_of_several_variables_are_filled() -> None:
    gappy = [A.copy(), B.copy()]
    gappy[0][::5, 1, 1], gappy[1][1::4, 0, 2] = np.nan, np.nan
    flat = np.hstack([x.reshape(N, -1) for x in gappy])
    one = PCA(K, gaps="iterate", random_state=0).fit(flat)
    several = PCA(K, gaps="iterate", random_state=0).fit(gappy)
    np.testing.assert_allclose(several.explained_variance_, one.explained_variance_, rtol=1e-9)
    filled = several.fill(gappy)
    np.testing.assert_allclose(np.hstack([x.reshape(N, -1) for x in filled]), one.fill(flat))
    np.testing.assert_allclose(several.score_errors(gappy), one.score_errors(flat))
    for model in (PCA(K), StreamingPCA(K)):
        with pytest.raises(DataError, match="finite"):
            model.fit(gappy)
        with pytest.raises(DataError, match="finite"):
            StreamingPCA(K, shuffle=True, random_state=0).fit([da.from_array(x, chunks=7) for x in gappy])
        with pytest.raises(DataError, match="finite"):
            np.asarray(model.fit([A, B]).transform([da.from_array(x) for x in gappy]))


def test_stores_have_several_arrays(tmp_path: Path) -> None:
    group = zarr.open_group(str(tmp_path / "both.zarr"), mode="w")
    for name, x in (("u", A), ("p", B)):
        group.create_array(name, data=x, chunks=(9, *x.shape[1:]))
    model = PCA(K, standardize="variable").fit(tmp_path / "both.zarr", key=["u", "p"])
    np.testing.assert_allclose(model.explained_variance_, truth({"standardize": "variable"})[1], rtol=1e-9)
    scores = model.transform(tmp_path / "both.zarr")
    assert isinstance(scores, da.Array)
    np.testing.assert_allclose(scores, model.transform({"p": B, "u": A}), atol=1e-8)
    assert model.inverse_transform(scores)["p"].shape == B.shape


def test_other_methods_take_the_variables() -> None:
    flat = np.hstack([x.reshape(N, -1) for x in (A, B)])
    one, several = PCA(K).fit(flat), PCA(K).fit([A, B])
    assert several.score([A, B]) == pytest.approx(one.score(flat))
    np.testing.assert_allclose(several.score_samples([A, B]), one.score_samples(flat), rtol=1e-6)
    np.testing.assert_allclose(several.transform(flat), one.transform(flat))  # rows of all attributes
    table = several.set_output(transform="pandas").transform([A, B])
    assert table.shape == (N, K)


@pytest.mark.parametrize(
    ("call", "word"),
    [
        (lambda: PCA(K).fit([A, B[:9]]), "samples"),
        (lambda: PCA(K).fit([A, B]).transform([A]), "variable"),
        (lambda: PCA(K).fit([A, B]).transform([A, A]), "shape"),
        (lambda: PCA(K).fit({"u": A, "p": B}).transform({"u": A, "q": B}), "variables"),
        (lambda: PCA(K).fit(FORMS["Dataset"]).transform(U), "variables"),
        (lambda: PCA(K).fit(A).transform([A, B]), "variables"),
        (lambda: PCA(K).fit(A).by_variable(A), "reshape"),
        (lambda: PCA(K).fit([A, B]).by_variable(A), "attributes"),
        (lambda: PCA(K, weights=[1.0]).fit([A, B]), "weights"),
        (lambda: PCA(K, weights=[1.0, -1.0]).fit([A, B]), "weights"),
        (lambda: StreamingPCA(K, standardize=True).partial_fit(A), "standardize"),
        (lambda: PCA(K, standardize=True, gaps="iterate").fit(A), "gaps"),
        (lambda: PCA(K, standardize="all").fit(A), "standardize"),
        (lambda: PCA(K, standardize=True).fit(np.ones((9, 4))), "weights"),
    ],
)
def test_errors_say_what_to_give(call: Callable[[], Any], word: str) -> None:
    with pytest.raises(DataError, match=word):
        call()


@pytest.mark.parametrize("kind", [PCA, StreamingPCA])
def test_a_data_set_of_results_has_those_of_each_variable(kind: Any) -> None:
    given = {"list": [A, B], "mixed": [U, B], "Dataset": xr.Dataset({"u": U, "p": P})}
    for form, variables in given.items():
        model = kind(2, random_state=0).fit(variables)
        data, (u, p) = model.to_xarray(), ("u", "p") if form == "Dataset" else ("variable_0", "variable_1")
        u = "u" if form == "mixed" else u
        np.testing.assert_array_equal(data[f"{u}_components"], model.components_[:, :20].reshape(2, *SHAPES[0]))
        np.testing.assert_array_equal(data[f"{p}_components"], model.components_[:, 20:].reshape(2, *SHAPES[1]))
        np.testing.assert_array_equal(data[f"{u}_mean"], model.mean_[:20].reshape(SHAPES[0]))
        np.testing.assert_array_equal(data[f"{p}_mean"], model.mean_[20:].reshape(SHAPES[1]))
        np.testing.assert_array_equal(data.explained_variance, model.explained_variance_)
        assert not {"components", "mean", "feature"} & {*data, *data.dims}
        if form != "list":
            assert data[f"{u}_components"].dims == ("component", "lat", "lon")
            np.testing.assert_array_equal(data.lat, U.lat)
            assert data.u_mean.attrs == {"units": "m/s"}


def test_a_data_set_of_variables_on_different_grids_is_an_error() -> None:
    other = xr.DataArray(B[:, :, :, 0], {"lon": [0, 7, 9]}, ("time", "lat", "lon"), "p")
    model = PCA(2).fit([U.drop_vars("lat"), other])
    with pytest.raises(DataError, match="rename"):
        model.to_xarray()


def test_stores_of_variables_with_dims_but_without_coordinates(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    fields = xr.Dataset(
        {"u": (("time", "y", "x"), rng.normal(size=(30, 3, 4))), "v": (("time", "z"), rng.normal(size=(30, 5)))}
    )
    model = PCA(2).fit(fields)
    model.save(tmp_path / "m")
    again = load(tmp_path / "m")
    np.testing.assert_array_equal(again.transform(fields), model.transform(fields))
    assert again.inverse_transform(again.transform(fields))["u"].dims == ("time", "y", "x")
    analysis = EOF(2).fit(fields)
    analysis.save(tmp_path / "e")
    xr.testing.assert_equal(EOF.load(tmp_path / "e").eofs()["u"], analysis.eofs()["u"])
