"""Batches contain the samples in order, each once, for every kind of source."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from zarr.storage import ZipStore

import dpca.engine.sources.source
from dpca.engine.folds.fold_device import ThreadedSource
from dpca.engine.sources import rows
from dpca.engine.sources.finite import check_finite
from dpca.engine.sources.source import ArraySource, DaskSource, ZarrSource, as_source, batches
from dpca.storage import DataError, StoreError, open_stack
from dpca.storage.arrays.arrays import create_array, create_root, write_shard
from dpca.storage.arrays.layout import Layout

VALUES = np.random.default_rng(0).integers(0, 256, (53, 11, 13, 3), dtype=np.uint8)
Make = Callable[[Path, np.ndarray], Any]


def sharded(folder: Path, values: np.ndarray) -> str:
    axes = ("sample", "y", "x", "channel")
    facts = {"axes": list(axes), "data_range": [0, 255], "source": {"kind": "test", "name": "t", "count": len(values)}}
    root = create_root(folder / "ours.zarr", kind="stack", fingerprint="f", **facts)
    array = create_array(root, "samples", values.shape, values.dtype, Layout((4, 6, 5, 3), (20, 12, 15, 3)), axes)
    for start in range(0, len(values), 20):
        write_shard(array, start, values[start : start + 20])
    return str(folder / "ours.zarr")


def foreign(version: int, **options: Any) -> Make:
    def make(folder: Path, values: np.ndarray) -> Any:
        return zarr.create_array(str(folder / "theirs.zarr"), data=values, zarr_format=version, **options)

    return make


def memory_map(folder: Path, values: np.ndarray) -> np.ndarray:
    np.save(folder / "x.npy", values)
    return np.load(folder / "x.npy", mmap_mode="r")


MADE: dict[str, Make] = {
    "our stack by its path": sharded,
    "our stack": lambda folder, values: open_stack(sharded(folder, values)),
    "its array by path": lambda folder, values: f"{sharded(folder, values)}/samples",
    "zarr 2": foreign(2, chunks=(7, 4, 13, 2)),
    "zarr 2 in Fortran order": foreign(2, chunks=(7, 4, 13, 2), order="F"),
    "zarr 3": foreign(3, chunks=(60, 3, 3, 1)),
    "zarr 3, one sample a chunk": foreign(3, chunks=(1, 11, 13, 3)),
    "zarr in memory": lambda folder, values: zarr.create_array({}, data=values, chunks=(9, 4, 4, 3)),
    "numpy": lambda folder, values: values,
    "numpy in Fortran order": lambda folder, values: np.asfortranarray(values),
    "nested lists": lambda folder, values: values.tolist(),
    "memory map": memory_map,
    "dask": lambda folder, values: da.from_array(values, chunks=((50, 3), 4, (1, 12), 2)),
}


@pytest.fixture(scope="module", params=MADE.values(), ids=MADE)
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return request.param(tmp_path_factory.mktemp("made"), VALUES)


@pytest.mark.parametrize("read_bytes", [3000, 2**24])
@pytest.mark.parametrize(
    ("samples", "region", "rows"),
    [
        ((0, 53), ((0, 11), (0, 13), (0, 3)), 53),
        ((5, 49), ((3, 8), (4, 6), (1, 2)), 10),
        ((52, 53), ((10, 11), (12, 13), (2, 3)), 10),
    ],
)
def test_batches_are_the_samples_in_order(
    samples: tuple[int, int],
    region: tuple[tuple[int, int], ...],
    rows: int,
    read_bytes: int,
    made: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dpca.engine.sources.source, "_READ_BYTES", read_bytes)
    source = as_source(made)
    assert source.shape == VALUES.shape
    expected = VALUES[(slice(*samples), *(slice(a, b) for a, b in region))]
    position = samples[0]
    for first, batch in batches(source, samples, region, rows):
        assert first == position
        assert batch.flags.c_contiguous
        assert 1 <= len(batch) <= rows
        np.testing.assert_array_equal(batch, expected[first - samples[0] : first - samples[0] + len(batch)])
        position += len(batch)
    assert position == samples[1]


@given(st.integers(1, 40), st.integers(1, 9), st.integers(1, 2000), st.data())
@settings(deadline=None, max_examples=60, derandomize=True)
def test_reads_go_from_chunk_to_chunk_and_never_decode_one_twice(
    n: int, chunk: int, read_bytes: int, data: st.DataObject
) -> None:
    """Seen by what is asked of Zarr."""
    start = data.draw(st.integers(0, n - 1))
    stop = data.draw(st.integers(start + 1, n))
    source = ZarrSource("nowhere", (n, 6), np.dtype(np.uint16), (chunk, 4))
    asked: list[tuple[int, int]] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dpca.engine.sources.source, "_READ_BYTES", read_bytes)
        patch.setattr("dpca.engine.sources.source.open_array", lambda path: None)
        patch.setattr(
            "dpca.engine.sources.source.read_into", lambda array, box, out: asked.append((box[0].start, box[0].stop))
        )
        source.reader()((start, stop), ((1, 6),), np.empty((stop - start, 5), np.uint16))
    assert asked[0][0] == start
    assert asked[-1][1] == stop
    assert all(a[1] == b[0] and b[0] % chunk == 0 for a, b in itertools.pairwise(asked))
    # A row of chunks takes two chunks of 4 x 2 bytes for every sample.
    assert all(b - a <= max(chunk, read_bytes // 16) for a, b in asked)


def test_the_next_batch_is_read_while_this_one_is_used() -> None:
    coming, used = threading.Event(), threading.Event()

    class Watched(ArraySource):
        def reader(self) -> Any:
            read = super().reader()

            def watch(samples: tuple[int, int], region: Any, out: np.ndarray) -> None:
                if samples[0] == 2:
                    coming.set()
                    assert used.wait(10)  # would wait in vain if the batch before were not handed out by now
                read(samples, region, out)

            return watch

    taken = []
    for first, batch in batches(Watched(VALUES), (0, 6), ((0, 11), (0, 13), (0, 3)), 2):
        if first == 0:
            assert coming.wait(10)
            np.testing.assert_array_equal(batch, VALUES[:2])  # and it is not overwritten meanwhile
            used.set()
        taken.append(batch.copy())
    np.testing.assert_array_equal(np.concatenate(taken), VALUES[:6])


def test_giving_up_early_ends_the_reading_thread() -> None:
    before = threading.active_count()
    running = batches(ArraySource(VALUES), (0, 53), ((0, 11), (0, 13), (0, 3)), 5)
    next(running)
    assert threading.active_count() > before
    running.close()
    assert threading.active_count() == before


@pytest.mark.parametrize(
    ("place", "value", "dtype"),
    [((0, 0, 0), np.nan, np.float16), ((17, 3, 2), np.inf, np.float32), ((52, 10, 12), -np.inf, np.float64)],
)
def test_what_is_not_finite_is_named(
    place: tuple[int, ...], value: float, dtype: type, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dpca.engine.sources.finite._CHECKED_AT_ONCE", 300)
    x = VALUES[..., 0].astype(dtype)
    x[place] = value
    stored = zarr.create_array(str(tmp_path / "x.zarr"), data=x, chunks=(20, 5, 5))
    for source in (as_source(x), as_source(stored), as_source(da.from_array(x, chunks=(9, 5, 5)))):
        with pytest.raises(DataError, match=f"sample.{place[0]}.*{source.name}.*finite"):
            for _ in batches(source, (0, 53), ((0, 11), (0, 13)), 16):
                pass


def test_the_largest_numbers_are_finite() -> None:
    check_finite(np.full((3, 4), np.finfo(np.float32).max, np.float32), 0, "x")
    check_finite(np.zeros((0, 4)), 0, "x")


def test_what_samples_come_from_is_small_to_ship(tmp_path: Path) -> None:
    import pickle

    assert len(pickle.dumps(as_source(sharded(tmp_path, VALUES)))) < 1000


def test_arrays_in_memory_are_not_copied(tmp_path: Path) -> None:
    x = np.zeros((5, 4))
    source = as_source(x)
    assert isinstance(source, ArraySource)
    assert np.shares_memory(source.array, x)
    # Nor is a Zarr array read whole only because no path leads to it.
    with ZipStore(tmp_path / "x.zip", mode="w") as store:
        zarr.create_array(store, data=x, chunks=(2, 4))
    with ZipStore(tmp_path / "x.zip", mode="r") as store:
        zipped = as_source(zarr.open_array(store, mode="r"))
        assert isinstance(zipped, ArraySource)
        assert isinstance(zipped.array, zarr.Array)
        assert zipped.chunks == (2, 4)


def test_a_piece_of_a_dask_array_knows_where_it_begins() -> None:
    source = as_source(da.from_array(VALUES, chunks=(10, 5, 5, 3)))
    assert isinstance(source, DaskSource)
    piece = source.piece((20, 40), ((3, 9), (0, 13), (1, 3))).compute(scheduler="sync")
    found = np.concatenate([b.copy() for _, b in batches(piece, (20, 40), ((3, 9), (0, 13), (1, 3)), 6)])
    np.testing.assert_array_equal(found, VALUES[20:40, 3:9, :, 1:])
    assert [first for first, _ in batches(piece, (20, 40), ((3, 9), (0, 13), (1, 3)), 6)] == [20, 26, 32, 38]


def test_a_damaged_chunk_is_named(tmp_path: Path) -> None:
    path = Path(sharded(tmp_path, VALUES))
    shard = path / "samples" / "c" / "1" / "0" / "0" / "0"
    broken = bytearray(shard.read_bytes())
    broken[100] ^= 1
    shard.write_bytes(bytes(broken))
    with pytest.raises(StoreError, match="damaged"):
        list(batches(as_source(str(path)), (0, 53), ((0, 11), (0, 13), (0, 3)), 10))
    shard.unlink()
    with pytest.raises(StoreError, match="missing"):
        list(batches(as_source(str(path)), (0, 53), ((0, 11), (0, 13), (0, 3)), 10))


def test_dask_arrays_of_unknown_length() -> None:
    lazy = da.from_array(VALUES[:, 0, :, 0], chunks=10)
    with pytest.raises(DataError, match="compute_chunk_sizes"):
        as_source(lazy[lazy[:, 0] > 100])


def test_masked_values_are_no_data() -> None:
    masked = np.ma.masked_greater(VALUES[:, 0, :, 0], 100)
    for x in (masked, da.from_array(masked, chunks=10), da.ma.masked_greater(da.from_array(masked.data), 100)):
        with pytest.raises(DataError, match="masked"):
            as_source(x)


@pytest.mark.parametrize("made", ["our stack", "zarr 2", "zarr 3, one sample a chunk"])
@pytest.mark.parametrize("n_threads", [1, 3, 8])
def test_several_threads_read_what_one_does(tmp_path: Path, made: str, n_threads: int) -> None:
    source = ThreadedSource(as_source(MADE[made](tmp_path, VALUES)), n_threads)
    region, read = ((2, 9), (0, 13), (0, 3)), source.reader()
    for start, stop in ((0, 53), (3, 50), (8, 9), (19, 41)):
        out = np.zeros((stop - start, 7, 13, 3), np.uint8)
        read((start, stop), region, out)
        np.testing.assert_array_equal(out, VALUES[start:stop, 2:9])


def test_what_a_thread_cannot_read_is_said(tmp_path: Path) -> None:
    store = sharded(tmp_path, VALUES)
    (tmp_path / "ours.zarr" / "samples" / "c" / "1" / "0" / "0" / "0").unlink()
    source = ThreadedSource(as_source(store), 2)
    with pytest.raises(StoreError, match="missing"):
        source.reader()((0, 53), ((0, 11), (0, 13), (0, 3)), np.empty(VALUES.shape, np.uint8))


def test_a_source_stays_what_it_is_and_arrays_are_not_asked_for_what_they_must_compute() -> None:
    source = as_source(np.zeros((3, 2)))
    assert as_source(source) is source

    class Irregular(np.ndarray):
        """An array whose chunks are not all alike, as Zarr has them too: there is no answer to this question."""

        @property
        def chunks(self) -> tuple[int, ...]:
            raise NotImplementedError

    assert as_source(np.zeros((3, 2)).view(Irregular)).shape == (3, 2)


def test_large_samples_of_a_file_are_read_in_boxes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.random.default_rng(0).normal(size=(5, 30, 20, 16)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    whole = as_source(tmp_path / "x.npy")
    monkeypatch.setattr(rows, "_LARGE_BYTES", 100)
    monkeypatch.setattr(rows, "_BLOCK_BYTES", 9000)
    source = as_source(tmp_path / "x.npy")
    assert whole.chunks == x.shape
    assert source.chunks == (1, 15, 10, 8)
    region = ((3, 29), (9, 11), (0, 16))
    source.reader()((1, 4), region, out := np.empty((3, 26, 2, 16), np.float32))
    np.testing.assert_array_equal(out, x[1:4, 3:29, 9:11])
    x[3, 29, 0, 0] = np.nan
    np.save(tmp_path / "x.npy", x)
    with pytest.raises(DataError, match="3"):
        as_source(tmp_path / "x.npy").as_dask().compute()
