from __future__ import annotations

import pickle

import numpy as np
import pytest
import xarray
import zarr

from dpca.storage.arrays.arrays import create_root, write_strings
from dpca.storage.arrays.reading import array_identity, open_array
from dpca.storage.errors import DataError, StoreError
from dpca.storage.stack import open_stack


@pytest.fixture
def images():
    return np.random.default_rng(0).integers(0, 255, (10, 6, 8, 3), dtype=np.uint8)


@pytest.fixture
def path(tmp_path, make_stack, images):
    return make_stack(tmp_path / "faces.zarr", images)


# -- our own store


def test_a_stack_says_what_it_is(path, images):
    stack = open_stack(path)
    assert stack.path == str(path)
    assert (stack.n_samples, stack.sample_shape, stack.shape) == (10, (6, 8, 3), (10, 6, 8, 3))
    assert stack.dtype == np.uint8
    assert stack.nbytes == images.nbytes
    assert stack.axes == ("sample", "y", "x", "channel")
    assert stack.data_range == (0.0, 255.0)
    assert stack.fingerprint == "f" * 32
    assert stack.source == {"kind": "folder", "name": "faces", "count": 10}
    assert stack.names.tolist() == [f"person/{i:03d}.jpg" for i in range(10)]
    assert stack.labels is None
    assert stack.rejected == []
    np.testing.assert_array_equal(stack.samples[:], images)
    assert stack.samples.read_only


def test_tasks_open_the_array_by_its_path_from_anywhere(path, images, monkeypatch, tmp_path):
    monkeypatch.chdir(path.parent)
    stack = open_stack("faces.zarr")
    monkeypatch.chdir("/")
    np.testing.assert_array_equal(open_array(stack.array_path)[:], images)
    np.testing.assert_array_equal(zarr.open_array(stack.array_path, mode="r")[:], images)
    assert stack.path == "faces.zarr"


def test_labels_and_rejected(path):
    group = zarr.open_group(path, mode="a")
    write_strings(group, "label", ["a", "b"] * 5)
    rejected = group.create_group("rejected")
    write_strings(rejected, "name", ["x.jpg", "y.jpg"], axis="rejected")
    write_strings(rejected, "reason", ["truncated", "a bomb"], axis="rejected")
    stack = open_stack(path)
    assert stack.labels.tolist() == ["a", "b"] * 5
    assert stack.rejected == [("x.jpg", "truncated"), ("y.jpg", "a bomb")]
    with xarray.open_zarr(path, consolidated=False) as data:
        assert set(data.variables) == {"samples", "name", "label"}


def test_arguments_override_what_is_stated(path):
    stack = open_stack(path, data_range=(0, 100), axes=("z", "y", "x"))
    assert stack.data_range == (0.0, 100.0)
    assert stack.axes == ("sample", "z", "y", "x")


def test_opening_reads_metadata_only(path):
    for name in ("samples", "name"):
        for chunk in (path / name / "c").rglob("*"):
            if chunk.is_file():
                chunk.write_bytes(b"damaged")
    stack = open_stack(path)
    assert stack.n_samples == 10
    with pytest.raises(StoreError, match="verify"):
        _ = stack.names


def test_a_stack_can_be_sent_to_a_worker(path, images):
    again = pickle.loads(pickle.dumps(open_stack(path)))
    np.testing.assert_array_equal(again.samples[:], images)
    assert again.names[0] == "person/000.jpg"


def test_a_newer_version_names_both_and_the_way_out(tmp_path, make_stack, images):
    path = make_stack(tmp_path / "s.zarr", images, version=2)
    with pytest.raises(StoreError, match="version.2.*version.1"):
        open_stack(path)


@pytest.mark.parametrize(
    ("changed", "match"),
    [
        ({"version": "one"}, "version 'one'"),
        ({"version": 0}, "version 0"),
        ({"kind": "scores"}, "kind 'scores'"),
        ({"axes": None}, "complete"),
        ({"axes": ["sample", "y"]}, "axes"),
        ({"data_range": [0]}, "complete"),
        ({"source": "folder"}, "complete"),
    ],
)
def test_broken_statements_are_refused(tmp_path, make_stack, images, changed, match):
    path = make_stack(tmp_path / "s.zarr", images, **changed)
    with pytest.raises(StoreError, match=match) as caught:
        open_stack(path)
    assert "s.zarr" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_stack_without_samples_or_names_is_refused(path):
    (path / "name" / "zarr.json").unlink()
    with pytest.raises(StoreError, match="'name'"):
        _ = open_stack(path).names
    (path / "samples" / "zarr.json").write_text("{")
    with pytest.raises(StoreError, match="samples/zarr.json"):
        open_stack(path)


# -- foreign arrays


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize(
    ("dtype", "data_range"),
    [
        ("u1", (0.0, 255.0)),
        ("u2", None),
        (">u2", None),
        ("?", (0.0, 1.0)),
        ("i2", None),
        ("u4", None),
        ("f4", None),
        ("f8", None),
    ],
)
def test_foreign_arrays_of_both_formats(tmp_path, zarr_format, dtype, data_range):
    values = np.random.default_rng(0).integers(0, 255, (5, 6, 8, 3)).astype(dtype)
    array = zarr.create_array(
        tmp_path / "f.zarr", shape=values.shape, chunks=(2, 4, 4, 3), dtype=dtype, zarr_format=zarr_format
    )
    array[:] = values
    stack = open_stack(tmp_path / "f.zarr")
    np.testing.assert_array_equal(stack.samples[:], values)
    assert stack.axes == ("sample", "y", "x", "channel")
    assert stack.data_range == data_range
    assert stack.names.tolist() == ["0", "1", "2", "3", "4"]
    assert stack.labels is None
    assert stack.rejected == []
    assert stack.source == {"kind": "zarr", "name": "f.zarr", "count": 5}
    assert open_stack(tmp_path / "f.zarr", data_range=(-1, 1)).data_range == (-1.0, 1.0)


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_an_array_in_a_group_of_xarray(tmp_path, zarr_format):
    values = np.random.default_rng(0).normal(size=(7, 5, 6)).astype("f4")
    data = xarray.Dataset({"t2m": (("time", "lat", "lon"), values), "level": (("time",), np.arange(7))})
    data.to_zarr(tmp_path / "climate.zarr", zarr_format=zarr_format, consolidated=False)
    stack = open_stack(tmp_path / "climate.zarr")
    np.testing.assert_array_equal(stack.samples[:], values)
    assert stack.axes == ("sample", "lat", "lon")
    assert stack.array_path == str(tmp_path / "climate.zarr" / "t2m")
    assert open_stack(tmp_path / "climate.zarr" / "t2m").axes == ("sample", "lat", "lon")


def group_of(path, **shapes):
    group = zarr.open_group(path, mode="w")
    for name, shape in shapes.items():
        group.create_array(name, shape=shape, chunks=shape, dtype="u1")[...] = 1
    return path


@pytest.mark.parametrize("name", ["samples", "images", "data"])
def test_a_group_with_a_telling_name(tmp_path, name):
    group_of(tmp_path / "g.zarr", **{name: (4, 5, 6), "masks": (4, 5, 6), "id": (4,)})
    assert open_stack(tmp_path / "g.zarr").array_path.endswith(f"g.zarr/{name}")


def test_the_only_array_of_two_axes_is_the_stack_whatever_its_name(tmp_path):
    (group_of(tmp_path / "g.zarr", faces=(4, 5, 6), id=(4,)) / "README.txt").write_text("not Zarr's")
    assert open_stack(tmp_path / "g.zarr").array_path.endswith("g.zarr/faces")


def test_a_group_with_a_choice_lists_it(tmp_path):
    group_of(tmp_path / "g.zarr", left=(4, 5, 6), right=(4, 5, 6), id=(4,))
    with pytest.raises(DataError, match="left.*right"):
        open_stack(tmp_path / "g.zarr")
    assert open_stack(tmp_path / "g.zarr" / "right").n_samples == 4
    group_of(tmp_path / "none.zarr", id=(4,))
    with pytest.raises(DataError, match="axes:.none"):
        open_stack(tmp_path / "none.zarr")


@pytest.mark.parametrize(
    ("names", "axes"),
    [
        (("frame", "y", "x", "c"), ("sample", "y", "x", "channel")),
        (("frame", "row", "column", "RGB"), ("sample", "row", "column", "channel")),
        ((None, "y", "x", "c"), ("sample", "y", "x", "channel")),
        (("n", "y", "y", "c"), ("sample", "y", "x", "channel")),
        (("n", "sample", "x", "c"), ("sample", "y", "x", "channel")),
        (("n", "c", "y", "x"), ("sample", "channel", "y", "x")),
        (None, ("sample", "y", "x", "channel")),
    ],
)
def test_axes_of_foreign_arrays(tmp_path, names, axes):
    zarr.create_array(tmp_path / "f.zarr", shape=(4, 5, 6, 3), dtype="u1", dimension_names=names)
    assert open_stack(tmp_path / "f.zarr").axes == axes


@pytest.mark.parametrize(
    ("shape", "dtype", "match"),
    [
        ((10,), "u1", "at least one more axis"),
        ((0, 4), "u1", "at least one sample"),
        ((4, 0), "u1", "no empty axis"),
        ((4, 4), "c8", "complex64"),
        ((4, 4), "M8[s]", "datetime64"),
    ],
)
def test_what_is_no_stack_is_refused(tmp_path, shape, dtype, match):
    zarr.create_array(tmp_path / "f.zarr", shape=shape, dtype=dtype, zarr_format=2)
    with pytest.raises(DataError, match=match) as caught:
        open_stack(tmp_path / "f.zarr")
    assert "f.zarr" in str(caught.value)


@pytest.mark.parametrize("wrong", [(1, 1), (2, 1), (0, np.inf), (np.nan, 1)])
def test_a_range_is_two_finite_numbers(path, wrong):
    with pytest.raises(DataError, match="data_range"):
        open_stack(path, data_range=wrong)


@pytest.mark.parametrize("wrong", [("y", "x"), ("y", "x", "x"), ("sample", "y", "x")])
def test_axes_name_a_sample(path, wrong):
    with pytest.raises(DataError, match="axes"):
        open_stack(path, axes=wrong)


# -- fingerprints of foreign arrays


def foreign(path, values, **options):
    zarr.create_array(path, data=values, chunks=(2, 4, 4), **options)
    return open_stack(path).fingerprint


def test_fingerprint_tells_foreign_arrays_apart(tmp_path):
    values = np.random.default_rng(0).integers(0, 255, (9, 12, 12), dtype=np.uint8)
    values[:, :4, :4] = 0
    other = values.copy()
    other[:, 6:, 6:] += 1
    first = foreign(tmp_path / "a.zarr", values)
    assert foreign(tmp_path / "b.zarr", values) == first
    assert foreign(tmp_path / "c.zarr", other) != first
    assert foreign(tmp_path / "d.zarr", values[:8]) != first
    assert foreign(tmp_path / "e.zarr", values, attributes={"site": "A"}) != first
    assert foreign(tmp_path / "f.zarr", values, zarr_format=2) != first
    # How zarr writes metadata is a setting of the process, which jobs change while they read.
    identity = array_identity(open_stack(tmp_path / "a.zarr").samples)
    with zarr.config.set({"json_indent": None}):
        again = open_stack(tmp_path / "a.zarr")
        assert (again.fingerprint, array_identity(again.samples)) == (first, identity)


# -- missing stores


def test_nothing_there(tmp_path):
    with pytest.raises(DataError, match="nothing"):
        open_stack(tmp_path / "none.zarr")


@pytest.mark.parametrize("what", ["folder", "file", "torn"])
def test_what_is_not_zarr_is_one_sentence(tmp_path, what):
    path = tmp_path / "photographs"
    if what == "file":
        path.write_bytes(b"\x93NUMPY")
    else:
        path.mkdir()
        (path / ("a.jpg" if what == "folder" else "zarr.json")).write_text("{")
    with pytest.raises(StoreError, match="ingest|metadata") as caught:
        open_stack(path)
    assert "photographs" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_empty_root_group_of_ours_is_no_stack(tmp_path):
    create_root(tmp_path / "s.zarr", kind="stack", fingerprint="f")
    with pytest.raises(StoreError, match="'samples'"):
        open_stack(tmp_path / "s.zarr")


def test_a_chunk_that_no_memory_holds_is_refused_without_ingest(tmp_path):
    shape = (20, 200_000, 300_000)
    zarr.create_array(tmp_path / "a.zarr", shape=shape, chunks=shape, dtype="u1")
    with pytest.raises(DataError, match="1,200,000,000,000"):
        open_stack(tmp_path / "a.zarr")
