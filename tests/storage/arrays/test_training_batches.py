"""Batches for training: every sample once, in an order that depends on nothing but seed, epoch and chunks."""

from __future__ import annotations

import pickle
import tracemalloc
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st

import dpca
from dpca import CellPCA, KernelPCA, PatchPCA
from dpca.jobs import transform_store
from dpca.storage import DataError, StoreError, ingest, open_stack
from dpca.storage.arrays.windows import sample_order
from tests.conftest import smooth_images


def numbered(folder: Path, n: int, chunk: int, shape: tuple[int, ...] = (2, 3)) -> tuple[Any, np.ndarray]:
    """Make a stack whose samples hold their own numbers."""
    x = np.arange(n, dtype=np.float32)[:, None, None] + np.zeros(shape, np.float32)
    zarr.create_array(str(folder), data=x, chunks=(chunk, *shape), overwrite=True)
    return open_stack(folder), x


def samples_in(batches: Any) -> list[int]:
    """Return the numbers of the samples of batches, whose labels are these numbers."""
    found: list[int] = []
    for x, y in batches:
        np.testing.assert_array_equal(x[:, 0, 0], y)
        found.extend(y.tolist())
    return found


@pytest.mark.long
@settings(max_examples=20, deadline=None)
@given(
    n=st.integers(1, 70),
    chunk=st.integers(1, 9),
    size=st.integers(1, 12),
    world=st.integers(1, 3),
    workers=st.integers(1, 4),
    seed=st.one_of(st.none(), st.integers(0, 5)),
    skipped=st.integers(0, 5),
)
def test_every_sample_comes_once_whoever_reads_it(
    tmp_path_factory: Any, n: int, chunk: int, size: int, world: int, workers: int, seed: int | None, skipped: int
) -> None:
    stack, _ = numbered(tmp_path_factory.getbasetemp() / "numbered", n, chunk)
    with mock.patch("dpca.storage.arrays.training_batches.window_chunks", return_value=4):  # one window would hold all
        whole = stack.batches(size, labels=np.arange(n), shuffle=seed, epoch=2)
        alone = samples_in(whole)
        assert sorted(alone) == list(range(n))
        assert seed is not None or alone == list(range(n))
        parts = [whole.replace(part=(rank, world)) for rank in range(world)]
        assert [sample for part in parts for sample in samples_in(part)] == alone
        assert max(p.n_samples for p in parts) - min(p.n_samples for p in parts) <= 1
        for part in parts:
            one_by_one = [y.tolist() for _, y in part]
            assert len(part) == len(one_by_one)
            assert all(len(y) == size for y in one_by_one[:-1])
            shares = [iter(part.replace(start=w, every=workers)) for w in range(workers)]
            dealt = [next(shares[i % workers])[1].tolist() for i in range(len(one_by_one))]
            assert dealt == one_by_one
            assert not [left for share in shares for left in share]
            rest = part.replace(start=skipped)
            assert [y.tolist() for _, y in rest] == one_by_one[skipped:]
            assert len(rest) == len(one_by_one[skipped:])


def test_seeds_and_epochs_are_other_orders_and_batches_travel(tmp_path: Path) -> None:
    stack, x = numbered(tmp_path / "x", 200, 5)
    batches = stack.batches(16, labels=np.arange(200), shuffle=1)
    first = samples_in(batches)
    others = [batches.replace(epoch=1), batches.replace(shuffle=2), batches.replace(shuffle=None)]
    orders = [first, *map(samples_in, others)]
    assert len({tuple(order) for order in orders}) == 4
    assert samples_in(batches) == samples_in(pickle.loads(pickle.dumps(batches))) == first
    # Mixed far and near: samples of one batch come from all over the stack.
    assert np.ptp(first[:16]) > 100
    # Batches are arrays of their own.
    kept = [batch for batch, _ in batches]
    np.testing.assert_array_equal(np.concatenate(kept)[:, 1, 2], first)
    plain = stack.batches(64)
    np.testing.assert_array_equal(np.concatenate(list(plain)), x)
    assert (plain.shape, plain.dtype, plain.channels_last, len(plain)) == (x.shape, np.float32, False, 4)


def test_samples_are_standardized_by_what_is_given(tmp_path: Path) -> None:
    x = np.random.default_rng(0).integers(0, 256, (50, 4, 5, 3), dtype=np.uint8)
    x[:, 0, 0] = 7
    zarr.create_array(str(tmp_path / "x"), data=x, chunks=(8, 4, 5, 3))
    mean, deviation = x.mean(axis=0), x.std(axis=0)
    batches = open_stack(tmp_path / "x").batches(20, standardize=(mean, deviation))
    assert batches.channels_last
    expected = (x - mean) / np.where(deviation > 0, deviation, 1)
    found = np.concatenate(list(batches))
    assert found.dtype == batches.dtype == np.float32
    np.testing.assert_allclose(found, expected, atol=1e-5)
    halves = np.concatenate(list(open_stack(tmp_path / "x").batches(20, standardize=(0, 2))))
    np.testing.assert_array_equal(halves, x / np.float32(2))


def test_scores_come_as_small_images_and_nothing_else_is_read(tmp_path: Path) -> None:
    x = smooth_images(90, (15, 10, 3))
    np.save(tmp_path / "x.npy", x)
    stack = ingest(tmp_path / "x.npy", tmp_path / "x.zarr")
    model = CellPCA(8, cell_shape=5, random_state=0).fit(x)
    model.save(tmp_path / "m")
    transform_store(stack, tmp_path / "m", tmp_path / "s.zarr")
    stored = dpca.open_scores(tmp_path / "s.zarr", model=model)
    scores = stored.scores.compute()
    labels = np.array([f"person {i}" for i in range(90)])
    batches = stored.batches(32, n_components=3, labels=labels, shuffle=0, standardize=True)
    assert (batches.shape, batches.channels_last) == ((90, 3, 2, 3), True)
    got = {name: row for x, y in batches for name, row in zip(y, x, strict=True)}
    found = np.stack([got[name] for name in labels])
    np.testing.assert_allclose(found, scores[..., :3] / scores[..., :3].std(axis=0, ddof=1), rtol=1e-4, atol=1e-4)
    plain = dpca.open_scores(tmp_path / "s.zarr", 2, model=model).batches(7)
    np.testing.assert_array_equal(np.concatenate(list(plain)), scores[..., :2])
    with pytest.raises(DataError, match="n_components"):
        stored.batches(32, n_components=9)
    patches = PatchPCA(2, 4).fit(x)
    patches.save(tmp_path / "p")
    transform_store(stack, tmp_path / "p", tmp_path / "ps.zarr")
    of_patches = dpca.open_scores(tmp_path / "ps.zarr", model=patches)
    (found,) = of_patches.batches(90, n_components=1, standardize=True)  # one deviation for all places
    maps = of_patches.scores[..., :1].compute()
    np.testing.assert_allclose(found, maps / np.sqrt(patches.explained_variance_[0]), rtol=1e-5)
    kernel = KernelPCA(2, random_state=0).fit(x)
    kernel.save(tmp_path / "k")
    transform_store(stack, tmp_path / "k", tmp_path / "ks.zarr")
    with pytest.raises(DataError, match="standardize="):
        dpca.open_scores(tmp_path / "ks.zarr", model=kernel).batches(32, standardize=True)


def test_memory_is_the_window_and_two_batches(tmp_path: Path) -> None:
    x = np.zeros((2048, 64, 64), np.float32)  # 16 KiB each, in chunks of 1 MiB
    zarr.create_array(str(tmp_path / "x"), data=x, chunks=(64, 64, 64))
    stack = open_stack(tmp_path / "x")
    batches = stack.batches(256, shuffle=0)
    next(iter(batches))
    tracemalloc.start()
    try:
        for batch in batches:
            assert batch.shape[1:] == (64, 64)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak <= 32 * 2**20 + 2 * 256 * 2**14 + 2**20


def test_what_cannot_be_meant_ends_with_a_sentence(tmp_path: Path) -> None:
    stack, _ = numbered(tmp_path / "x", 10, 4)
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"batch_size": 0}, "batch_size is 0: give a positive integer"),
        ({"batch_size": 2.0}, "batch_size is 2.0"),
        ({"shuffle": True}, "shuffle is True: give an integer of at least 0, the seed, or None"),
        ({"shuffle": -1}, "shuffle is -1"),
        ({"epoch": -1}, "epoch is -1"),
        ({"start": -2}, "start is -2"),
        ({"part": (2, 2)}, r"part is \(2, 2\): parts count from 0, give one of \(0, 2\) to \(1, 2\)"),
        ({"part": 3}, "part is 3: give a pair"),
        ({"part": (0, 0)}, r"part is \(0, 0\): parts count from 0, give one of \(0, 1\)"),
        ({"labels": [[1], [2, 3]]}, "labels"),
        ({"part": (-1, 2)}, r"part is \(-1, 2\): parts count from 0"),
        ({"labels": [1, 2, 3]}, r"\(3,\).* 10 samples"),
        ({"standardize": 5}, "pair"),
        ({"standardize": (np.zeros(7), 1)}, "pair"),
        ({"standardize": (0, -1)}, "negative"),
    ]
    for arguments, words in wrong:
        with pytest.raises(DataError, match=words):
            stack.batches(**{"batch_size": 4, **arguments})
    with pytest.raises(DataError, match="^every"):
        stack.batches(4).replace(every=0)
    with pytest.raises(DataError, match="labels.*epoch"):
        stack.batches(4).replace(labels=[1])
    assert list(stack.batches(4, start=9)) == []
    batches = stack.batches(4)
    numbered(tmp_path / "x", 10, 5)
    with pytest.raises(StoreError, match="replaced"):
        list(batches)


def test_windows_are_mixed_in_orders_of_their_own() -> None:
    orders = {tuple(sample_order(50, (seed,), window)) for seed in range(3) for window in range(4)}
    assert len(orders) == 12
    assert all(sorted(order) == list(range(50)) for order in orders)
