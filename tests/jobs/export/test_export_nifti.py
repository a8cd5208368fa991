"""NIfTI series that go through the jobs and come back with their place, spacing, units and b-values."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest
import zarr

from dpca.cli import main
from dpca.jobs import export_store
from dpca.storage import ingest
from dpca.storage.errors import DataError, StoreError
from dpca.storage.readers import open_reader

nibabel = pytest.importorskip("nibabel")


def series(path: Path, shift: float = 0.0) -> Path:
    """Write a series with an oblique affine, a time step and units."""
    angle = np.radians(25.0)
    affine = np.eye(4)
    affine[:2, :2] = [[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]]
    affine[:3, :3] = affine[:3, :3] @ np.diag([2.0, -1.5, 3.0])
    affine[:3, 3] = -90 + shift, 60, 20
    x = np.random.default_rng(0).integers(0, 4000, (12, 10, 8, 6)).astype(np.int16)
    image = nibabel.Nifti1Image(x, affine)
    image.set_sform(affine, code="talairach")
    image.header.set_zooms((2.0, 1.5, 3.0, 0.8))
    image.header.set_xyzt_units("mm", "sec")
    nibabel.save(image, path)
    return path


def assert_placed_alike(path: Path, truth: Path, step: float = 0.8) -> None:
    found, wanted = nibabel.load(path), nibabel.load(truth)
    np.testing.assert_allclose(found.affine, wanted.affine, rtol=1e-6, atol=1e-6)
    assert found.header.get_zooms() == pytest.approx((2.0, 1.5, 3.0, step)[: found.ndim])
    assert found.header.get_sform(coded=True)[1] == 3
    assert found.header.get_xyzt_units()[0] == "mm"


@pytest.mark.parametrize(
    "command", [["compress", "--quality", "max-error=2", "--cell", "4"], ["denoise", "--cell", "4"], ["ingest"]]
)
def test_series_come_back_where_they_were(command: list[str], tmp_path: Path) -> None:
    source = series(tmp_path / "x.nii")
    name, *options = command
    assert main([name, str(source), str(tmp_path / "s.zarr"), *options]) == 0
    assert main(["export", str(tmp_path / "s.zarr"), str(tmp_path / "out.nii")]) == 0
    assert_placed_alike(tmp_path / "out.nii", source)
    assert nibabel.load(tmp_path / "out.nii").header.get_xyzt_units() == ("mm", "sec")
    if name != "denoise":
        values = (np.asarray(nibabel.load(path).dataobj, float) for path in (tmp_path / "out.nii", source))
        np.testing.assert_allclose(*values, atol=2)


def test_parts_of_series(tmp_path: Path) -> None:
    source = series(tmp_path / "x.nii")
    ingest(source, tmp_path / "s.zarr")
    export_store(tmp_path / "s.zarr", tmp_path / "one.nii", samples=2)
    assert_placed_alike(tmp_path / "one.nii", source)
    # the time between every second volume is not that of the series
    export_store(tmp_path / "s.zarr", tmp_path / "some.nii", samples=slice(0, 6, 2))
    assert_placed_alike(tmp_path / "some.nii", source, step=1.0)
    assert nibabel.load(tmp_path / "some.nii").header.get_xyzt_units() == ("mm", "unknown")


def test_series_from_two_places_have_none_in_common(tmp_path: Path) -> None:
    ingest([series(tmp_path / "a.nii"), series(tmp_path / "b.nii", 5.0)], tmp_path / "s.zarr")
    export_store(tmp_path / "s.zarr", tmp_path / "out.nii")
    found = nibabel.load(tmp_path / "out.nii")
    np.testing.assert_allclose(found.affine, np.diag([2.0, 1.5, 3.0, 1.0]))
    assert found.header.get_zooms() == pytest.approx((2.0, 1.5, 3.0, 0.8))


def test_a_wrong_affine_is_one_sentence(tmp_path: Path) -> None:
    dims = ("sample", "z", "y", "x")
    group = zarr.create_group(tmp_path / "s.zarr")
    array = group.create_array("x", shape=(2, 3, 4, 5), dtype="i2", dimension_names=dims)
    array[:] = 1
    array.attrs["nifti_affine"] = "1 0 0"
    with pytest.raises(DataError, match="nifti_affine"):
        export_store(tmp_path / "s.zarr" / "x", tmp_path / "out.nii")
    assert not (tmp_path / "out.nii").exists()


@pytest.mark.parametrize("samples", [None, slice(1, 5, 2)])
@pytest.mark.parametrize("name", ["out.nii", "out.nii.gz", "OUT.NII.GZ"])
def test_b_values_are_beside_the_file(name: str, samples: slice | None, tmp_path: Path) -> None:
    source, values = series(tmp_path / "x.nii"), [0, 1000, 2000.5, 5, 700, 1e-3]
    (tmp_path / "x.bval").write_text(" ".join(map(str, values)))
    ingest(source, tmp_path / "s.zarr")
    (tmp_path / "new").mkdir()
    target = tmp_path / "new" / name
    export_store(tmp_path / "s.zarr", target, samples=samples)
    image, wanted = nibabel.load(target), samples or slice(None)
    np.testing.assert_array_equal(image.dataobj, np.asarray(nibabel.load(source).dataobj)[..., wanted])
    assert (target.read_bytes()[:2] == b"\x1f\x8b") == name.lower().endswith(".gz")
    beside = target.with_name(f"{name[:3]}.bval")
    assert sorted(target.parent.iterdir()) == sorted([target, beside])
    np.testing.assert_array_equal(np.loadtxt(beside), values[wanted])
    again = open_reader(target).coordinates
    assert again is not None
    assert again.arrays["b_value"].values.tolist() == values[wanted]


def test_other_b_values_are_not_replaced(tmp_path: Path) -> None:
    source = series(tmp_path / "x.nii")
    (tmp_path / "x.bval").write_text("0 1 2 3 4 5")
    ingest(source, tmp_path / "s.zarr")
    (tmp_path / "out.bval").write_text("7")
    with pytest.raises(StoreError, match="b-values"):
        export_store(tmp_path / "s.zarr", tmp_path / "out.nii")
    assert (tmp_path / "out.bval").read_text() == "7"
    assert not (tmp_path / "out.nii").exists()


def test_compressed_files_have_no_date_and_no_name(tmp_path: Path) -> None:
    ingest(series(tmp_path / "x.nii"), tmp_path / "s.zarr")
    for name in ("a.nii.gz", "b.nii"):
        export_store(tmp_path / "s.zarr", tmp_path / name)
    content = (tmp_path / "a.nii.gz").read_bytes()
    assert content[3:8] == bytes(5)  # flags and time (RFC 1952, section 2.3)
    assert gzip.decompress(content) == (tmp_path / "b.nii").read_bytes()


@pytest.mark.parametrize("name", ["x.foo.gz", "x.img", "x.mp4", "x.npy.gz"])
@pytest.mark.parametrize("form", [None, "nifti"])
def test_unknown_suffixes_are_no_folders(name: str, form: str | None, tmp_path: Path) -> None:
    ingest(series(tmp_path / "x.nii"), tmp_path / "s.zarr")
    with pytest.raises(DataError, match=name):
        export_store(tmp_path / "s.zarr", tmp_path / name, format=form)
    assert not (tmp_path / name).exists()
    export_store(tmp_path / "s.zarr", f"{tmp_path / name}/", format=form)
    assert (tmp_path / name / "manifest.json").exists()
    # an earlier export is recognized by its name alone
    export_store(tmp_path / "s.zarr", tmp_path / name, format=form)
