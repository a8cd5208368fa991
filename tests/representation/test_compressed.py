from __future__ import annotations

import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import dpca
from dpca import CellPCA
from dpca.jobs import encode_store
from dpca.representation.compressed.compressed import Compressed
from dpca.storage import DataError, StoreError, ingest, open_stack, verify
from tests.conftest import smooth_images

N, SHAPE = 600, (21, 26, 2)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("compressed")
    np.save(folder / "images.npy", smooth_images(N, SHAPE))
    ingest(folder / "images.npy", folder / "stack.zarr", axes=("y", "x", "channel"))
    stack = open_stack(folder / "stack.zarr")
    CellPCA(30, cell_shape=6, overlap=3, shared=True).fit(stack).save(folder / "model.zarr")
    encode_store(stack, folder / "model.zarr", folder / "out.zarr", psnr=32.0)
    encode_store(stack, folder / "model.zarr", folder / "promised.zarr", max_error=3.0)
    return folder


@pytest.fixture(scope="module", params=["out.zarr", "promised.zarr"])
def both(request: pytest.FixtureRequest, path: Path) -> tuple[Compressed, np.ndarray]:
    """A store, and all that is in it."""
    store = dpca.open_compressed(path / request.param)
    return store, store[...]


@settings(deadline=None, max_examples=60)
@given(index=hnp.basic_indices((N, *SHAPE), allow_newaxis=False))
def test_indexes_of_slices_and_integers_are_those_of_numpy(both: tuple[Compressed, np.ndarray], index: Any) -> None:
    store, whole = both
    assert np.array_equal(store[index], whole[index])


@settings(deadline=None, max_examples=30)
@given(index=hnp.integer_array_indices((N, *SHAPE)), some=st.integers(1, 4))
def test_indexes_of_arrays_are_those_of_numpy(both: tuple[Compressed, np.ndarray], index: Any, some: int) -> None:
    store, whole = both
    assert np.array_equal(store[index[:some]], whole[index[:some]])


@pytest.mark.parametrize("dtype", ["u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8"])
def test_integers_of_every_type_are_indexes(both: tuple[Compressed, np.ndarray], dtype: str) -> None:
    """Also where a type does not hold the length of an axis."""
    store, whole = both
    kind = np.dtype(dtype).type
    for index in (kind(5), np.array(5, kind), np.array([7, 2], kind), (slice(2), kind(3), kind(4))):
        assert np.array_equal(store[index], whole[index])
    if np.dtype(dtype).kind == "i":
        assert np.array_equal(store[kind(-1)], whole[-1])
        assert np.array_equal(store[np.array([-128, 3], kind)], whole[[-128, 3]])
    assert store.read_bytes(kind(5)) == store.read_bytes(5)


def test_masks_and_lists(both: tuple[Compressed, np.ndarray]) -> None:
    store, whole = both
    mask = np.arange(N) % 7 == 3
    assert np.array_equal(store[mask, 2:5], whole[mask, 2:5])
    assert np.array_equal(store[[599, 0, 599]], whole[[599, 0, 599]])
    assert np.array_equal(store[[]], whole[[]])
    assert store[3, 4, 5, 1] == whole[3, 4, 5, 1]
    assert (len(store), store.ndim, store.size, store.nbytes) == (N, 4, whole.size, whole.nbytes)
    assert np.array_equal(np.asarray(store), whole)


@pytest.mark.parametrize("index", [N, (0, -22), (..., ...), (0, 0, 0, 0, 0), 1.5, None, np.ones(3, bool), "a"])
def test_wrong_indexes(both: tuple[Compressed, np.ndarray], index: Any) -> None:
    with pytest.raises(IndexError):
        both[0][index]


def test_dask_reads_the_same_here_and_in_other_processes(both: tuple[Compressed, np.ndarray], cluster: Any) -> None:
    store, whole = both
    lazy = store.dask()
    assert (lazy.shape, lazy.dtype, lazy.chunks[0]) == (whole.shape, whole.dtype, (160, 160, 160, 120))
    assert lazy.name == store.dask().name
    part = lazy[250:260, 3:9]
    assert np.array_equal(part.compute(scheduler="threads"), whole[250:260, 3:9])
    assert np.array_equal(cluster.compute(part, sync=True), whole[250:260, 3:9])
    assert np.array_equal(pickle.loads(pickle.dumps(store))[7], whole[7])


def test_levels_are_those_of_the_components(path: Path) -> None:
    whole = dpca.open_compressed(path / "out.zarr")
    for level in (1, 3):
        store = dpca.open_compressed(path / "out.zarr", level=level)
        codes = whole.codec.encode(whole[:9], np.int16)
        codes = np.asarray(whole._group["codes"][:, :9]) * (whole.codec.component < level)[:, None]
        expected = np.clip(np.rint(whole.codec.decode(codes)), 0, 255)
        assert np.array_equal(store[:9], expected)
    assert np.array_equal(dpca.open_compressed(path / "out.zarr", level=99)[5], whole[5])
    for level in (0, -1, True, 1.5):
        with pytest.raises(DataError, match="positive"):
            dpca.open_compressed(path / "out.zarr", level=level)


def test_other_stores_are_refused(path: Path) -> None:
    with pytest.raises(StoreError, match="encode"):
        dpca.open_compressed(path / "stack.zarr")
    with pytest.raises(StoreError, match="nothing"):
        dpca.open_compressed(path / "none.zarr")


@pytest.mark.cases(1)
@pytest.mark.parametrize("name", ["psnr", "promised", "waves"])
def test_a_store_of_the_first_version_is_read(tmp_path: Path, name: str) -> None:
    with zipfile.ZipFile(Path(__file__).parents[1] / "fixtures" / "compressed-1.zip") as archive:
        archive.extractall(tmp_path)
    expected = np.load(tmp_path / f"{name}.npy")
    store = dpca.open_compressed(tmp_path / f"{name}.zarr")
    assert (store.shape, store.dtype) == (expected.shape, expected.dtype)
    # Where sums are added in another order, values halfway between two integers may be rounded the other way.
    assert np.abs(store[...].astype(float) - expected).max() <= (1 if store.dtype == np.uint8 else 1e-6)
    assert verify(tmp_path / f"{name}.zarr") == []
