"""Every method over every kind of input that people have: the right answer, or one clear sentence."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
import zarr

from dpca import StreamingPCA
from dpca.models import ConvergenceWarning, OrderWarning
from dpca.models.streaming.streaming_methods import rule_class
from dpca.parameters.streaming import RULE_CLASSES
from dpca.storage.errors import DataError
from tests.rules.streams import lost_variance

pytestmark = [
    pytest.mark.filterwarnings("ignore::dpca.models.ConvergenceWarning"),
    pytest.mark.filterwarnings("ignore::dpca.models.OrderWarning"),
]
every_method = pytest.mark.parametrize("method", list(RULE_CLASSES))


def samples(n: int = 240, shape: tuple[int, ...] = (12,), seed: int = 0) -> np.ndarray:
    """Numbers around 100, of two strong directions, in [0, 255]."""
    rng, d = np.random.default_rng(seed), int(np.prod(shape))
    basis = np.linalg.qr(rng.normal(size=(d, 2)))[0].T
    x = 100 + (rng.normal(size=(n, 2)) * [40, 20]) @ basis + rng.normal(size=(n, d))
    return np.clip(x, 0, 255).reshape(n, *shape)


def fitted(method: str, x: Any, k: int = 2, **parameters: Any) -> StreamingPCA:
    return StreamingPCA(k, method=method, random_state=0, **{"batch_size": 10, **parameters}).fit(x)


def check_answer(model: StreamingPCA, x: np.ndarray, most_lost: float = 0.35) -> None:
    """The certificates and the invariants hold, and the components are good for a method of its kind."""
    rows = x.reshape(len(x), -1).astype(np.float64)
    total = rows.var(axis=0, ddof=1).sum()
    k = model.n_components_
    assert model.components_.shape == (k, rows.shape[1])
    np.testing.assert_allclose(model.components_ @ model.components_.T, np.eye(k), atol=1e-4)
    np.testing.assert_allclose(model.mean_, rows.mean(0), rtol=1e-5, atol=1e-5 * np.sqrt(total))
    assert model.total_variance_ == pytest.approx(total, rel=1e-3, abs=1e-6)
    assert (np.diff(model.explained_variance_) <= 0).all()
    assert (model.explained_variance_ >= 0).all()
    assert model.n_samples_seen_ == len(x)
    if total > 0:
        assert lost_variance(model.components_, rows) < most_lost
    assert model.transform(x).shape == (len(x), k)
    assert model.inverse_transform(model.transform(x)).shape == x.shape


@every_method
@pytest.mark.parametrize(
    "dtype", ["uint8", "int16", "bool", "float16", "float32", "float64", ">f4", ">f8", ">i2", "int64"]
)
def test_values_of_any_type(method: str, dtype: str) -> None:
    x = samples()
    x = x > 100 if dtype == "bool" else x.astype(dtype)
    model = fitted(method, x, batch_size=20)
    check_answer(model, x)
    wide = np.dtype(dtype).itemsize > (2 if np.dtype(dtype).kind == "i" else 4)
    assert model.components_.dtype == (np.float64 if wide else np.float32)
    scores = model.transform(x)
    assert scores.dtype == model.components_.dtype
    assert model.mean_.dtype == model.explained_variance_.dtype == np.float64


@every_method
@pytest.mark.parametrize("shape", [(), (12,), (3, 4), (2, 3, 2), (2, 1, 3, 2), (2, 2, 1, 3, 1)])
def test_samples_of_any_number_of_axes(method: str, shape: tuple[int, ...]) -> None:
    if not shape:
        with pytest.raises(ValueError, match="1D|axis"):
            fitted(method, samples()[:, 0])
        return
    x = samples(shape=shape)
    model = fitted(method, x, batch_size=20)
    check_answer(model, x)
    assert model.sample_shape_ == shape
    flat = fitted(method, x.reshape(len(x), -1), batch_size=20)
    np.testing.assert_array_equal(model.components_, flat.components_)


@every_method
@pytest.mark.parametrize(
    ("kind", "bad"),
    [("numpy", np.nan), ("numpy", np.inf), ("numpy", -np.inf), ("dask", np.inf), ("zarr", -np.inf), ("path", np.nan)],
)
def test_what_is_not_finite_is_refused(method: str, bad: float, kind: str, tmp_path: Path) -> None:
    x = samples().astype(np.float32)
    x[77, 3] = bad
    with pytest.raises(ValueError, match="NaN|infinity"):
        fitted(method, stored(x, kind, tmp_path))
    if kind == "numpy":
        with pytest.raises(ValueError, match="NaN|infinity"):
            StreamingPCA(2, method=method).partial_fit(x)


def stored(x: np.ndarray, kind: str, folder: Path, rows: int = 32) -> Any:
    if kind == "dask":
        return da.from_array(x, chunks=(rows, *x.shape[1:]))
    if kind in ("zarr", "path"):
        array = zarr.create_array(str(folder / "x.zarr"), data=x, chunks=(rows, *x.shape[1:]), overwrite=True)
        return array if kind == "zarr" else str(folder / "x.zarr")
    return x


@pytest.mark.cases(5)
@every_method
def test_every_kind_of_input_and_every_chunking_gives_the_same_bytes(method: str, tmp_path: Path) -> None:
    x = samples(120, (3, 4)).astype(np.uint8)
    reference = fitted(method, x)
    for kind, rows in (("dask", 32), ("dask", 7), ("zarr", 7), ("path", 32), ("path", 120)):
        model = fitted(method, stored(x, kind, tmp_path, rows))
        # Where segments are merged, they end with the chunks: sums are rounded elsewhere.
        tolerance = 1e-4 if method == "incremental-svd" else 0
        np.testing.assert_allclose(model.components_, reference.components_, rtol=0, atol=tolerance)
        np.testing.assert_allclose(model.explained_variance_, reference.explained_variance_, rtol=tolerance)
        np.testing.assert_allclose(model.mean_, reference.mean_, rtol=tolerance)
    again = fitted(method, x)
    assert again.components_.tobytes() == reference.components_.tobytes()


@every_method
def test_constant_attributes(method: str) -> None:
    x = samples(2400)
    x[:, [0, 5]] = 3.0
    model = fitted(method, x)
    check_answer(model, x, most_lost=0.1)
    # Gradient rules forget their random start by and by.
    np.testing.assert_allclose(model.components_[:, [0, 5]], 0, atol=0.1)


@every_method
@pytest.mark.parametrize("value", [0.0, 7.25, 1e4])
def test_no_variance_at_all(method: str, value: float) -> None:
    x = np.full((40, 6), value, np.float32)
    model = fitted(method, x)
    check_answer(model, x)
    np.testing.assert_allclose(model.explained_variance_, 0, atol=1e-9)
    np.testing.assert_array_equal(model.explained_variance_ratio_, 0)
    np.testing.assert_allclose(model.inverse_transform(model.transform(x)), x, rtol=1e-6)


@every_method
def test_duplicated_samples(method: str) -> None:
    x = np.repeat(samples(4), 30, axis=0)[np.random.default_rng(0).permutation(120)]
    check_answer(fitted(method, x, k=3), x)


@every_method
def test_more_components_than_anything(method: str) -> None:
    x = samples(6)
    with pytest.raises(DataError, match=r"\b12\b"):
        fitted(method, x, k=13)
    with pytest.raises(DataError, match=r"\b6\b"):
        fitted(method, x, k=7)
    check_answer(fitted(method, x, k=6), x, most_lost=1.0)
    square = samples(40, (4,))
    check_answer(fitted(method, square, k=4), square)


@every_method
@pytest.mark.parametrize("n", [2, 3, 11, 95, 101])
def test_short_streams_and_short_last_batches(method: str, n: int) -> None:
    x = samples(n)
    model = StreamingPCA(2, method=method, random_state=0, batch_size=50).fit(x)
    # A step or two of a gradient rule are not many: below 1 is all that can be said.
    check_answer(model, x, most_lost=1.0)
    check_answer(StreamingPCA(2, method=method, random_state=0, batch_size=1).fit(x), x, most_lost=1.0)


@every_method
def test_a_stream_of_pieces_of_any_size(method: str) -> None:
    x = samples(101, (3, 4))
    model = StreamingPCA(5, method=method, random_state=0, batch_size=10)
    for start, stop in ((0, 1), (1, 3), (3, 4), (4, 60), (60, 101)):
        model.partial_fit(x[start:stop])
        assert model.n_components_ == min(5, stop)
        assert model.transform(x).shape == (101, min(5, stop))
    with pytest.raises(ValueError, match=r"\b0.sample|minimum"):
        model.partial_fit(x[:0])
    check_answer(model, x)
    whole = StreamingPCA(5, method=method, random_state=0, batch_size=10).partial_fit(x)
    np.testing.assert_array_equal(model.components_, whole.components_)
    assert np.isnan(whole.angle_moved_)
    assert 0 <= model.angle_moved_ <= np.pi / 2


@every_method
@pytest.mark.parametrize("factor", [1e-12, 1e10, 1e15, 1e25])
def test_numbers_of_any_size(method: str, factor: float) -> None:
    """Squares of the last two leave float32, or those of their squares do."""
    x = (samples() * factor).astype(np.float32)
    if factor < 1e15:
        assert lost_variance(fitted(method, x).components_, x.astype(float)) < 0.35
        return
    with np.errstate(all="ignore"):
        found = answer_or_sentence(method, x)
    if isinstance(found, str):
        assert re.search("too large|diverged|divide", found)
    else:
        assert lost_variance(found, x.astype(float) / factor) < 0.35


def answer_or_sentence(method: str, x: np.ndarray) -> np.ndarray | str:
    """The components, or what is said instead."""
    try:
        components: np.ndarray = fitted(method, x).components_
    except ValueError as error:
        return str(error)
    return components


@every_method
def test_no_samples_or_no_attributes(method: str) -> None:
    for shape in ((0, 5), (5, 0), (0, 2, 3)):
        with pytest.raises(ValueError, match=r"minimum|\b0.(feature|sample)|no.values"):
            fitted(method, np.empty(shape))
    with pytest.raises(ValueError, match=r"\b2\b|minimum"):
        fitted(method, samples(1), k=1)


@every_method
def test_warnings_are_for_those_who_need_them(method: str, tmp_path: Path) -> None:
    x = stored(samples().astype(np.uint8), "path", tmp_path)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        fitted(method, x)
        fitted(method, x, shuffle=True)
    orders = [w for w in told if issubclass(w.category, OrderWarning)]
    assert len(orders) == (0 if rule_class(method).mergeable else 1)
    assert not [w for w in told if not issubclass(w.category, OrderWarning | ConvergenceWarning)]
