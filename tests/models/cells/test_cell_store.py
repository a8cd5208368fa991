"""Stored models: they load completely, their kind is recognized, and invalid stores raise an error of one sentence."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from dpca import CellPCA
from dpca.models.base.store import model_fingerprint
from dpca.storage import StoreError
from dpca.storage.arrays.arrays import create_array, write_shard
from dpca.storage.arrays.layout import Layout
from dpca.storage.integrity.manifest import write_manifest
from tests.helpers.resealing import edit_metadata


def samples(shape: tuple[int, ...], dtype: Any = np.uint8, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 200, shape).astype(dtype)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("saved") / "model.zarr"
    CellPCA(3, cell_shape=4).fit(samples((20, 8, 9, 3))).save(path)
    return path


@pytest.fixture
def stored(saved: Path, tmp_path: Path) -> Path:
    """A store that may be changed."""
    return Path(shutil.copytree(saved, tmp_path / "model.zarr"))


def test_models_that_differ_in_anything_have_different_fingerprints(tmp_path: Path) -> None:
    x, constant = samples((20, 8, 9)), np.zeros((20, 8, 9), np.uint8)
    models = [
        CellPCA(3, cell_shape=4).fit(x),
        CellPCA(2, cell_shape=4).fit(x),
        CellPCA(3, cell_shape=4).fit(x[1:]),
        CellPCA(3, cell_shape=4).fit(x.astype(np.float64)),
        CellPCA(3, cell_shape=4).fit(constant),
        CellPCA(3, cell_shape=4).fit(constant[1:]),
    ]
    for i, model in enumerate(models):
        model.save(tmp_path / f"{i}.zarr")
    assert len({model_fingerprint(tmp_path / f"{i}.zarr") for i in range(len(models))}) == len(models)


def test_a_file_or_a_foreign_folder_is_never_replaced(tmp_path: Path) -> None:
    model = CellPCA(1, cell_shape=4).fit(samples((5, 8, 8)))
    (tmp_path / "file").write_text("precious")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "notes").write_text("precious")
    for name in ("file", "folder"):
        with pytest.raises(StoreError, match="output"):
            model.save(tmp_path / name, overwrite=True)
    assert (tmp_path / "file").read_text() == (tmp_path / "folder" / "notes").read_text() == "precious"


def test_nothing_in_a_model_can_run(stored: Path) -> None:
    """Numbers, JSON, and nothing else: no object of Python, no codec but the ones we write with."""
    names = {p.name for p in stored.rglob("*") if p.is_file() and not p.name.isdigit()}
    assert names == {"zarr.json", "checksums.json"}
    for path in stored.rglob("zarr.json"):
        metadata = json.loads(path.read_text())
        if metadata["node_type"] == "array":
            assert metadata["data_type"] in ("float32", "float64")
            assert "pickle" not in path.read_text()
    group = zarr.open_group(str(stored), mode="r")  # plain zarr reads it
    assert sorted(group.array_keys()) == ["components", "explained_variance", "mean", "total_variance"]
    assert group["components"].metadata.dimension_names == ("component", "y", "x", "channel")


def facts(**changes: Any) -> Callable[[Path], None]:
    """State something else about the model; None takes it away."""

    def change(metadata: dict[str, Any]) -> None:
        stated = metadata["attributes"]["dpca"]
        stated.update(changes)
        for name in [name for name, value in changes.items() if value is None]:
            del stated[name]

    return lambda path: edit_metadata(path, change)


def shard_of(name: str) -> Callable[[Path], Path]:
    return lambda path: next(p for p in sorted((path / name / "c").rglob("*")) if p.is_file())


def remove_shard(name: str) -> Callable[[Path], None]:
    return lambda path: shard_of(name)(path).unlink()


def empty_shard(path: Path) -> None:
    shard_of("components")(path).write_bytes(b"")


def cut_shard(path: Path) -> None:
    shard = shard_of("mean")(path)
    shard.write_bytes(shard.read_bytes()[:-9])


def flip_bit(path: Path) -> None:
    shard = shard_of("explained_variance")(path)
    content = bytearray(shard.read_bytes())
    content[3] ^= 64
    shard.write_bytes(bytes(content))


def integer_components(path: Path) -> None:
    shutil.rmtree(path / "components")
    group = zarr.open_group(str(path), mode="r+")
    whole = Layout((3, 8, 9, 3), (3, 8, 9, 3))
    write_shard(
        create_array(group, "components", whole.chunks, np.int64, whole, "abcd"), 0, np.ones(whole.chunks, np.int64)
    )
    write_manifest(path)


DAMAGE: dict[str, tuple[Callable[[Path], Any], str]] = {
    "gone": (shutil.rmtree, "no model at"),
    "no metadata": (lambda path: (path / "zarr.json").unlink(), "no model at"),
    "torn metadata": (lambda path: (path / "zarr.json").write_text('{"zarr_format": 3, "no'), "no model at"),
    "metadata of another kind": (lambda path: (path / "zarr.json").write_text("[]"), "no model at"),
    "another zarr version": (lambda path: edit_metadata(path, lambda m: m.update(zarr_format=4)), "no model at"),
    "a stack": (facts(kind="stack"), "is a stack store, not a model"),
    "somebody's group": (lambda path: zarr.open_group(str(path), mode="w"), "is a foreign store, not a model"),
    "newer": (facts(version=4), "version 4.* update"),
    "no version": (facts(version=None), "has version None"),
    "no fingerprint": (facts(fingerprint=None), "damaged.*fingerprint"),
    "no cells": (facts(cell_shape=None), "damaged"),
    "impossible cells": (facts(cell_shape=[0, 4]), "damaged"),
    "other cells": (facts(cell_shape=[3, 3]), "damaged"),
    "other components": (facts(n_components=4), "damaged.*components"),
    "words for numbers": (facts(n_samples_seen="many"), "damaged"),
    "no samples": (facts(n_samples_seen=0), "damaged"),
    "another sample shape": (facts(sample_shape=[9, 8, 3]), "damaged"),
    "no mean": (lambda path: shutil.rmtree(path / "mean"), "damaged.*mean"),
    "integer components": (integer_components, "damaged.*components"),
    "a missing shard": (remove_shard("components"), "damaged.*components"),
    "another missing shard": (remove_shard("mean"), "damaged.*mean"),
    "an empty shard": (empty_shard, "damaged.*components"),
    "a torn shard": (cut_shard, "damaged.*mean"),
    "a flipped bit": (flip_bit, "damaged.*explained_variance"),
}


@pytest.mark.parametrize(("damage", "says"), DAMAGE.values(), ids=DAMAGE)
def test_a_model_that_is_none(damage: Callable[[Path], Any], says: str, stored: Path) -> None:
    damage(stored)
    with pytest.raises(StoreError, match=says) as refusal:
        CellPCA.load(stored)
    assert str(stored) in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_what_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("hello")
    os.mkfifo(tmp_path / "pipe")
    for name in ("file", "nothing", "file/inside"):
        with pytest.raises(StoreError, match="unreadable"):
            CellPCA.load(tmp_path / name)
