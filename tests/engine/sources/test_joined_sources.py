"""Sources that are read in step give the attributes of all side by side, for every kind of source and region."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st

from dpca.engine.folds.fold import fold
from dpca.engine.folds.identity import digest
from dpca.engine.sources import joined
from dpca.engine.sources.joined import JoinedSource
from dpca.engine.sources.source import as_source, batches
from dpca.partition.whole import Whole
from dpca.rules.covariance.covariance import Covariance
from dpca.storage import DataError
from dpca.storage.run import Run

N = 53
X = np.random.default_rng(0).normal(size=(N, 4, 3)).astype(np.float32)
Y = np.random.default_rng(1).integers(0, 200, (N, 5)).astype(np.uint8)
Z = np.random.default_rng(2).normal(size=(N, 3, 2, 2)).astype(np.float32)
ALL = np.concatenate([X.reshape(N, -1), Y, Z.reshape(N, -1)], axis=1)


def sources(folder: Path) -> dict[str, Any]:
    return {
        "arrays": (X, Y, Z),
        "stores": (
            str(zarr.create_array(folder / "x.zarr", data=X, chunks=(10, 2, 3)).store_path.store.root),
            str(zarr.create_array(folder / "y.zarr", data=Y, chunks=(7, 5)).store_path.store.root),
            str(zarr.create_array(folder / "z.zarr", data=Z, chunks=(9, 2, 1, 2)).store_path.store.root),
        ),
        "dask": (da.from_array(X, chunks=(9, 4, 1)), da.from_array(Y, chunks=20), da.from_array(Z, chunks=15)),
        "mixed": (X, da.from_array(Y, chunks=11), Z),
    }


@pytest.mark.parametrize("kind", ["arrays", "stores", "dask", "mixed"])
def test_boxes_and_pieces_hold_the_attributes_of_all(kind: str, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(joined, "_READ_BYTES", 100)  # few samples at a time
    pair = JoinedSource(*map(as_source, sources(tmp_path)[kind]))
    assert (pair.shape, pair.dtype) == ((N, 29), np.float32)
    for region in ((0, 29), (5, 14), (13, 16), (0, 3), (18, 20), (7, 24), (28, 29)):
        for rows in (60, 8):
            found = np.concatenate([b.copy() for _, b in batches(pair, (3, 50), (region,), rows)])
            np.testing.assert_array_equal(found, ALL[3:50, slice(*region)])
        piece = pair.piece((20, 41), (region,))
        piece = piece.compute() if hasattr(piece, "compute") else piece
        found = np.concatenate([b.copy() for _, b in batches(piece, (20, 41), (region,), 10)])
        np.testing.assert_array_equal(found, ALL[20:41, slice(*region)])
    (result,), _ = fold(Covariance(), pair, Whole((29,)), run=Run(threads=2))
    np.testing.assert_allclose(result["covariance"], np.cov(ALL.T), atol=1e-3)
    lazy = pair.as_dask()
    assert (lazy is None) == (kind != "dask")
    if lazy is not None:
        np.testing.assert_array_equal(lazy.compute(), ALL)


@given(
    st.sampled_from(["uint8", "int8", "uint16", "int16", "bool"]),
    st.sampled_from(["uint8", "int16", "float32", "int64"]),
)
def test_small_integers_stay_integers(first: str, second: str) -> None:
    pair = JoinedSource(as_source(np.ones((3, 2), first)), as_source(np.ones((3, 4), second)))
    joint = np.result_type(first, second)
    if joint.kind in "iu" and joint.itemsize <= 2:
        assert pair.dtype == joint
    else:
        assert pair.dtype == (np.float64 if second == "int64" else np.float32)


def test_values_that_are_not_finite_are_named() -> None:
    wrong = X.copy()
    wrong[31, 2, 1] = np.nan
    with pytest.raises(DataError, match="31"):
        fold(Covariance(), JoinedSource(as_source(wrong), as_source(Y)), Whole((17,)))


def test_other_samples_have_another_identity() -> None:
    pairs = [JoinedSource(as_source(X), as_source(y)) for y in (Y, Y.copy(), Y + 1)]
    first, same, other = map(digest, pairs)
    assert first == same != other
