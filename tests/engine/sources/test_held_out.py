"""Samples held out: spread over the stack, cheap to read, and the stack without them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st

import dpca.engine.sources.held_out as held_out
from dpca import BandPCA, CellPCA, StreamingPCA
from dpca.engine.folds.fold import fold
from dpca.engine.sources.derived import DerivedSource
from dpca.engine.sources.held_out import MOST_HELD_OUT, RemainingSource, hold_out, without
from dpca.engine.sources.source import ZarrSource, as_source, batches
from dpca.partition import CellGrid
from dpca.rules.covariance.covariance import CovariancePCA
from dpca.storage.errors import DataError
from dpca.storage.run import Run
from dpca.storage.transaction.checkpoints import Checkpoints

SHAPE = (3, 2)


def numbered(n: int, dtype: Any = np.int32) -> np.ndarray:
    """Samples that hold their own number, and where in the sample a value is."""
    return (1000 * np.arange(n)[:, None, None] + np.arange(6).reshape(SHAPE)).astype(dtype)


def sources(n: int, chunk: int, dtype: Any = np.int32) -> list[Any]:
    x, chunks = numbered(n, dtype), (min(chunk, n), 2, 2)
    stored = zarr.create_array(zarr.storage.MemoryStore(), data=x, chunks=chunks)
    return [as_source(x), as_source(stored), as_source(da.from_array(x, chunks=chunks))]


def read(source: Any, rows: int, region: Any = ((0, 3), (0, 2)), samples: tuple[int, int] | None = None) -> np.ndarray:
    return np.concatenate([b.copy() for _, b in batches(source, samples or (0, source.shape[0]), region, rows)])


@settings(deadline=None, max_examples=25)
@given(
    n=st.integers(2, 40),
    chunk=st.integers(1, 14),
    rows=st.integers(1, 22),
    cut=st.integers(0, 40),
    window=st.integers(1, 1800),
    data=st.data(),
)
def test_all_others_in_their_order_wherever_they_are_cut(
    n: int, chunk: int, rows: int, cut: int, window: int, data: st.DataObject
) -> None:
    gone = np.array(sorted(data.draw(st.sets(st.integers(0, n - 1), min_size=1, max_size=n - 1))))
    expected = np.delete(numbered(n), gone, axis=0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(held_out, "WINDOW_BYTES", window)
        for whole in sources(n, chunk)[:2]:
            source = without(whole, gone)
            assert source.shape == expected.shape
            np.testing.assert_array_equal(read(source, rows), expected)
            middle = min(cut, len(expected))
            parts = [read(source, 7, samples=(a, b)) for a, b in ((0, middle), (middle, len(expected))) if a < b]
            np.testing.assert_array_equal(np.concatenate(parts), expected)
            np.testing.assert_array_equal(read(source, rows, region=((1, 3), (0, 1))), expected[:, 1:3, :1])


@pytest.mark.parametrize("chunks", [(10, 3, 2), (10, 2, 1), ((7, 20, 3, 65), (3,), (2,))])
def test_a_dask_array_without_them_keeps_its_chunks(chunks: Any) -> None:
    x, gone = numbered(95), np.array([0, 5, 6, 31, 94])
    source: Any = without(as_source(da.from_array(x, chunks=chunks)), gone)
    np.testing.assert_array_equal(source.array.compute(scheduler="synchronous"), np.delete(x, gone, axis=0))
    assert source.array.numblocks == da.from_array(x, chunks=chunks).numblocks


@given(st.integers(4, 400), st.floats(0.01, 0.5), st.integers(1, 30))
@settings(deadline=None)
def test_one_in_each_of_equal_parts(n: int, fraction: float, chunk: int) -> None:
    count = round(fraction * n)
    source = ZarrSource("nowhere", (n, 6), np.dtype(np.uint8), (chunk, 6))
    if count < 2:
        with pytest.raises(DataError, match=rf"\b{n}\b.*\b{count}\b"):
            hold_out(source, fraction, np.random.default_rng(0))
        return
    remaining, chosen = hold_out(source, fraction, np.random.default_rng(0))
    assert remaining.shape == (n - count, 6)
    assert len(chosen) == count
    for i, sample in enumerate(chosen):
        assert i * n // count <= sample < (i + 1) * n // count
    np.testing.assert_array_equal(chosen, hold_out(source, fraction, np.random.default_rng(0))[1])


@pytest.mark.parametrize("n", [30_000, 400_000, 3_000_000])
@pytest.mark.parametrize("chunk", [1, 37, 512, 20_000])
@pytest.mark.parametrize("fraction", [0.001, 0.2, 0.5])
def test_of_a_large_stack_few_chunks_are_read_again(n: int, chunk: int, fraction: float) -> None:
    source = ZarrSource("nowhere", (n, 6), np.dtype(np.uint8), (chunk, 6))
    _, chosen = hold_out(source, fraction, np.random.default_rng(0))
    assert (np.diff(chosen) > 0).all()
    wanted = min(round(fraction * n), MOST_HELD_OUT)
    assert 0.9 * wanted <= len(chosen) <= 1.02 * wanted
    chunks = len(np.unique(chosen // chunk))
    # A hundred places at least, however long the chunks are.
    assert chunks <= 120 or chunks * chunk <= 1.4 * max(20_000, n / 20)
    places = 1 + np.count_nonzero(np.diff(chosen) > 1)
    assert places >= min(80, 0.5 * wanted)
    assert np.abs(chosen.mean() / n - 0.5) < 0.1


def test_each_chunk_is_read_once() -> None:
    inner, seen = sources(95, 10)[1], []

    class Counting(DerivedSource):
        def reader(self) -> Any:
            read = inner.reader()

            def counted(samples: tuple[int, int], region: Any, out: np.ndarray) -> None:
                seen.append(samples)
                read(samples, region, out)

            return counted

    read(RemainingSource(Counting(inner, window_rows=0), np.array([3, 4, 15, 94])), 8)
    assert sorted(i for a, b in seen for i in range(a, b)) == list(range(95))


@pytest.mark.parametrize("which", [0, 1, 2])
def test_a_spoiled_sample_is_named_by_its_place_in_the_store(which: int) -> None:
    x = numbered(95, np.float32)
    x[61, 1, 1] = np.nan
    stored = zarr.create_array(zarr.storage.MemoryStore(), data=x, chunks=(10, 3, 2))
    whole = as_source([x, stored, da.from_array(x, chunks=(10, 3, 2))][which])
    with pytest.raises(DataError, match="sample.61"):
        read(without(whole, np.array([2, 30, 60])), 16)


def test_a_fold_over_what_remains(tmp_path: Path, cluster: Any) -> None:
    x = np.random.default_rng(0).integers(0, 256, (300, 8, 6), dtype=np.uint8)
    path = str(tmp_path / "x.zarr")
    zarr.create_array(path, data=x, chunks=(32, 4, 6))
    gone, grid, rule = np.arange(7, 300, 11), CellGrid((8, 6), (4, 3)), CovariancePCA(3)
    expected, _ = fold(rule, as_source(np.delete(x, gone, axis=0)), grid)
    for client, stack in ((None, path), (cluster, path), (cluster, x), (cluster, da.from_array(x, chunks=(50, 8, 6)))):
        found, _ = fold(rule, without(as_source(stack), gone), grid, run=Run(client=client))
        for a, b in zip(found, expected, strict=True):
            np.testing.assert_array_equal(a["components"], b["components"])


def test_what_others_left_out_is_not_gone_on_with(tmp_path: Path) -> None:
    x = np.random.default_rng(0).integers(0, 256, (60, 6), dtype=np.uint8)
    kept, grid, rule = Checkpoints(str(tmp_path / "kept")), CellGrid((6,), (3,)), CovariancePCA(2)
    first, _ = fold(rule, without(as_source(x), np.array([1, 2])), grid, run=Run(checkpoints=kept))
    other, _ = fold(rule, without(as_source(x), np.array([1, 3])), grid, run=Run(checkpoints=kept))
    assert (first[0]["mean"] != other[0]["mean"]).any()
    again, _ = fold(rule, without(as_source(x), np.array([1, 2])), grid, run=Run(checkpoints=kept))
    np.testing.assert_array_equal(again[0]["mean"], first[0]["mean"])


def test_what_a_reader_holds_is_planned_for() -> None:
    whole = ZarrSource("nowhere", (40_000, 64, 64), np.dtype(np.uint8), (100, 64, 64))
    source = RemainingSource(whole, np.arange(10))
    assert source.window_rows % 100 == 0
    assert 0 < source.window_rows * 64 * 64 <= 2**25
    long = RemainingSource(ZarrSource("nowhere", (40_000, 64, 64), np.dtype(np.uint8), (30_000, 8, 8)), np.arange(10))
    assert long.window_rows == 30_000


def test_estimators_take_what_remains(tmp_path: Path) -> None:
    x = np.random.default_rng(0).integers(0, 256, (230, 12, 10, 3), dtype=np.uint8)
    zarr.create_array(str(tmp_path / "x.zarr"), data=x, chunks=(50, 12, 10, 3))
    left_out = np.arange(3, 230, 4)
    part, rest = RemainingSource(as_source(str(tmp_path / "x.zarr")), left_out), np.delete(x, left_out, axis=0)
    found, wanted = (CellPCA(4, cell_shape=(5, 5)).fit(given) for given in (part, rest))
    np.testing.assert_array_equal(found.components_, wanted.components_)
    streamed = StreamingPCA(5, oversampling=200).fit(part)
    assert streamed.n_samples_seen_ == len(rest)
    np.testing.assert_allclose(streamed.mean_, rest.reshape(len(rest), -1).mean(axis=0), rtol=1e-6)


def test_bands_keep_channels_by_the_stated_axes() -> None:
    x = np.random.default_rng(0).normal(size=(40, 6, 4, 3)).astype(np.float32)

    def labels(axes: tuple[str, ...] | None) -> Any:
        part = RemainingSource(as_source(x), np.arange(0, 40, 4))
        part.axes = axes
        return BandPCA(2, band_size=6, mapping="random", random_state=0).fit(part).bands_.labels

    together = labels(None)
    assert (together == together[..., :1]).all()
    np.testing.assert_array_equal(labels(("y", "x", "channel")), together)
    apart = labels(("y", "x", "time"))
    assert not (apart == apart[..., :1]).all()
