"""Samples from the first components of their scores: what they are, and that nothing else is read."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from zarr.storage import LocalStore, WrapperStore

import dpca
from dpca import PCA, BandPCA, CellPCA, StreamingPCA
from dpca.cli import main
from dpca.jobs import fit_store, reconstruct_store, transform_store
from dpca.pipelines.celeba_cpca import main as job
from dpca.representation.lazy import as_lazy
from dpca.storage import DataError, StoreError, open_stack, verify
from dpca.storage.arrays.reading import read_into
from tests.conftest import smooth_images

K = 6
MODELS: dict[str, Any] = {
    "cells": lambda: CellPCA(K, cell_shape=5),
    "bands": lambda: BandPCA(K, band_size=70, n_intervals=3),
    "exact": lambda: PCA(K),
    "streaming": lambda: StreamingPCA(K),
}


@pytest.fixture(scope="module")
def images() -> np.ndarray:
    return smooth_images(60, (15, 13, 3))


@pytest.fixture(scope="module", params=MODELS)
def model(request: pytest.FixtureRequest, images: np.ndarray) -> Any:
    return MODELS[request.param]().fit(images)


@pytest.mark.cases(4)
@pytest.mark.parametrize("level", [1, 4, K])
def test_the_first_components_in_memory_and_lazily(model: Any, level: int, images: np.ndarray, tmp_path: Path) -> None:
    scores = model.transform(images)
    cut = scores.copy()
    cut[..., level:] = 0
    expected = model.inverse_transform(cut)
    atol = 1e-3
    np.testing.assert_allclose(model.inverse_transform(scores, n_components=level), expected, atol=atol)
    np.testing.assert_allclose(model.inverse_transform(scores[..., :level], n_components=level), expected, atol=atol)
    stored = zarr.create_array(str(tmp_path / "s.zarr"), data=scores, chunks=(7, *scores.shape[1:-1], 4))
    for given_scores in (stored, da.from_array(scores, chunks=11), str(tmp_path / "s.zarr")):
        lazy = model.inverse_transform(given_scores, n_components=level)
        assert isinstance(lazy, da.Array)
        assert (lazy.shape, lazy.dtype) == (images.shape, np.float32)
        np.testing.assert_allclose(lazy.compute(), expected, atol=atol)
    np.testing.assert_allclose(
        model.inverse_transform(stored)[:3].compute(), model.inverse_transform(scores)[:3], atol=atol
    )


def test_scores_of_a_stream_by_hand() -> None:
    model = StreamingPCA(3).fit(np.random.default_rng(0).normal(size=(40, 7)))
    scores = np.random.default_rng(1).normal(size=(5, 3))
    expected = model.mean_ + scores[:, :2] @ model.components_[:2]
    np.testing.assert_allclose(model.inverse_transform(scores, n_components=2), expected, rtol=1e-12)


@pytest.mark.parametrize(
    ("shape", "level", "words"),
    [
        ((2, K), K + 1, "n_components is 7"),
        ((2, K), 0, "n_components is 0"),
        ((2, K), True, "n_components is True"),
        ((2, 3), None, "scores have shape"),
        ((2, 3), 2, "scores have shape"),
        ((2, 4, K), 2, "scores have shape"),
    ],
)
def test_levels_and_scores_that_are_none(shape: tuple[int, ...], level: Any, words: str, images: np.ndarray) -> None:
    model = PCA(K).fit(images)
    for scores in (np.zeros(shape), da.zeros(shape)):
        with pytest.raises(DataError, match=words):
            model.inverse_transform(scores, n_components=level)


@settings(max_examples=12, deadline=None)
@given(
    shape=st.lists(st.integers(2, 5), min_size=1, max_size=3),
    cell=st.integers(1, 3),
    dtype=st.sampled_from([np.uint8, np.int16, np.float32, np.float64]),
    seed=st.integers(0, 99),
)
def test_every_level_is_nearer(shape: list[int], cell: int, dtype: Any, seed: int) -> None:
    """The error of the samples of the fit falls with every component, by the variance that it explains."""
    x = np.random.default_rng(seed).integers(0, 100, (9, *shape)).astype(dtype)
    model = CellPCA(cell_shape=(min(cell, *shape),) * len(shape)).fit(x)
    scores = model.transform(x)
    left = model.total_variance_.sum() * 8
    for level in range(1, model.n_components_ + 1):
        left -= model.explained_variance_[..., level - 1].sum() * 8
        error = ((model.inverse_transform(scores, n_components=level) - x.astype(float)) ** 2).sum()
        assert error == pytest.approx(left, rel=1e-3, abs=1e-2)


# -- what is read


class Counting(WrapperStore[LocalStore]):
    """A store that counts the bytes of chunks that are read from it."""

    def __init__(self, store: LocalStore) -> None:
        super().__init__(store)
        self.bytes = 0

    async def get(self, key: str, *options: Any, **more: Any) -> Any:
        found = await super().get(key, *options, **more)
        if found is not None and "/c/" in f"/{key}":
            self.bytes += len(found)
        return found


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A stack, a model of its cells, and scores of two shards with six levels of one component each."""
    folder = tmp_path_factory.mktemp("stored")
    zarr.create_array(str(folder / "x.zarr"), data=smooth_images(300, (64, 64)), chunks=(100, 64, 64))
    stack = open_stack(folder / "x.zarr")
    fit_store(stack, folder / "model.zarr", CellPCA(K, cell_shape=4))
    transform_store(stack, folder / "model.zarr", folder / "scores.zarr")
    scores = zarr.open_array(str(folder / "scores.zarr" / "scores"), mode="r")
    assert (scores.chunks, scores.shards) == ((256, 16, 16, 1), (256, 16, 16, K))
    return folder


@pytest.mark.parametrize("level", [1, 2, 5])
def test_only_the_chunks_of_the_level_are_read(stored: Path, level: int) -> None:
    store = Counting(LocalStore(str(stored / "scores.zarr" / "scores"), read_only=True))
    scores = zarr.open_array(store, mode="r")
    model = CellPCA.load(stored / "model.zarr")
    read = {}
    for n in (level, K):
        store.bytes = 0
        lazy = model.inverse_transform(scores, n_components=n)
        assert store.bytes == 0
        found = lazy.compute(scheduler="synchronous")
        read[n] = store.bytes
        np.testing.assert_allclose(found, model.inverse_transform(scores[...], n_components=n), atol=1e-3)
    assert read[K] >= 2 * 256 * 16 * 16 * K * 4
    # Beside the chunks there are the places of all of them.
    assert read[level] <= read[K] * level / K + 2 * 200
    # A user's own lazy array of the store is cut before it is read, too.
    store.bytes = 0
    model.inverse_transform(da.from_zarr(scores, chunks=(256, 16, 16, 1)), n_components=level).compute(
        scheduler="synchronous"
    )
    assert store.bytes <= read[K] * level / K + 2 * 200 * K


def damage_beyond(store: Path, level: int) -> None:
    """Overwrite every chunk of later components where it lies in its shard."""
    scores = zarr.open_array(str(store / "scores"), mode="r")
    per_shard = [s // c for s, c in zip(scores.shards, scores.chunks, strict=True)]
    for shard in sorted(p for p in (store / "scores" / "c").rglob("*") if p.is_file()):
        content = bytearray(shard.read_bytes())
        places = np.frombuffer(bytes(content[-16 * int(np.prod(per_shard)) - 4 : -4]), "<u8").reshape(*per_shard, 2)
        for offset, length in places[..., level:, :].reshape(-1, 2).tolist():
            content[offset : offset + length] = os.urandom(length)
        shard.write_bytes(content)


def test_a_store_whose_later_components_are_lost_still_shows_the_first(stored: Path, tmp_path: Path) -> None:
    for name in ("scores.zarr", "model.zarr"):
        shutil.copytree(stored / name, tmp_path / name)
    damage_beyond(tmp_path / "scores.zarr", 2)
    whole, damaged = (dpca.open_scores(f / "scores.zarr", model=stored / "model.zarr") for f in (stored, tmp_path))
    np.testing.assert_array_equal(damaged.stack(2).compute(), whole.stack(2).compute())
    with pytest.raises(StoreError, match=r"scores\.zarr/scores.*damaged"):
        damaged.stack(3).compute()
    argv = [str(tmp_path / name) for name in ("model.zarr", "scores.zarr", "again.zarr")]
    reconstruct_store(*argv, n_components=2)
    rebuilt = open_stack(tmp_path / "again.zarr").samples[...]
    assert np.abs(rebuilt.astype(int) - whole.stack(2).compute()).max() <= 1
    with pytest.raises(StoreError, match="damaged"):
        reconstruct_store(*argv[:2], tmp_path / "more.zarr", n_components=3)


# -- stores that are opened


def test_a_store_is_the_stack_at_any_level(stored: Path) -> None:
    model = CellPCA.load(stored / "model.zarr")
    scores = zarr.open_array(str(stored / "scores.zarr" / "scores"), mode="r")[...]
    opened = dpca.open_scores(stored / "scores.zarr", 3, model=model)
    assert opened.n_components == 3
    assert opened.model is model
    np.testing.assert_array_equal(opened.scores.compute(), scores[..., :3])
    for level, lazy in ((3, opened.stack()), (1, opened.stack(1)), (K, opened.stack(n_components=K))):
        assert (lazy.shape, lazy.dtype) == ((300, 64, 64), np.uint8)
        exact = model.inverse_transform(scores, n_components=level)
        found = lazy.compute()
        off = found.astype(int) - np.clip(np.rint(exact), 0, 255).astype(int)
        assert np.abs(off).max() <= 1
        assert np.count_nonzero(off) < 1e-3 * off.size
    np.testing.assert_array_equal(opened.stack()[271].compute(), opened.stack().compute()[271])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_floats_are_left_as_they_come(dtype: type, tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(40, 30)).astype(dtype)
    zarr.create_array(str(tmp_path / "x.zarr"), data=x)
    stack = open_stack(tmp_path / "x.zarr", data_range=(-9, 9))
    model = fit_store(stack, tmp_path / "m.zarr", BandPCA(4, band_size=10, mapping="raster", random_state=0)).model
    transform_store(stack, tmp_path / "m.zarr", tmp_path / "s.zarr")
    opened = dpca.open_scores(tmp_path / "s.zarr", model=tmp_path / "m.zarr")
    assert opened.stack().dtype == dtype
    np.testing.assert_allclose(opened.stack(2).compute(), model.inverse_transform(model.transform(x), 2), atol=1e-5)


def test_what_cannot_be_opened(stored: Path, tmp_path: Path) -> None:
    scores, model = stored / "scores.zarr", stored / "model.zarr"
    with pytest.raises(StoreError, match="model="):
        dpca.open_scores(scores)
    with pytest.raises(StoreError, match="transform"):
        dpca.open_scores(model)
    with pytest.raises(StoreError, match="readable"):
        dpca.open_scores(tmp_path / "nothing.zarr")
    with pytest.raises(DataError, match="n_components"):
        dpca.open_scores(scores, 7, model=model)
    with pytest.raises(DataError, match="n_components"):
        dpca.open_scores(scores, model=model).stack(7)
    other = CellPCA(K, cell_shape=8).fit(smooth_images(20, (64, 64)))
    with pytest.raises(DataError, match="cell-scores"):
        dpca.open_scores(scores, model=other)


@pytest.mark.usefixtures("small_pictures")
def test_a_job_keeps_its_model_inside(
    image_folder: Any, tmp_path: Path, scheduler: str, capsys: pytest.CaptureFixture[str]
) -> None:
    output, where = tmp_path / "out.zarr", ["--scheduler", scheduler]
    argv = ["--source", str(image_folder(30)), "--output", str(output), "--reconstruct", *where]
    assert job([*argv, "--components", "6"]) == 0
    reconstructions = zarr.open_array(str(output / "reconstructions"), mode="r")[...]
    opened = dpca.open_scores(output)
    assert np.abs(opened.stack().compute().astype(int) - reconstructions).max() <= 1
    again = [str(output / "model"), str(output), str(tmp_path / "again.zarr")]
    assert main(["reconstruct", *again, "--components", "2", *where]) == 0
    rebuilt = open_stack(tmp_path / "again.zarr").samples[...]
    assert np.abs(opened.stack(2).compute().astype(int) - rebuilt).max() <= 1
    assert main(["reconstruct", *again, *where]) == 4
    assert "other settings" in capsys.readouterr().err
    assert main(["reconstruct", *again, "--components", "9", *where]) == 3
    assert "there are only 6" in capsys.readouterr().err


def test_components_that_are_not_kept_take_little_room(tmp_path: Path) -> None:
    """Ranks that differ: the scores that are not kept are zeros, and compressed; others are not worth it."""
    x = smooth_images(128, (64, 64))
    x[:, :, 16:] = np.random.default_rng(0).integers(126, 130, (128, 64, 48))
    zarr.create_array(str(tmp_path / "x.zarr"), data=x)
    stack = open_stack(tmp_path / "x.zarr")
    sizes = {}
    for name, asked in (("ranks", {"total_components": 512}), ("fixed", {"n_components": 2})):
        model = fit_store(stack, tmp_path / f"{name}-m.zarr", CellPCA(cell_shape=4, **asked)).model
        transform_store(stack, tmp_path / f"{name}-m.zarr", tmp_path / f"{name}.zarr")
        files = (tmp_path / f"{name}.zarr" / "scores" / "c").rglob("*")
        sizes[name] = sum(p.stat().st_size for p in files if p.is_file())
        found = zarr.open_array(str(tmp_path / f"{name}.zarr" / "scores"), mode="r")[...]
        np.testing.assert_allclose(found, model.transform(x), atol=1e-2)
    assert sizes["fixed"] == pytest.approx(128 * 512 * 4, rel=0.01)
    # Eight for every cell would be four times as many.
    assert sizes["ranks"] < 1.6 * sizes["fixed"]


def test_a_last_level_that_is_padded(tmp_path: Path) -> None:
    """Thirteen components are seven levels of two: what lies beyond the last one is in the file, and nowhere else."""
    x = smooth_images(100, (64, 64))
    zarr.create_array(str(tmp_path / "x.zarr"), data=x)
    stack = open_stack(tmp_path / "x.zarr")
    model = fit_store(stack, tmp_path / "m.zarr", CellPCA(13, cell_shape=4)).model
    transform_store(stack, tmp_path / "m.zarr", tmp_path / "s.zarr")
    scores = zarr.open_array(str(tmp_path / "s.zarr" / "scores"), mode="r")
    assert (scores.shape[-1], scores.chunks[-1], scores.shards[-1]) == (13, 2, 14)
    assert verify(tmp_path / "s.zarr") == []
    expected = model.transform(x)
    np.testing.assert_allclose(scores[...], expected, atol=1e-3)
    for level in (12, 13):
        part = np.empty((100, 16, 16, level), np.float32)
        read_into(scores, (slice(None), slice(None), slice(None), slice(level)), part)
        np.testing.assert_array_equal(part, scores[..., :level])
        rebuilt = model.inverse_transform(scores, n_components=level).compute()
        np.testing.assert_allclose(rebuilt, model.inverse_transform(expected, n_components=level), atol=1e-3)


def test_lazy_scores_of_lazy_samples(images: np.ndarray, tmp_path: Path) -> None:
    """From the store of samples to a preview of them in one lazy line."""
    zarr.create_array(str(tmp_path / "x.zarr"), data=images, chunks=(20, 15, 13, 3))
    model = CellPCA(K, cell_shape=5).fit(images)
    preview = model.inverse_transform(model.transform(as_lazy(str(tmp_path / "x.zarr"))), n_components=2)
    expected = model.inverse_transform(model.transform(images), n_components=2)
    np.testing.assert_allclose(preview.compute(), expected, atol=1e-3)
