"""Checkpoints are complete, absent, or detected as damaged."""

from __future__ import annotations

import errno
import json
import os
import pickle
import shutil
import zipfile
from pathlib import Path

import numpy as np
import pytest

from dpca.engine.folds import checkpoint
from dpca.engine.folds.checkpoint import load_results, save_results
from dpca.engine.folds.fold_tasks import GroupTask, fold_segment
from dpca.engine.folds.plan import Group
from dpca.engine.sources.source import as_source
from dpca.partition.cells import CellGrid
from dpca.rules.covariance.snapshots import SnapshotPCA
from dpca.storage import StoreError
from dpca.storage.transaction.checkpoints import Checkpoints

ARRAYS = {
    "0.cross": np.arange(12.0).reshape(3, 4),
    "1.sum": np.array([1, -2, 3], np.int8),
    "empty": np.zeros((0, 5), np.float32),
    "scalar": np.asarray(2.5),
    "fortran": np.asfortranarray(np.arange(6, dtype=">i4").reshape(2, 3)),
}
COUNTS = {"0.n_samples": 2**80, "1.n_samples": 0}


@pytest.fixture
def checkpoints(tmp_path: Path) -> Checkpoints:
    return Checkpoints(str(tmp_path / "not" / "yet" / "there"))


def test_what_is_saved_is_loaded(checkpoints: Checkpoints) -> None:
    assert checkpoints.load("piece") is None
    checkpoints.save("piece", ARRAYS, COUNTS)
    loaded = checkpoints.load("piece")
    assert loaded is not None
    arrays, counts = loaded
    assert counts == COUNTS  # exact, whatever their size
    assert arrays.keys() == ARRAYS.keys()
    for name, array in ARRAYS.items():
        assert (arrays[name].dtype, arrays[name].shape) == (array.dtype, array.shape)
        np.testing.assert_array_equal(arrays[name], array)
    assert checkpoints.load("another") is None
    checkpoints.save("piece", {"a": np.ones(1)}, {})
    assert checkpoints.load("piece") == ({"a": np.ones(1)}, {})
    assert [p.name for p in Path(checkpoints.folder).iterdir()] == ["piece.npz"]  # nothing temporary is left
    checkpoints.remove("piece")
    checkpoints.remove("piece")
    assert checkpoints.load("piece") is None


def test_every_truncation_is_noticed(checkpoints: Checkpoints) -> None:
    checkpoints.save("piece", ARRAYS, COUNTS)
    path = Path(checkpoints.folder) / "piece.npz"
    whole = path.read_bytes()
    for length in [*range(0, len(whole), 29), len(whole) - 1]:
        path.write_bytes(whole[:length])
        assert checkpoints.load("piece") is None, length


def test_a_flipped_bit_is_noticed_or_harmless(checkpoints: Checkpoints) -> None:
    checkpoints.save("piece", ARRAYS, COUNTS)
    path = Path(checkpoints.folder) / "piece.npz"
    whole = path.read_bytes()
    noticed = 0
    for place in range(0, len(whole), 7):
        broken = bytearray(whole)
        broken[place] ^= 1 << (place % 8)
        path.write_bytes(bytes(broken))
        loaded = checkpoints.load("piece")
        if loaded is None:
            noticed += 1
            continue
        # A date or an attribute of the archive: never a value.
        assert loaded[1] == COUNTS
        assert loaded[0].keys() == ARRAYS.keys()
        assert all(np.array_equal(loaded[0][name], array) for name, array in ARRAYS.items())
    assert noticed > len(whole) / 7 / 3


@pytest.mark.parametrize("content", [b"", b"\x80\x04K\x01.", b"\x93NUMPY" + bytes(200), b"PK\x05\x06" + bytes(18)])
def test_files_of_another_kind_are_no_checkpoints(content: bytes, checkpoints: Checkpoints) -> None:
    checkpoints.save("piece", {}, {})
    (Path(checkpoints.folder) / "piece.npz").write_bytes(content)
    assert checkpoints.load("piece") is None


def test_nothing_is_ever_pickled(checkpoints: Checkpoints) -> None:
    with pytest.raises(ValueError, match="allow_pickle=False"):
        checkpoints.save("piece", {"a": np.array([{}, None])}, {})
    assert os.listdir(checkpoints.folder) == []
    # A pickle from elsewhere is not opened either.
    np.savez(os.path.join(checkpoints.folder, "piece.npz"), a=np.array([print], object))
    with zipfile.ZipFile(os.path.join(checkpoints.folder, "piece.npz"), "a") as archive:
        content = np.frombuffer(json.dumps({}).encode(), np.uint8)
        with archive.open("counts.json.npy", "w") as member:
            np.lib.format.write_array(member, content)
    assert checkpoints.load("piece") is None


def test_a_full_disk_is_reported_and_leaves_nothing(checkpoints: Checkpoints, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    checkpoints.save("before", ARRAYS, COUNTS)
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StoreError, match="full"):
        checkpoints.save("piece", ARRAYS, COUNTS)
    assert os.listdir(checkpoints.folder) == ["before.npz"]


def test_what_a_stopped_run_removed_is_not_made_again(tmp_path: Path) -> None:
    """By a task that ends later: the next run would not know whose folder that is."""
    scratch = tmp_path / "work" / "scratch"
    scratch.mkdir(parents=True)
    kept = Checkpoints(str(scratch / "fold" / "settings"), str(scratch))
    kept.save("piece", ARRAYS, COUNTS)
    assert kept.load("piece") is not None
    shutil.rmtree(tmp_path / "work")
    with pytest.raises(FileNotFoundError):
        kept.save("piece", ARRAYS, COUNTS)
    assert not (tmp_path / "work").exists()


@pytest.mark.parametrize("seed", range(8))
def test_results_of_any_shapes_come_back_as_they_were(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint, "_STACKED_BYTES", 400)
    rng, kept = np.random.default_rng(seed), Checkpoints(str(tmp_path))
    forms: list[dict[str, tuple[int, ...]]] = [
        {"a": (3,), "b": ()},
        {"a": (3,)},
        {"a": (3, 1)},
        {"a": (1, 3)},
        {},
    ]
    results = []
    for _ in range(40):
        form, dtype = forms[rng.integers(5) if seed % 2 else 0], ["f4", "f8"][rng.integers(1 + seed % 2)]
        results.append({key: np.asarray(rng.normal(size=shape), dtype) for key, shape in form.items()})
    save_results(kept, "found", results)
    found = load_results(kept, "found")
    assert found is not None
    for one, other in zip(found, results, strict=True):
        assert list(one) == list(other)
        for key in one:
            assert (one[key].dtype, one[key].shape) == (other[key].dtype, other[key].shape)
            np.testing.assert_array_equal(one[key], other[key])


def test_results_of_many_small_parts_are_few_arrays(tmp_path: Path) -> None:
    kept = Checkpoints(str(tmp_path))
    save_results(kept, "found", [{"mean": np.zeros(20), "total": np.zeros(())} for _ in range(1000)])
    found = kept.load("found")
    assert found is not None
    assert len(found[0]) == 2


def test_results_are_sent_as_few_arrays() -> None:
    samples, grid = np.random.default_rng(0).normal(size=(6, 30, 40)), CellGrid((30, 40), (3, 4))
    group = Group(tuple(range(100)), ((0, 30), (0, 40)))
    work = GroupTask(SnapshotPCA(6, 2), grid, group, 6, 1, 2**62, "x", samples.dtype, "group", "fit")
    results = fold_segment(work, as_source(samples), (0, 6), finished=True)[0]
    buffers: list[pickle.PickleBuffer] = []
    sent = pickle.dumps(results, protocol=5, buffer_callback=buffers.append)
    assert len(buffers) == 4
    found = pickle.loads(sent, buffers=buffers)
    for one, other in zip(found, results, strict=True):
        assert list(one) == list(other)
        for key in one:
            assert one[key].shape == np.shape(other[key])
            np.testing.assert_array_equal(one[key], other[key])
