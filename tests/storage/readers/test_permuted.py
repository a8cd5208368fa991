"""A source in random order holds every sample once, names and labels with it."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dpca.storage import DataError, ingest
from dpca.storage.readers import open_reader
from dpca.storage.readers.permuted import Permuted


def _digits(tmp_path: Path) -> tuple[Path, np.ndarray, np.ndarray]:
    images, labels = np.arange(60 * 12).reshape(60, 4, 3).astype(np.float32), np.arange(60) // 6
    np.savez(tmp_path / "digits.npz", images=images, labels=labels)
    return tmp_path / "digits.npz", images, labels


def test_an_array_is_permuted_with_its_labels(tmp_path: Path) -> None:
    path, images, labels = _digits(tmp_path)
    reader = Permuted(open_reader(path), seed=1)
    stack = ingest(reader, tmp_path / "out.zarr")
    assert sorted(reader.order.tolist()) == list(range(60))
    assert np.any(reader.order != np.arange(60))
    np.testing.assert_array_equal(stack.samples[...], images[reader.order])
    assert stack.labels is not None
    np.testing.assert_array_equal(stack.labels, labels[reader.order])
    assert stack.names.tolist() == [f"{i:02d}" for i in reader.order]


def test_images_in_a_tar_are_permuted_with_their_names(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "faces.tar", "w") as archive:
        for i in range(12):
            file = io.BytesIO()
            Image.fromarray(np.full((5, 4), 10 * i, np.uint8)).save(file, "png")
            entry = tarfile.TarInfo(f"{i:02d}.png")
            entry.size = file.tell()
            file.seek(0)
            archive.addfile(entry, file)
    reader = Permuted(open_reader(tmp_path / "faces.tar"), seed=0)
    stack = ingest(reader, tmp_path / "out.zarr")
    assert stack.names.tolist() == [f"{i:02d}.png" for i in reader.order]
    np.testing.assert_array_equal(stack.samples[:, 2, 3], 10 * reader.order)


def test_the_seed_makes_the_order_and_the_fingerprint(tmp_path: Path) -> None:
    path, *_ = _digits(tmp_path)
    a, again, b = (Permuted(open_reader(path), seed=seed) for seed in (0, 0, 1))
    np.testing.assert_array_equal(a.order, again.order)
    assert np.any(a.order != b.order)
    assert a.fingerprint() == again.fingerprint() != b.fingerprint()
    assert a.fingerprint() != open_reader(path).fingerprint()


def test_what_was_refused_stays_refused(tmp_path: Path) -> None:
    inner = open_reader(_digits(tmp_path)[0])
    inner.refused = {7: "is broken"}
    reader = Permuted(inner, seed=2)
    (place,) = reader.refused
    assert reader.order[place] == 7


def test_a_compressed_source_and_a_negative_seed_are_refused(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "small.npz", images=np.zeros((5, 4, 3)))
    with pytest.raises(DataError, match="beginning"):
        Permuted(open_reader(tmp_path / "small.npz"), seed=0)
    with pytest.raises(DataError, match="order"):
        Permuted(open_reader(_digits(tmp_path)[0]), seed=-1)
