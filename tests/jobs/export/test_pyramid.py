"""OME-Zarr images as the specification says, with the samples at every resolution."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st

from dpca.jobs import export_store
from dpca.jobs.export.pyramid import halved, level_layout, pyramid_levels
from dpca.jobs.export.sample_files import SampleKind
from dpca.storage import DataError, Run, open_stack, verify
from dpca.storage.readers import open_reader
from tests.jobs.export.test_export import any_values, plain, spaced


def described(path: Path) -> dict[str, Any]:
    """Return the multiscale of an image after hand-made checks of the specification 0.5."""
    group = zarr.open_group(path, mode="r")
    ome: Any = group.attrs["ome"]
    assert ome["version"] == "0.5"
    (image,) = ome["multiscales"]
    kinds = [axis["type"] for axis in image["axes"]]
    assert kinds == sorted(kinds, key=["time", "channel", "space"].index)
    assert kinds.count("space") in (2, 3)
    scales = []
    for one in image["datasets"]:
        array: Any = group[one["path"]]
        assert list(array.metadata.dimension_names) == [axis["name"] for axis in image["axes"]]
        first, *rest = one["coordinateTransformations"]
        assert first["type"] == "scale"
        assert len(first["scale"]) == array.ndim
        assert [len(two["translation"]) for two in rest] in ([], [array.ndim])
        scales.append(first["scale"])
    assert all(a <= b for fine, coarse in itertools.pairwise(scales) for a, b in zip(fine, coarse, strict=True))
    if "omero" in ome:
        assert all(set(one["window"]) == {"min", "max", "start", "end"} for one in ome["omero"]["channels"])
    return image


@pytest.mark.parametrize(
    ("shape", "dtype", "lengths"),
    [
        ((7, 9), "u1", [(7, 9)]),
        ((300, 700), "u2", [(300, 700), (150, 350), (150, 175)]),
        ((513, 20, 3), "u1", [(3, 513, 20), (3, 257, 20), (3, 129, 20)]),
        ((5, 258, 6), "f4", [(5, 258, 6), (5, 129, 6)]),
        ((260, 3, 4, 2), "i2", [(2, 260, 3, 4), (2, 130, 3, 4)]),
    ],
)
def test_resolutions(shape: tuple[int, ...], dtype: str, lengths: list[tuple[int, ...]], tmp_path: Path) -> None:
    values = any_values(4, shape, dtype)
    export_store(plain(tmp_path / "s.zarr", values), tmp_path / "out.ome.zarr", samples=slice(1, 4))
    image = described(tmp_path / "out.ome.zarr")
    group: Any = zarr.open_group(tmp_path / "out.ome.zarr", mode="r")
    assert [group[one["path"]].shape[1:] for one in image["datasets"]] == lengths
    channels_first = np.moveaxis(values, -1, 1) if shape[-1] in (2, 3) and len(shape) > 2 else values
    np.testing.assert_array_equal(group["0"][...], channels_first[1:])
    for fine, coarse in itertools.pairwise(one["path"] for one in image["datasets"]):
        np.testing.assert_array_equal(group[coarse][...], _means(group[fine][...], group[coarse].shape))
    assert verify(tmp_path / "out.ome.zarr") == []


def _means(values: Any, shape: tuple[int, ...]) -> Any:
    """Return means of two neighbors along the axes that became shorter, sample by sample and one by one."""
    found = np.empty(shape, values.dtype)
    for index in np.ndindex(shape):
        box = tuple(
            slice(2 * i, 2 * i + 2) if n < m else slice(i, i + 1)
            for i, n, m in zip(index, shape, values.shape, strict=True)
        )
        mean = values[box].astype(np.float64).mean()
        found[index] = np.floor(mean + 0.5) if values.dtype.kind in "iu" else mean
    return found


def test_the_models_of_the_specification_accept_it(tmp_path: Path) -> None:
    models = pytest.importorskip("ome_zarr_models.v05")
    for name, shape, dtype in (("color", (300, 40, 3), "u1"), ("volume", (6, 5, 4), "u2"), ("floats", (9, 8), "f4")):
        export_store(plain(tmp_path / f"{name}.zarr", any_values(3, shape, dtype)), tmp_path / f"{name}.ome.zarr")
        image = models.Image.from_zarr(zarr.open_group(tmp_path / f"{name}.ome.zarr", mode="r"))
        assert image.ome_attributes.multiscales[0].ndim == len(shape) + 1


def test_physical_units(tmp_path: Path) -> None:
    store = spaced(tmp_path / "v.zarr", any_values(2, (3, 300, 5), "i2"))
    export_store(store, tmp_path / "v.ome.zarr")
    image = described(tmp_path / "v.ome.zarr")
    assert [axis.get("unit") for axis in image["axes"]] == [None, "micrometer", "micrometer", None]
    fine, coarse = (one["coordinateTransformations"] for one in image["datasets"])
    assert fine == [
        {"type": "scale", "scale": [1, 2.5, 0.5, 1]},
        {"type": "translation", "translation": [0, 0, 10, 0]},
    ]
    assert coarse == [
        {"type": "scale", "scale": [1, 2.5, 1, 1]},
        {"type": "translation", "translation": [0, 0, 10.25, 0]},
    ]


def test_dpca_reads_it_as_any_image(tmp_path: Path) -> None:
    values = any_values(4, (300, 20), "u2")
    export_store(plain(tmp_path / "s.zarr", values), tmp_path / "out.zarr")
    np.testing.assert_array_equal(open_stack(tmp_path / "out.zarr").samples[...], values)
    assert open_reader(str(tmp_path / "out.zarr")).sample_shape == (300, 20)
    assert export_store(tmp_path / "s.zarr", tmp_path / "out.zarr").cost is None
    export_store(tmp_path / "s.zarr", tmp_path / "out.zarr", samples=slice(2), run=Run(overwrite=True))
    assert open_stack(tmp_path / "out.zarr").n_samples == 2
    with pytest.raises(DataError, match="OME-Zarr"):
        export_store(plain(tmp_path / "vectors.zarr", any_values(4, (30,), "u2")), tmp_path / "no.zarr")


@settings(max_examples=60, deadline=None)
@given(
    shape=st.lists(st.integers(1, 6), min_size=1, max_size=4),
    dtype=st.sampled_from(["u1", "i1", "u2", "i4", "f4", "f8"]),
    data=st.data(),
)
def test_means_of_neighbors(shape: list[int], dtype: str, data: Any) -> None:
    values = any_values(1, tuple(shape), dtype, data.draw(st.integers(0, 99)))[0]
    axes = sorted(data.draw(st.sets(st.integers(0, len(shape) - 1), min_size=1)))
    found = halved(values, axes)
    expected = _means(values, found.shape)
    assert found.shape == tuple(-(-n // 2) if i in axes else n for i, n in enumerate(shape))
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("shape", "channels", "chunk"),
    [
        ((8000, 8000), None, (500, 500)),
        ((250, 250), 3, (1, 250, 250)),
        ((512, 512, 512), None, (64, 64, 64)),
        ((6, 3000, 2000), 2, (1, 6, 215, 200)),
    ],
)
@pytest.mark.parametrize("part_bytes", [None, 2**22])
def test_a_chunk_is_what_a_viewer_loads_at_once(
    shape: tuple[int, ...], channels: int | None, chunk: tuple[int, ...], part_bytes: int | None
) -> None:
    names = ("z", "y", "x")[-len(shape) :]
    kind = SampleKind(
        (*shape, *(() if channels is None else (channels,))),
        np.dtype(np.uint16),
        (*names, *(() if channels is None else ("channel",))),
    )
    level = pyramid_levels(kind)[0]
    layout = level_layout(level, kind, 1, part_bytes)
    assert layout.chunks == (1, *chunk)
    assert all(s % c == 0 for s, c in zip(layout.shards, layout.chunks, strict=True))
    covers = all(s >= n for s, n in zip(layout.shards[1:], level.shape, strict=True))
    assert covers == (part_bytes is None or 2 * np.prod(level.shape) < part_bytes)
