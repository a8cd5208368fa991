"""Volumes in NIfTI files that nibabel wrote."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dpca.storage import ingest
from dpca.storage.errors import DataError
from dpca.storage.readers import open_reader

nibabel = pytest.importorskip("nibabel")


def save(path: Path, values: Any, *, version: int = 1, endian: str = "<", scaling: Any = None) -> Path:
    kind = {1: nibabel.Nifti1Image, 2: nibabel.Nifti2Image}[version]
    header = kind.header_class(endianness=endian)
    header.set_data_dtype(values.dtype.newbyteorder(endian))
    image = kind(values, np.eye(4), header, dtype=values.dtype)
    if scaling is not None:
        image.header.set_slope_inter(*scaling)
    nibabel.save(image, path)
    return path


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    dtype=st.sampled_from(["u1", "i1", "i2", "u2", "i4", "u4", "f4", "f8", "i8"]),
    shape=st.lists(st.integers(2, 4), min_size=4, max_size=4),
    version=st.sampled_from([1, 2]),
    endian=st.sampled_from("<>"),
    scaling=st.sampled_from([None, (0.25, 3.0)]),
    suffix=st.sampled_from(["", ".gz"]),
)
def test_volumes_are_those_of_nibabel(
    dtype: str, shape: list[int], version: int, endian: str, scaling: Any, suffix: str, tmp_path: Path
) -> None:
    x = np.random.default_rng(0).integers(0, 100, shape).astype(dtype)
    path = save(tmp_path / f"s.nii{suffix}", x, version=version, endian=endian, scaling=scaling)
    truth = nibabel.load(path).get_fdata()
    reader = open_reader(path)
    assert reader.axes == ("z", "y", "x")
    assert reader.dtype == np.dtype(dtype) if scaling is None else reader.dtype.kind == "f"
    read = next(iter(reader.stream([range(len(reader))])))
    np.testing.assert_allclose(read, truth.T, rtol=1e-6)


def test_one_volume_is_one_sample(tmp_path: Path) -> None:
    x = np.arange(24, dtype="i2").reshape(2, 3, 4)
    path = save(tmp_path / "s.nii", x)
    assert open_reader(path).sample_shape == (4, 3, 2)
    np.testing.assert_array_equal(open_reader(path).fetch([0])[0], x.T)
    # its slices instead
    slices = open_reader(path, axes=("t", "sample", "y", "x"))
    np.testing.assert_array_equal(slices.fetch(range(4))[:, 0], x.T)


def test_ingested_and_refused(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(4, 5, 6, 7)).astype("f4")
    stack = ingest(save(tmp_path / "s.nii.gz", x), tmp_path / "out.zarr")
    assert stack.axes == ("sample", "z", "y", "x")
    np.testing.assert_array_equal(stack.samples[:], x.T)
    x[1, 2, 3, 4] = np.nan
    with pytest.raises(DataError, match=r"sample.4\b.*s\.nii.*\(3,.2,.1\)"):
        ingest(save(tmp_path / "s.nii", x), tmp_path / "nan.zarr")


@pytest.mark.parametrize(
    ("at", "form", "value", "words"),
    [
        (40, "8h", (5, 2, 3, 4, 5, 6, 1, 1), r"has the shape \(2, 3, 4, 5, 6\)"),
        (40, "8h", (-1, 2, 3, 4, 5, 6, 1, 1), r"has the shape \(\)"),
        (40, "8h", (99, 2, 3, 4, 5, 6, 1, 1), "has the shape"),
        (40, "8h", (4, 32767, 32767, 32767, 32767, 1, 1, 1), "is truncated"),
        (70, "h", (128,), "values of type 128"),
        (108, "f", (8.0,), "inside its header"),
        (108, "f", (float("nan"),), "inside its header"),
        (112, "2f", (1.0, float("inf")), "add_offset"),
    ],
)
def test_claims_are_checked(at: int, form: str, value: tuple[float, ...], words: str, tmp_path: Path) -> None:
    path = save(tmp_path / "s.nii", np.zeros((2, 3, 4, 5), "i2"))
    content = bytearray(path.read_bytes())
    struct.pack_into("<" + form, content, at, *value)
    path.write_bytes(content)
    with pytest.raises(DataError, match=words):
        open_reader(path)


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_b_values_beside_a_series_are_coordinates_of_its_samples(tmp_path: Path, suffix: str) -> None:
    x = np.arange(5 * 4 * 3 * 6, dtype=np.int16).reshape(5, 4, 3, 6)
    file = save(tmp_path / f"dwi.nii{suffix}", x)
    plain = open_reader(file).fingerprint()
    (tmp_path / "dwi.bval").write_text("0 1000 1000 2.5e3 0\n1000\n")
    reader = open_reader(file)
    assert reader.fingerprint() != plain
    for stack in (
        ingest(file, tmp_path / "x.zarr"),
        ingest(file, tmp_path / "s.zarr", axes=["slice", "row", "column"]),
    ):
        assert stack.coordinates is not None
        found = stack.coordinates.arrays["b_value"]
        assert found.dims == (stack.coordinates.dims[0],)
        assert found.values.tolist() == [0, 1000, 1000, 2500, 0, 1000]
        assert found.attributes["units"] == "s mm-2"
    other = reader.fingerprint()
    (tmp_path / "dwi.bval").write_text("0 1000 1000 2000 0 1000")
    assert open_reader(file).fingerprint() != other


@pytest.mark.parametrize("text", ["0 1000", "0 1 2 3 4 nan", "0 1 2 3 4 five", "\xe9"])
def test_wrong_b_values_are_one_sentence(tmp_path: Path, text: str) -> None:
    file = save(tmp_path / "dwi.nii", np.zeros((5, 4, 3, 6), np.int16))
    (tmp_path / "dwi.bval").write_text(text)
    with pytest.raises(DataError, match="bval"):
        open_reader(file)


def rotated(zooms: Any, *, flipped: bool = False) -> np.ndarray:
    """Return an affine with an oblique rotation."""
    one, other = np.radians([20.0, -35.0])
    about_z = np.array([[np.cos(one), -np.sin(one), 0], [np.sin(one), np.cos(one), 0], [0, 0, 1]])
    about_x = np.array([[1, 0, 0], [0, np.cos(other), -np.sin(other)], [0, np.sin(other), np.cos(other)]])
    affine = np.eye(4)
    affine[:3, :3] = about_z @ about_x @ np.diag([*zooms[:2], -zooms[2] if flipped else zooms[2]])
    affine[:3, 3] = -90.5, 12.25, 33.125
    return affine


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("form", ["sform", "qform"])
@pytest.mark.parametrize(("units", "seconds"), [(("mm", "sec"), 2.5), (("micron", "msec"), 2.5e-3)])
def test_place_spacing_and_units_are_those_of_nibabel(
    version: int, form: str, units: tuple[str, str], seconds: float, tmp_path: Path
) -> None:
    affine = rotated((2.0, 1.5, 0.7), flipped=form == "qform")
    kind = {1: nibabel.Nifti1Image, 2: nibabel.Nifti2Image}[version]
    image = kind(np.arange(120, dtype="i2").reshape(2, 3, 4, 5), affine)
    image.header.set_zooms((2.0, 1.5, 0.7, 2.5))
    image.header.set_xyzt_units(*units)
    image.set_sform(affine if form == "sform" else None, code="mni" if form == "sform" else 0)
    image.set_qform(affine if form == "qform" else np.eye(4), code="aligned")
    nibabel.save(image, tmp_path / "s.nii")
    truth = nibabel.load(tmp_path / "s.nii")
    along = open_reader(tmp_path / "s.nii").coordinates
    assert along is not None
    assert along.attributes["nifti_space"] == ("mni" if form == "sform" else "aligned")
    found = np.array(along.attributes["nifti_affine"].split(), float).reshape(3, 4)
    np.testing.assert_allclose(found, truth.affine[:3], rtol=1e-5, atol=1e-5)
    assert float(along.attributes["time_step"]) == pytest.approx(seconds)
    for axis, step in zip("xyz", truth.header.get_zooms(), strict=False):
        assert along.arrays[axis].attributes["units"] == {"mm": "mm", "micron": "um"}[units[0]]
        np.testing.assert_allclose(np.diff(along.arrays[axis].values), step, rtol=1e-6)


@pytest.mark.parametrize(("at", "form", "value"), [(280, "f", np.nan), (254, "h", 77)])
def test_an_invalid_place_is_left_out(at: int, form: str, value: float, tmp_path: Path) -> None:
    path = save(tmp_path / "s.nii", np.zeros((2, 3, 4, 5), "i2"))
    content = bytearray(path.read_bytes())
    struct.pack_into(f"<{form}", content, at, value)
    path.write_bytes(content)
    along = open_reader(path).coordinates
    assert along is None or "nifti_affine" not in along.attributes


def test_slices_as_samples_have_no_affine(tmp_path: Path) -> None:
    image = nibabel.Nifti1Image(np.zeros((2, 3, 4), "i2"), rotated((2.0, 1.5, 0.7)))
    nibabel.save(image, tmp_path / "s.nii")
    along = open_reader(tmp_path / "s.nii", axes=("t", "sample", "y", "x")).coordinates
    assert along is not None
    assert "nifti_affine" not in along.attributes
