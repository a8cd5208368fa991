"""A region of samples: its values are those of the source, and a constant surrounds them."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dpca.storage import DataError, ingest
from dpca.storage.input import open_input
from dpca.storage.readers import open_reader
from dpca.storage.readers.masked import MaskedReader


def _field(tmp_path: Path, dtype: str = "f4") -> tuple[str, np.ndarray, np.ndarray, str]:
    x = np.random.default_rng(0).normal(300, 5, size=(9, 6, 7)).astype(dtype)
    inside = np.zeros((6, 7), bool)
    inside[1:4, 2:6] = True
    inside[2, 3] = False
    if dtype == "f4":
        x[:, 0, 0], x[4, 5, 6] = np.nan, np.inf  # outside
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "mask.npy", inside)
    return str(tmp_path / "x.npy"), x, inside, str(tmp_path / "mask.npy")


@pytest.mark.parametrize("dtype", ["f4", "u2", "i4"])
def test_values_inside_are_kept_and_one_value_of_the_range_is_outside(tmp_path: Path, dtype: str) -> None:
    source, x, inside, mask = _field(tmp_path, dtype)
    stack = ingest(MaskedReader(open_reader(source), mask), tmp_path / "out.zarr")
    found = stack.samples[...]
    assert found.dtype == dtype
    np.testing.assert_array_equal(found[:, inside], x[:, inside])
    assert np.unique(found[:, ~inside]).tolist() == [x[0, 1, 2]]
    assert stack.data_range is not None
    assert stack.data_range[0] == x[:, inside].min()


def test_boxes_and_parts_agree_and_are_sent_to_other_processes(tmp_path: Path) -> None:
    source, _, _, mask = _field(tmp_path)
    reader = MaskedReader(open_reader(source), mask)
    whole = pickle.loads(pickle.dumps(reader.part([1, 2, 5])))()
    box = pickle.loads(pickle.dumps(reader.box([1, 2, 5], ((2, 6), (1, 5)))))()
    assert reader.reads_boxes
    np.testing.assert_array_equal(box, whole[:, 2:6, 1:5])
    (streamed,) = reader.stream([[1, 2, 5]])
    np.testing.assert_array_equal(streamed, whole)


def test_a_mask_of_the_first_axes_spans_the_others(tmp_path: Path) -> None:
    x = np.arange(2 * 3 * 4 * 3, dtype=np.uint8).reshape(2, 3, 4, 3)
    inside = np.eye(3, 4)
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "mask.npy", inside[None])  # a file with one sample
    reader = MaskedReader(open_reader(tmp_path / "x.npy"), str(tmp_path / "mask.npy"))
    np.testing.assert_array_equal(reader.fetch([0, 1]), np.where(inside[:, :, None] == 1, x, x[0, 0, 0, 0]))


def test_missing_values_outside_are_filled_and_those_inside_stay(tmp_path: Path) -> None:
    xarray = pytest.importorskip("xarray")
    _, x, inside, mask = _field(tmp_path)
    x[3, 1, 3] = np.nan
    data = xarray.DataArray(np.where(np.isfinite(x), x, np.nan), dims=("time", "lat", "lon"), name="sst")
    data.to_netcdf(tmp_path / "x.nc", encoding={"sst": {"_FillValue": -9.0}})
    block = MaskedReader(open_reader(tmp_path / "x.nc"), mask).fetch(range(9))
    found = np.ma.filled(block, np.nan)
    np.testing.assert_array_equal(np.argwhere(np.isnan(found)), [[3, 1, 3]])
    np.testing.assert_array_equal(found[:, inside], x[:, inside])


def test_the_first_value_may_be_missing(tmp_path: Path) -> None:
    source, x, inside, mask = _field(tmp_path)
    x[0, 1, 2] = np.nan
    np.save(source, x)
    assert np.unique(np.asarray(MaskedReader(open_reader(source), mask).fetch([2]))[0, ~inside]).tolist() == [
        x[0][inside & np.isfinite(x[0])][0]
    ]
    x[0] = np.nan
    np.save(source, x)
    assert np.unique(np.asarray(MaskedReader(open_reader(source), mask).fetch([2]))[0, ~inside]).tolist() == [0]


def test_fingerprints_depend_on_the_values_of_the_mask(tmp_path: Path) -> None:
    source, _, inside, mask = _field(tmp_path)
    reader = MaskedReader(open_reader(source), mask)
    np.save(tmp_path / "same.npy", inside.astype("f8"))
    assert MaskedReader(open_reader(source), str(tmp_path / "same.npy")).fingerprint() == reader.fingerprint()
    inside[0, 0] = True
    np.save(mask, inside)
    assert MaskedReader(open_reader(source), mask).fingerprint() != reader.fingerprint()
    assert reader.fingerprint() != open_reader(source).fingerprint()


@pytest.mark.parametrize(
    ("values", "says"),
    [
        (np.ones((7, 6)), r"\(6, 7\)"),
        (np.ones((9, 6, 7)), r"\(6, 7\)"),
        (np.zeros((6, 7)), "everywhere"),
        (np.full((6, 7), 255, np.uint8), "255"),
        (np.full((6, 7), np.nan), "nan"),
    ],
)
def test_invalid_masks(tmp_path: Path, values: np.ndarray, says: str) -> None:
    source, _, _, mask = _field(tmp_path)
    np.save(mask, values)
    with pytest.raises(DataError, match=says):
        open_input(source, mask=mask)


def test_images_have_no_mask_before_they_are_ingested(tmp_path: Path) -> None:
    _, _, _, mask = _field(tmp_path)
    (tmp_path / "photos").mkdir()
    Image.fromarray(np.zeros((6, 7), np.uint8)).save(tmp_path / "photos" / "a.png")
    with pytest.raises(DataError, match="ingest"):
        open_input(tmp_path / "photos", mask=mask)
    ingest(tmp_path / "photos", tmp_path / "s.zarr")
    assert isinstance(open_input(tmp_path / "s.zarr", mask=mask), MaskedReader)
