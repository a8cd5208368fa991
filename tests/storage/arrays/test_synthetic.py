"""Synthetic stacks: the same bytes anywhere, read as all stacks are, of a mean and components that are known."""

from __future__ import annotations

import itertools
import json
import pickle
from pathlib import Path
from typing import Any

import dask.array as da
import fsspec
import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st

import dpca
from dpca.engine.sources.source import as_source
from dpca.storage import DataError, StoreError, create_synthetic, ingest, open_stack, open_synthetic, verify
from dpca.storage.integrity.manifest import write_manifest
from dpca.storage.readers import open_reader
from dpca.storage.stack import Stack
from dpca.storage.synthetic.exact import cosine
from dpca.storage.synthetic.model import ImageModel, built, parts_of
from dpca.storage.synthetic.models import MODELS, make_model
from dpca.storage.synthetic.textures import _waves
from tests.helpers.traced import traced_peak

#: Digests of the first, the middle and the last of 1000 samples: of these bytes, on every machine.
BYTES = {
    ("portraits", (24, 20, 3)): "a1e189cfe6569d95d9bebadebf18c16d",
    ("portraits", (16, 18)): "92aaaf6e2fe64d0b3b9a38fb58d38d1a",
    ("portraits", (9, 11, 1)): "d8113ddefb22976ab023c132f4f38d34",
    ("portraits", (9, 11, 4)): "989a39f02f711a4636c94239b409db89",
    ("textures", (64, 32, 3)): "d7b7f51ce5ca41969071f91dbbb76ed1",
    ("textures", (40,)): "cde2f485b5c50e1c8d60464e8e5cd841",
    ("textures", (3, 4, 5, 2)): "9435f88d17e1dadf16eded61343680b7",
    ("spiked", (50,)): "f49981fd06528b4a29fbb91c8b3556f6",
    ("spiked", (4, 3)): "55bf103ce0d60a2f0a9b8cd85b6cdd02",
    ("moving", (12, 10)): "28c4fc9707ca6acb935490ffa43e9dbb",
    ("moving", (1,)): "5ce4c12d33f785850bf7a30e7a19fb92",
}


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Stack:
    return create_synthetic(tmp_path_factory.mktemp("synthetic") / "a.zarr", n_samples=2000, sample_shape=(16, 14, 3))


@pytest.fixture(scope="module")
def whole(stack: Stack) -> np.ndarray[Any, Any]:
    """All samples, by Zarr and its chunks."""
    return np.asarray(zarr.Array(stack.samples.async_array)[...])


@pytest.mark.parametrize(("name", "shape"), BYTES)
def test_bytes_are_those_of_every_machine(name: str, shape: tuple[int, ...]) -> None:
    model = made(name, shape)
    assert model.probe() == BYTES[name, shape]
    x = np.empty((1000, *shape), model.dtype)
    model.make(0, 1000, [(0, n) for n in shape], x)
    x, flat = x.astype(float), x.reshape(1000, -1).astype(float)
    assert ((x == 0) | (x == 255)).mean() < 0.002
    assert model.data_range[0] <= x.min() < x.max() <= model.data_range[1]
    # four standard errors of the mean along each true component, for some hundred of them
    along = (flat.mean(axis=0) - model.mean.ravel()) @ model.components().T
    assert (np.abs(along) < 4.5 * np.sqrt(model.eigenvalues / 1000) + 0.1).all()


@pytest.mark.parametrize(
    ("name", "digest"),
    [("portraits", "d16b67bc335677bcbcebce17e55b6d83"), ("textures", "35c6efb542591eba3d9ec14cb2e7bec6")],
)
def test_bytes_of_sorted_samples_are_those_of_every_machine(name: str, digest: str) -> None:
    model = make_model(name, {"n_samples": 3000, "sample_shape": (16, 18), "seed": 7, "order": "sorted"})
    assert model.probe() == digest


def made(name: str, shape: tuple[int, ...]) -> ImageModel:
    parameters: dict[str, Any] = {"n_spikes": 3, "sigma": 0.5} if name == "spiked" else {}
    return make_model(name, {"n_samples": 1000, "sample_shape": shape, "seed": 7, **parameters})


def test_spikes_have_the_covariance_of_the_closed_form() -> None:
    model = make_model("spiked", {"n_samples": 20_000, "sample_shape": (4, 5), "n_spikes": 3, "sigma": 0.5, "seed": 7})
    x = np.empty((20_000, 4, 5), np.float32)
    model.make(0, 20_000, [(0, 4), (0, 5)], x)
    _, modes = model.design()
    loadings, x = np.array(list(modes)).reshape(3, 20), x.reshape(-1, 20).astype(float)
    expected = loadings.T @ loadings + 0.25 * np.eye(20)
    deviation = np.cov(x, rowvar=False) - expected
    # The variance of an entry of a normal sample's covariance is (c_ii c_jj + c_ij^2) / n.
    scale = np.sqrt((np.outer(expected.diagonal(), expected.diagonal()) + expected**2) / len(x))
    assert np.abs(deviation / scale).max() < 4.5
    assert np.std(deviation / scale) == pytest.approx(1, abs=0.35)
    assert np.abs(loadings).mean() == pytest.approx(0.5, abs=0.15)
    assert abs(np.corrcoef(x[:-1, 0], x[1:, 0])[0, 1]) < 4.5 / np.sqrt(len(x))  # samples are independent of each other
    values, vectors = np.linalg.eigh(expected)
    np.testing.assert_allclose(model.eigenvalues, values[:-4:-1], rtol=1e-3)
    np.testing.assert_allclose(np.abs(np.diag(model.components() @ vectors[:, :-4:-1])), 1, atol=1e-5)


def test_a_field_moves_with_its_period() -> None:
    model = make_model("moving", {"n_samples": 10**9, "sample_shape": (16, 24), "period": 50.0, "seed": 3})
    x = np.empty((1000, 16, 24), np.float32)
    model.make(10**9 - 1000, 10**9, [(0, 16), (0, 24)], x)
    scores = (x - model.mean).reshape(1000, -1) @ model.components(2).T
    for course in scores.T:
        power = np.abs(np.fft.rfft(course)) ** 2
        assert power.argmax() == 20  # of 1000 samples
        assert power[20] > 0.9 * power[1:].sum()
    quick = make_model("moving", {"n_samples": 500, "sample_shape": (8,), "period": 4.0})  # a wave of more than a turn
    for wave in range(6):
        angles = 2 * np.pi / 4 * (1 + 0.61803 * wave) * np.arange(500)
        drawn = quick.weights(0, 500, np.empty((500, 0), np.uint8))[:, 2 * wave] / 510
        np.testing.assert_allclose(drawn, np.cos(angles), atol=2 * np.pi / 1024 + 0.002)
    lag = np.fft.rfft(scores[:, 0])[20] / np.fft.rfft(scores[:, 1])[20]
    assert abs(abs(np.angle(lag)) - np.pi / 2) < 0.1  # a quarter of a period apart: the wave travels


@settings(max_examples=20, deadline=None)
@given(lengths=st.lists(st.integers(1, 6), min_size=1, max_size=4), paces=st.lists(st.floats(0.7, 1.3), min_size=4))
def test_the_lowest_waves_are_among_those_that_are_tried(lengths: list[int], paces: list[float]) -> None:
    def lowest(waves: Any) -> list[Any]:
        return sorted((sum((p * k) ** 2 for p, k in zip(paces, wave, strict=False)), wave) for wave in waves)[:16]

    assert lowest(_waves(lengths, 16)) == lowest(itertools.product(*map(range, lengths)))


def test_cosines_need_no_library() -> None:
    turns = np.linspace(-3, 3, 10_001)
    np.testing.assert_allclose(cosine(turns), np.cos(2 * np.pi * turns), atol=1e-9)


def test_the_truth_of_textures_stands_in_spite_of_their_grain() -> None:
    """The whole covariance, of modes and of the grain that is not white, has the components that are stated."""
    model = made("textures", (64, 32, 3))
    parts, d = parts_of(model), 64 * 32 * 3
    power = np.abs(np.fft.rfft(parts.noise[: len(parts.noise) - d], n=len(parts.noise) - d)) ** 2
    correlation = np.fft.irfft(power)[:d] / (len(parts.noise) - d)
    modes = parts.basis[1:].reshape(-1, d).astype(float) * np.sqrt(model.weight_variance)
    vectors = model.components().T
    for _ in range(4):  # of subspace iteration, whose fixed point they should be
        spread = np.fft.irfft(
            np.fft.rfft(np.concatenate([correlation, [0], correlation[:0:-1]]))[:, None]
            * np.fft.rfft(vectors, n=2 * d, axis=0),
            axis=0,
        )[:d]
        vectors, _ = np.linalg.qr(modes.T @ (modes @ vectors) + spread)
    found = np.linalg.svd(vectors.T @ (modes.T @ (modes @ vectors)))[0][:, :8]
    assert np.degrees(dpca.metrics.principal_angles(model.components(8), (vectors @ found).T)).max() < 1


@settings(max_examples=30, deadline=None)
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
    model, x = open_synthetic(stack), whole.reshape(len(whole), -1).astype(float)
    spread = np.sqrt(x.var(axis=0) / len(x))
    assert (np.abs(x.mean(axis=0) - model.mean.ravel()) < 5 * spread + 0.05).mean() > 0.99  # some pixels are clipped
    found, axes = np.linalg.eigh(np.cov(x, rowvar=False, bias=True))
    np.testing.assert_allclose(found[:-7:-1], model.eigenvalues[:6], rtol=0.15)
    assert np.degrees(dpca.metrics.principal_angles(model.components(5), axes[:, -5:].T)).max() < 8
    fitted = dpca.StreamingPCA(5, random_state=0).fit(stack.path)
    assert np.degrees(dpca.metrics.principal_angles(model.components(5), fitted.components_)).max() < 8
    components = model.components()
    np.testing.assert_allclose(components @ components.T, np.eye(len(components)), atol=1e-9)
    with pytest.raises(DataError, match=r"k\b.*\b99"):
        model.components(99)


def test_everything_reads_it(stack: Stack, whole: np.ndarray[Any, Any], tmp_path: Path) -> None:
    assert sum(file.stat().st_size for file in Path(stack.path).rglob("*")) < 2000
    assert (stack.shape, stack.dtype, stack.axes) == ((2000, 16, 14, 3), np.uint8, ("sample", "y", "x", "channel"))
    assert (stack.names[7], len(stack.names), stack.names[[1, 2]]) == ("0007", 2000, ["0001", "0002"])
    assert stack.names_at([3, 1999]) == ["0003", "1999"]
    np.testing.assert_array_equal(
        da.from_array(stack.samples, chunks=(1000, 16, 14, 3))[990:1010].compute(), whole[990:1010]
    )
    np.testing.assert_array_equal(open_reader(stack.path).fetch([0, 5, 1999]), whole[[0, 5, 1999]])
    assert verify(stack.path) == verify(stack.array_path) == []
    copied = ingest(stack.path, tmp_path / "copy.zarr")
    np.testing.assert_array_equal(copied.samples[...], whole)
    assert copied.names.tolist() == stack.names.tolist()
    there = create_synthetic("memory://bucket/synthetic/a.zarr", n_samples=2000, sample_shape=(16, 14, 3))
    assert (there.fingerprint, verify(there.path)) == (stack.fingerprint, [])
    np.testing.assert_array_equal(there.samples[990:1010], whole[990:1010])
    again = create_synthetic(stack.path, n_samples=2000, sample_shape=(16, 14, 3))  # which is there
    assert again.fingerprint == stack.fingerprint


def test_others_read_it_by_its_url(stack: Stack, whole: np.ndarray[Any, Any]) -> None:
    assert list(zarr.open_group(stack.path, mode="r").keys()) == []  # and no zeros for samples
    url = f"dpca::{stack.path}"
    np.testing.assert_array_equal(zarr.open_array(url, mode="r")[1990:], whole[1990:])
    opened = pytest.importorskip("xarray").open_zarr(url)
    np.testing.assert_array_equal(opened["samples"][5:7, :, 3].values, whole[5:7, :, 3])
    assert (opened["samples"].dims, opened["name"].values[7]) == (stack.axes, "0007")
    there = pickle.loads(pickle.dumps(fsspec.filesystem("dpca", fo=stack.path)))
    assert json.loads(there.cat(".zarray"))["shape"] == list(stack.shape)
    with pytest.raises(StoreError, match="computed"):
        zarr.open_array(url, mode="r+")[0] = 1
    with pytest.raises(DataError, match="level"):
        zarr.open_array(url, mode="r", storage_options={"level": 2})


def test_the_plan_knows_what_making_samples_takes(stack: Stack, tmp_path: Path) -> None:
    model, source = open_synthetic(stack), as_source(stack)
    region = [(0, 16), (0, 14), (0, 3)]
    assert source.extra_bytes(region) == model.nbytes > parts_of(model).basis.nbytes + parts_of(model).noise.nbytes
    stored = as_source(ingest(stack.path, tmp_path / "a.zarr"))
    assert stored.extra_bytes(region) == 0
    assert pickle.loads(pickle.dumps(source)).extra_bytes(region) == model.nbytes


@pytest.mark.parametrize(
    ("name", "shape", "further"),
    [
        ("portraits", (256, 256, 3), {}),
        ("textures", (64, 64, 3), {}),
        ("moving", (512, 512), {}),
        ("spiked", (8192,), {"n_spikes": 100}),
    ],
)
def test_no_more_memory_than_planned(name: str, shape: tuple[int, ...], further: dict[str, Any]) -> None:
    model = make_model(name, {"n_samples": 2000, "sample_shape": shape, **further})
    out, region = np.empty((64, *shape), model.dtype), [(0, n) for n in shape]
    enough = int(1.1 * model.nbytes)  # Python, and what a thread of the session's cluster takes
    peak, _ = traced_peak(built.cache_clear, lambda _: model.make(0, 64, region, out), enough)
    assert 0.7 * model.nbytes < peak < enough


def test_samples_in_order_are_alike_within_groups(tmp_path: Path) -> None:
    size: dict[str, Any] = {"n_samples": 4096, "sample_shape": (12, 12)}
    random = create_synthetic(tmp_path / "random.zarr", **size).samples[...].astype(float)
    alike = create_synthetic(tmp_path / "sorted.zarr", order="sorted", **size).samples[...].astype(float)
    np.testing.assert_allclose(alike.mean(), random.mean(), rtol=0.1)
    assert alike[:1024].var(axis=0).sum() < 0.4 * random[:1024].var(axis=0).sum()


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"n_samples": 0}, "number of samples is 0"),
        ({"n_samples": 2**80}, "number of samples"),
        ({"sample_shape": (0, 4)}, "are empty"),
        ({"sample_shape": ()}, "are empty"),
        ({"sample_shape": (2**20, 2**20)}, "values"),
        ({"sample_shape": (9,) * 5000}, "have 5,000 axes"),
        ({"sample_shape": 7}, "sample_shape is '7'"),
        ({"sample_shape": (16,)}, "portraits"),
        ({"seed": -1}, "the seed is -1"),
        ({"seed": True}, "seed is 'True'"),
        ({"order": "backwards"}, "'random' or 'sorted'"),
        ({"model": "landscapes"}, "no image model 'landscapes'"),
        ({"depth": 3}, "no parameter 'depth'"),
        ({"model": "spiked", "n_spikes": 0}, "n_spikes is 0"),
        ({"model": "spiked", "sample_shape": (5,), "n_spikes": 6}, "n_spikes is 6"),
        ({"model": "spiked", "sample_shape": (2**21,), "n_spikes": 256}, "above the limit"),
        ({"model": "spiked", "sigma": -1.0}, "sigma is -1"),
        ({"model": "spiked", "sigma": float("nan")}, "sigma is nan"),
        ({"model": "moving", "period": 1}, "the period is 1"),
        ({"model": "moving", "order": "sorted"}, "the order is 'sorted'"),
    ],
)
def test_what_makes_no_sense_is_refused(tmp_path: Path, wrong: dict[str, Any], sentence: str) -> None:
    with pytest.raises(DataError, match=sentence):
        create_synthetic(tmp_path / "none.zarr", **{"n_samples": 10, "sample_shape": (8, 8), **wrong})
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
    create_synthetic(path, n_samples=9, sample_shape=(8, 8))
    metadata = json.loads((path / "zarr.json").read_text())
    metadata["attributes"]["dpca"]["synthetic"] |= damage
    (path / "zarr.json").write_text(json.dumps(metadata))
    with pytest.raises(StoreError, match="changed"):
        open_stack(path)
    write_manifest(path)
    with pytest.raises(StoreError, match="model"):
        open_stack(path)


def test_other_samples_than_stated_are_found(tmp_path: Path) -> None:
    path = tmp_path / "a.zarr"
    create_synthetic(path, n_samples=9, sample_shape=(8, 8))
    metadata = json.loads((path / "zarr.json").read_text())
    metadata["attributes"]["dpca"]["synthetic"]["seed"] = 1
    (path / "zarr.json").write_text(json.dumps(metadata))
    write_manifest(path)
    (problem,) = verify(path)
    assert problem.startswith("samples: ")
    (path / "zarr.json").unlink()
    with pytest.raises((DataError, StoreError)):
        open_stack(path)


def test_only_synthetic_stacks_have_a_model(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros((4, 8, 8), np.uint8))
    with pytest.raises(DataError, match="model"):
        open_synthetic(ingest(tmp_path / "a.npy", tmp_path / "a.zarr"))
    assert set(MODELS) == {name for name, _ in BYTES}
