"""Large samples are exported box by box, with the same files as from whole samples."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st

import dpca
from dpca.jobs import export_store
from dpca.jobs.base import shards
from dpca.jobs.base.stored_samples import stored_samples
from dpca.jobs.export import boxes, export, pyramid
from dpca.jobs.export.boxes import bands
from dpca.jobs.export.file_names import file_names
from dpca.storage import Run, open_stack, verify
from dpca.storage.arrays.layout import boxes_of
from dpca.storage.errors import PlanError
from tests.helpers.interrupted import interrupt_at
from tests.helpers.traced import traced_peak
from tests.jobs.compressed.test_append_tiles import made_and_appended
from tests.jobs.export.test_export import any_values, plain, spaced

pytest.importorskip("tifffile")
pytest.importorskip("nibabel")
pytest.importorskip("netCDF4")
xarray = pytest.importorskip("xarray")
SHAPE = (310, 530)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A compressed store with tiles, some of appended samples."""
    return made_and_appended(tmp_path_factory.mktemp("tiles"), SHAPE, 3, 4, 40_000)


def small_boxes(patch: pytest.MonkeyPatch, most: int) -> None:
    patch.setattr(export, "LARGE_SAMPLE", 0)
    patch.setattr(boxes, "MOST_DECODED", most)
    patch.setattr(boxes, "LEAST_DECODED", 2**10)
    patch.setattr(pyramid, "_CHUNK_VALUES", 2**10)


@given(data=st.data())
@settings(max_examples=200, deadline=None)
def test_bands_cover_a_sample_and_are_successive_values(data: st.DataObject) -> None:
    shape = data.draw(st.lists(st.integers(1, 20), min_size=1, max_size=4))
    unit = [data.draw(st.integers(1, n)) for n in shape]
    most = data.draw(st.integers(1, 4000))
    band = bands(shape, unit, most)
    seen = np.zeros(shape, int)
    for region in boxes_of(shape, band):
        seen[tuple(slice(*ends) for ends in region)] += 1
    assert (seen == 1).all()
    assert math.prod(band) <= max(most, math.prod(unit))
    cut = [axis for axis, (b, n) in enumerate(zip(band, shape, strict=True)) if b < n]
    # All axes behind the last one that is cut are whole, and those before it are as short as units allow.
    for axis in cut[:-1]:
        assert band[axis] == unit[axis]


KINDS = [((74, 61), "u1"), ((37, 23, 3), "u2"), ((9, 14, 11), "f4"), ((5, 6, 7, 3), "i2"), ((41,), "f8")]


@pytest.mark.parametrize("some", [None, 0, slice(0, None, 2)])
@pytest.mark.parametrize(("shape", "dtype"), KINDS)
def test_files_are_those_of_whole_samples(shape: tuple[int, ...], dtype: str, some: Any, tmp_path: Path) -> None:
    most, chunks = 2**10 if some is None else 2**11, (1, *(max(1, length // 3) for length in shape))
    zarr.create_array(str(tmp_path / "s.zarr"), data=any_values(3, shape, dtype), chunks=chunks)
    names = ["npys/", "x.npy", "x.nc", *(["x.tif", "tiffs/", "x.zarr"] if len(shape) > 1 else [])]
    names += ["x.nii", "niftis/"] if len(shape) < 4 and shape[-1] != 3 else []
    for name in names:
        form = name.removesuffix("s/") if name.endswith("/") else None
        export_store(tmp_path / "s.zarr", f"{tmp_path}/whole/{name}", format=form, samples=some)
        with pytest.MonkeyPatch.context() as patch:
            small_boxes(patch, most)
            passes = count_passes(patch)
            export_store(tmp_path / "s.zarr", f"{tmp_path}/boxes/{name}", format=form, samples=some)
        assert passes in ({"BoxesExport"}, {"PyramidBoxes"})
    compared = [path for path in (tmp_path / "whole").rglob("*") if path.suffix in (".npy", ".tif", ".nii")]
    assert len(compared) > 1
    for file in compared:
        assert file.read_bytes() == (tmp_path / "boxes" / file.relative_to(tmp_path / "whole")).read_bytes(), file
    known, found = (xarray.open_dataset(tmp_path / one / "x.nc") for one in ("whole", "boxes"))
    xarray.testing.assert_identical(known, found)
    known.close()
    found.close()
    if "x.zarr" in names:
        same_images(tmp_path / "whole" / "x.zarr", tmp_path / "boxes" / "x.zarr")


def count_passes(patch: pytest.MonkeyPatch) -> set[str]:
    """Return the names of the passes of which a unit is written."""
    seen, write = set[str](), shards.write_shards
    patch.setattr(shards, "write_shards", lambda job, units: seen.add(type(job).__name__) or write(job, units))
    return seen


def same_images(a: Path, b: Path) -> None:
    """Compare two OME-Zarr images: attributes, and values of all resolutions."""
    one, other = (zarr.open_group(path, mode="r") for path in (a, b))
    assert one.attrs["ome"] == other.attrs["ome"]
    names = sorted(name for name, _ in one.arrays())
    assert names == sorted(name for name, _ in other.arrays())
    for name in names:
        np.testing.assert_array_equal(one[name][...], other[name][...])
    assert verify(b) == []


@pytest.mark.parametrize(("shape", "dtype"), [((700, 530), "u1"), ((300, 260, 3), "u2"), ((3, 270, 301), "f4")])
def test_resolutions_by_boxes(
    shape: tuple[int, ...], dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = plain(tmp_path / "s.zarr", any_values(3, shape, dtype))
    export_store(path, tmp_path / "whole.zarr")
    small_boxes(monkeypatch, 2**15)
    monkeypatch.setattr(pyramid, "_HALVED_AT_ONCE", 2**12)
    export_store(path, tmp_path / "boxes.zarr")
    same_images(tmp_path / "whole.zarr", tmp_path / "boxes.zarr")
    fine: Any = zarr.open_group(tmp_path / "boxes.zarr", mode="r")["0"]
    assert fine.shards[-2:] != fine.shape[-2:]


def test_spacing_of_volumes_by_boxes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = spaced(tmp_path / "v.zarr", any_values(2, (3, 30, 5), "i2"))
    export_store(path, tmp_path / "whole.nii", samples=1)
    small_boxes(monkeypatch, 2**10)
    export_store(path, tmp_path / "boxes.nii", samples=1)
    assert (tmp_path / "whole.nii").read_bytes() == (tmp_path / "boxes.nii").read_bytes()


def files_in(folder: Path, store: Path) -> Any:
    """Read the exported files of a store in the order of its samples."""
    names = file_names(dpca.open_compressed(store).names.tolist(), ".npy", range(4))
    return np.stack([np.load(folder / name) for name in names])


@pytest.mark.parametrize("name", ["out", "all.npy", "all.tif", "all.nc", "all.zarr"])
def test_tiles_are_exported_with_the_memory_that_is_planned(
    name: str, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_boxes(monkeypatch, 2**17)
    peaks, planned, write = list[int](), list[int](), shards.write_shards

    def traced(job: Any, units: Any) -> Any:
        peak, found = traced_peak(lambda: None, lambda _: write(job, units), 0)
        peaks.append(peak)
        return found

    monkeypatch.setattr(shards, "write_shards", traced)
    for module in ("boxes", "pyramid"):
        monkeypatch.setattr(
            f"dpca.jobs.export.{module}.require_memory", lambda what, need, budget: planned.append(need)
        )
    export_store(store, tmp_path / name, format="npy" if name == "out" else None, run=Run(threads=1))
    assert max(peaks) <= planned[-1] - boxes.TASK_OVERHEAD
    assert len(peaks) > 4
    y = dpca.open_compressed(store)[...]
    found: dict[str, Any] = {
        "out": lambda path: files_in(path, store),
        "all.npy": np.load,
        "all.tif": lambda path: pytest.importorskip("tifffile").imread(path),
        "all.nc": lambda path: xarray.open_dataset(path).samples.values,
        "all.zarr": lambda path: open_stack(path).samples[...],
    }
    np.testing.assert_array_equal(found[name](tmp_path / name), y)


@pytest.mark.parametrize("name", ["out", "all.npy", "all.zarr"])
def test_an_interrupted_export_resumes_with_its_boxes(
    name: str, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_boxes(monkeypatch, 2**16)
    form, left = "npy" if name == "out" else None, iter([True] * 4 + [False] * 100)
    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        interrupt_at(patch, lambda unit: next(left))
        export_store(store, tmp_path / name, format=form, run=Run(threads=1))
    assert not (tmp_path / name).exists()
    monkeypatch.setattr(boxes, "MOST_DECODED", 2**13)
    export_store(store, tmp_path / name, format=form)
    y = dpca.open_compressed(store)[...]
    if name == "out":
        read = files_in(tmp_path / name, store)
    else:
        read = np.load(tmp_path / name) if name == "all.npy" else open_stack(tmp_path / name).samples[...]
    np.testing.assert_array_equal(read, y)


def test_small_memory_takes_smaller_boxes_until_none_fits(store: Path, tmp_path: Path) -> None:
    given = stored_samples(store)
    kind, sizes = export._kind_of(given, 95), set()
    for memory in range(2**24, 2**28, 2**20):
        try:
            found = boxes.choose_export_boxes(given, kind, 4, memory)
        except PlanError:
            assert not sizes
            continue
        sizes.add((found.rows, found.regions[0]))
    assert len(sizes) > 1
    assert {rows for rows, _ in itertools.chain(sizes)} <= {1, 4}
