"""Virtual stacks: the same bytes anywhere, read as all stacks are, of a mean and components that are known."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st

import dpca
from dpca.storage import DataError, StoreError, create_virtual, ingest, open_stack, open_virtual, verify
from dpca.storage.manifest import write_manifest
from dpca.storage.readers import open_reader
from dpca.storage.stack import Stack
from dpca.storage.virtual.models import MODELS, make_model

#: Digests of the first, the middle and the last of 1000 samples: of these bytes, on every machine.
BYTES = {
    ("portraits", (24, 20, 3)): "dd73865841ebd1eb71cec5e163683db2",
    ("portraits", (16, 18)): "e7bef5d37743590d19103d8fbf2eacd6",
}


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Stack:
    return create_virtual(tmp_path_factory.mktemp("virtual") / "a.zarr", n_samples=2000, sample_shape=(24, 20, 3))


@pytest.fixture(scope="module")
def whole(stack: Stack) -> np.ndarray[Any, Any]:
    """All samples, by Zarr and its chunks."""
    return np.asarray(zarr.Array(stack.samples.async_array)[...])


@pytest.mark.parametrize(("name", "shape"), BYTES)
def test_bytes_are_those_of_every_machine(name: str, shape: tuple[int, ...]) -> None:
    model = make_model(name, {"n_samples": 1000, "sample_shape": shape, "seed": 7})
    assert model.probe() == BYTES[name, shape]


@settings(max_examples=30)
@given(data=st.data())
def test_any_box_is_cut_from_the_same_samples(stack: Stack, whole: np.ndarray[Any, Any], data: st.DataObject) -> None:
    def part(n: int) -> st.SearchStrategy[Any]:
        ends = st.tuples(st.integers(0, n), st.integers(0, n)).map(sorted)
        return st.one_of(ends.map(lambda ab: slice(*ab)), st.integers(-n, n - 1), st.just(slice(None, None, 2)))

    box = data.draw(st.tuples(*map(part, stack.shape)))
    some = data.draw(st.integers(1, 4))
    np.testing.assert_array_equal(stack.samples[box[:some]], whole[box[:some]])
    np.testing.assert_array_equal(stack.samples[..., box[3]], whole[..., box[3]])


def test_the_mean_and_the_components_are_known(stack: Stack, whole: np.ndarray[Any, Any]) -> None:
    model, x = open_virtual(stack), whole.reshape(len(whole), -1).astype(float)
    spread = np.sqrt(x.var(axis=0) / len(x))
    assert (np.abs(x.mean(axis=0) - model.mean.ravel()) < 5 * spread + 0.05).mean() > 0.99  # some pixels are clipped
    _, found, axes = np.linalg.svd((x - x.mean(axis=0)) / np.sqrt(len(x)), full_matrices=False)
    np.testing.assert_allclose(found[:6] ** 2, model.eigenvalues[:6], rtol=0.15)
    assert np.degrees(dpca.metrics.principal_angles(model.components(5), axes[:5])).max() < 8
    fitted = dpca.StreamingPCA(5, random_state=0).fit(stack.path)
    assert np.degrees(dpca.metrics.principal_angles(model.components(5), fitted.components_)).max() < 8
    components = model.components()
    np.testing.assert_allclose(components @ components.T, np.eye(len(components)), atol=1e-9)
    with pytest.raises(DataError, match="k is 99"):
        model.components(99)


def test_everything_reads_it(stack: Stack, whole: np.ndarray[Any, Any], tmp_path: Path) -> None:
    assert sum(file.stat().st_size for file in Path(stack.path).rglob("*")) < 2000
    assert (stack.shape, stack.dtype, stack.axes) == ((2000, 24, 20, 3), np.uint8, ("sample", "y", "x", "channel"))
    assert (stack.names[7], len(stack.names), stack.names[[1, 2]]) == ("0007", 2000, ["0001", "0002"])
    assert stack.names_at([3, 1999]) == ["0003", "1999"]
    np.testing.assert_array_equal(
        da.from_array(stack.samples, chunks=(1000, 24, 20, 3))[990:1010].compute(), whole[990:1010]
    )
    np.testing.assert_array_equal(open_reader(stack.path).fetch([0, 5, 1999]), whole[[0, 5, 1999]])
    assert verify(stack.path) == verify(stack.array_path) == []
    copied = ingest(stack.path, tmp_path / "copy.zarr")
    np.testing.assert_array_equal(copied.samples[...], whole)
    assert copied.names.tolist() == stack.names.tolist()
    again = create_virtual(stack.path, n_samples=2000, sample_shape=(24, 20, 3))  # which is there
    assert again.fingerprint == stack.fingerprint


def test_samples_in_order_are_alike_within_groups(tmp_path: Path) -> None:
    size: dict[str, Any] = {"n_samples": 4096, "sample_shape": (12, 12)}
    random = create_virtual(tmp_path / "random.zarr", **size).samples[...].astype(float)
    alike = create_virtual(tmp_path / "sorted.zarr", order="sorted", **size).samples[...].astype(float)
    np.testing.assert_allclose(alike.mean(), random.mean(), rtol=0.1)
    assert alike[:1024].var(axis=0).sum() < 0.4 * random[:1024].var(axis=0).sum()


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"n_samples": 0}, "number of samples is 0"),
        ({"n_samples": 2**80}, "number of samples"),
        ({"sample_shape": (0, 4)}, "hold nothing"),
        ({"sample_shape": ()}, "hold nothing"),
        ({"sample_shape": (2**20, 2**20)}, "values"),
        ({"sample_shape": 7}, "sample_shape is '7'"),
        ({"sample_shape": (16,)}, "are no images"),
        ({"seed": -1}, "the seed is -1"),
        ({"seed": True}, "seed is 'True'"),
        ({"order": "backwards"}, "'random' or 'sorted'"),
        ({"model": "landscapes"}, "no image model 'landscapes'"),
        ({"depth": 3}, "no parameter 'depth'"),
    ],
)
def test_what_makes_no_sense_is_refused(tmp_path: Path, wrong: dict[str, Any], sentence: str) -> None:
    with pytest.raises(DataError, match=sentence):
        create_virtual(tmp_path / "none.zarr", **{"n_samples": 10, "sample_shape": (8, 8), **wrong})
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "damage",
    [
        *({"n_samples": value} for value in (-1, 0, 2**70, 3.5, "9", None, True, [3])),
        *({"sample_shape": value} for value in ([], [0], [-4, 4], [2**40, 2**40], "ab", None, [[8, 8]], [8.0, 8], 8)),
        *({"model": value} for value in ("none", 3, None, ["portraits"])),
        *({"seed": value} for value in (-1, 2**64, "0", 1e300)),
        *({"order": value} for value in ("", None, 0)),
        *({"recipe": value} for value in (0, 99, "1", None)),
        {"further": 1},
    ],
    ids=str,
)
def test_a_damaged_statement_ends_with_a_sentence(tmp_path: Path, damage: dict[str, Any]) -> None:
    path = tmp_path / "a.zarr"
    create_virtual(path, n_samples=9, sample_shape=(8, 8))
    metadata = json.loads((path / "zarr.json").read_text())
    metadata["attributes"]["dpca"]["virtual"] |= damage
    (path / "zarr.json").write_text(json.dumps(metadata))
    with pytest.raises(StoreError, match="was changed after it was written"):
        open_stack(path)
    write_manifest(path)
    with pytest.raises(StoreError, match="states no image model that can be made"):
        open_stack(path)


def test_other_samples_than_stated_are_found(tmp_path: Path) -> None:
    path = tmp_path / "a.zarr"
    create_virtual(path, n_samples=9, sample_shape=(8, 8))
    metadata = json.loads((path / "zarr.json").read_text())
    metadata["attributes"]["dpca"]["virtual"]["seed"] = 1
    (path / "zarr.json").write_text(json.dumps(metadata))
    write_manifest(path)
    assert verify(path) == ["samples: are not those of when the stack was made"]
    (path / "zarr.json").unlink()
    with pytest.raises((DataError, StoreError)):
        open_stack(path)


def test_only_virtual_stacks_have_a_model(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros((4, 8, 8), np.uint8))
    with pytest.raises(DataError, match="follow from no model"):
        open_virtual(ingest(tmp_path / "a.npy", tmp_path / "a.zarr"))
    assert set(MODELS) == {name for name, _ in BYTES}
