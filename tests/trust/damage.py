"""Finished stores of every kind, and damage of every kind to them, drawn at random."""

from __future__ import annotations

import importlib
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import xarray

from dpca import PCA, CellPCA, StreamingPCA
from dpca.jobs import (
    CompressionSettings,
    append_store,
    compress,
    encode_store,
    fit_store,
    transform_store,
)
from dpca.representation.compressed.compressed_form import StoreForm as CodesForm
from dpca.storage import ingest
from dpca.storage.arrays.layout import Layout
from dpca.storage.run import Run
from dpca.storage.survey import ReadOptions
from tests.conftest import smooth_images

SHAPE = (40, 24, 20, 3)
SETTINGS = CompressionSettings(CellPCA(2, cell_shape=8), keep_stack=True)
STORES = (
    "stack.zarr",
    "floats.zarr",
    "cells.zarr",
    "streaming.zarr",
    "exact.zarr",
    "scores.zarr",
    "job.zarr",
    "job.report",
    "compressed.zarr",
    "waves.zarr",
    "rough.zarr",
)
# Of days that follow each other, the maps and those that are appended.
DAYS, LATER = 40, 14


def small_shards(shape: Any, itemsize: int, axes: Any, cell_shape: Any = None, *_: Any, **__: Any) -> Layout:
    """Cut a stack into several shards of several chunks, however small it is."""
    return Layout((4, 12, *shape[2:]), (8, 24, *shape[2:]))


def make_stores(folder: Path, client: Any) -> None:
    """Make a store of every kind in ``a``, and others of the same shapes in ``b``."""
    drawing: Any = importlib.import_module("dpca.plots.drawing")
    score_write: Any = importlib.import_module("dpca.jobs.scores.score_write")
    ingesting: Any = importlib.import_module("dpca.storage.ingest")
    with (
        patch.object(score_write, "choose_layout", small_shards),
        patch.object(ingesting, "choose_layout", small_shards),
        patch.object(drawing, "DPI", 20),
        patch.object(CodesForm, "rows", 16),
        patch.object(CodesForm, "shard_rows", 16),
    ):
        for turn, name in enumerate("ab"):
            images = smooth_images(SHAPE[0], SHAPE[1:], seed=turn)
            np.savez(folder / f"{name}.npz", images=images, labels=np.arange(SHAPE[0]) % 7 + turn)
            np.save(folder / f"{name}-floats.npy", images.astype(np.float32) / 255)
            here = folder / name
            here.mkdir()
            stack = ingest(folder / f"{name}.npz", here / "stack.zarr", run=Run(threads=1))
            ingest(folder / f"{name}-floats.npy", here / "floats.zarr", run=Run(threads=1))
            fit_store(stack, here / "cells.zarr", CellPCA(3, cell_shape=8))
            StreamingPCA(3, random_state=0).fit(stack).save(here / "streaming.zarr")
            PCA(3).fit(stack).save(here / "exact.zarr")
            transform_store(stack, here / "cells.zarr", here / "scores.zarr", reconstruct=True)
            encode_store(stack, here / "cells.zarr", here / "compressed.zarr", psnr=18)
            compress(folder / f"{name}.npz", here / "job.zarr", SETTINGS, run=Run(client=client))
            _make_sequences(here, turn)


def _make_sequences(here: Path, turn: int) -> None:
    """Make a store of waves with times, to which samples were appended, and one of differences without a component."""
    t, y, x = np.meshgrid(np.arange(DAYS + LATER) + 3 * turn, np.arange(14), np.arange(12), indexing="ij")
    maps = (np.sin(y / 3 + x / 4 - t / 9) + np.sin(x / 5 - y / 3 + t / 7)).astype(np.float32)
    days = np.datetime64("2001-01-01", "ns") + np.arange(len(maps)) * np.timedelta64(1, "D")
    field = xarray.DataArray(maps, {"time": days}, ("time", "lat", "lon"), name="air")
    rough = np.random.default_rng(turn).normal(0, 4, (20, 24, 20)).cumsum(1).cumsum(2).astype(np.int16)
    surfaces = here.parent / f"{here.name}-rough.npy"
    np.save(surfaces, rough)
    stacks = {
        "waves": ingest(field[:DAYS], here / "days.zarr", reading=ReadOptions(data_range=(-2, 2)), run=Run(threads=1)),
        "rough": ingest(
            surfaces, here / "surfaces.zarr", reading=ReadOptions(data_range=(-(2**15), 2**15 - 1)), run=Run(threads=1)
        ),
    }
    for (name, stack), promise in zip(stacks.items(), (0.01, 0.5), strict=True):
        CellPCA(6, cell_shape=7, shared=True).fit(stack).save(here / f"{name}-model.zarr")
        encode_store(stack, here / f"{name}-model.zarr", here / f"{name}.zarr", max_error=promise)
    append_store(
        here / "waves.zarr",
        ingest(field[DAYS:], here / "later.zarr", reading=ReadOptions(data_range=(-2, 2)), run=Run(threads=1)),
    )


# -- damage


def draw_damage(store: Path, other: Path, rng: np.random.Generator, used: set[str]) -> tuple[str, tuple[str, ...]]:
    """Damage a copy of a store in one way; return its description, and the files of which one must be reported.

    ``other`` is a complete store of the same kind and shapes. The way is not in ``used`` and is added to it. When few
    ways are left, which may not fit the store, ``used`` is cleared.
    """
    files = sorted(p.relative_to(store).as_posix() for p in store.rglob("*") if p.is_file())
    ways = [
        _flip,
        _cut,
        _grow,
        _zero,
        _delete,
        _directory,
        _link,
        _foreign_link,
        _pipe,
        _swap,
        _from_other,
        _json,
        _array,
    ]
    if len(used) > len(ways) - 4:
        used.clear()
    left = [way for way in ways if way.__name__ not in used]
    while True:
        name, way = str(rng.choice(files)), left[rng.integers(len(left))]
        before = {p: (store / p).read_bytes() for p in files}
        named = way(store, other, name, files, rng)
        if named and any(not _same(store / p, content) for p, content in before.items()):
            used.add(way.__name__)
            return f"{way.__name__[1:]} {name}", named


def _same(path: Path, content: bytes) -> bool:
    linked = os.path.realpath(path) != os.path.join(os.path.realpath(path.anchor), *path.parts[1:])
    return not linked and path.is_file() and path.read_bytes() == content


def _flip(store: Path, other: Path, name: str, files: list[str], rng: np.random.Generator) -> tuple[str, ...]:
    content = bytearray((store / name).read_bytes())
    content[rng.integers(len(content))] ^= 1 << rng.integers(8)
    (store / name).write_bytes(content)
    return (name,)


def _cut(store: Path, other: Path, name: str, files: list[str], rng: np.random.Generator) -> tuple[str, ...]:
    content = (store / name).read_bytes()
    (store / name).write_bytes(content[: rng.integers(len(content))])
    return (name,)


def _grow(store: Path, other: Path, name: str, files: list[str], rng: np.random.Generator) -> tuple[str, ...]:
    content = (store / name).read_bytes()
    at, more = int(rng.integers(len(content) + 1)), rng.bytes(int(rng.integers(1, 40)))
    (store / name).write_bytes(content[:at] + more + content[at:])
    return (name,)


def _zero(store: Path, other: Path, name: str, files: list[str], rng: np.random.Generator) -> tuple[str, ...]:
    content = bytearray((store / name).read_bytes())
    first, last = sorted(int(i) for i in rng.integers(len(content), size=2))
    content[first : last + 1] = bytes(last + 1 - first)
    (store / name).write_bytes(content)
    return (name,)


def _delete(store: Path, other: Path, name: str, files: list[str], rng: np.random.Generator) -> tuple[str, ...]:
    (store / name).unlink()
    return (name,)


def _directory(store: Path, other: Path, name: str, files: list[str], rng: np.random.Generator) -> tuple[str, ...]:
    (store / name).unlink()
    (store / name).mkdir()
    if rng.integers(2):
        (store / name / "0").write_bytes(b"something")
    return (name,)


def _link(store: Path, other: Path, name: str, files: list[str], rng: np.random.Generator) -> tuple[str, ...]:
    (store / name).rename(store.parent / "moved")
    (store / name).symlink_to(store.parent / ("moved" if rng.integers(2) else "nowhere"))
    return (name,)


def _foreign_link(store: Path, other: Path, name: str, files: list[str], rng: np.random.Generator) -> tuple[str, ...]:
    (store / name).unlink()
    (store / name).symlink_to(other / name if rng.integers(2) else store / str(rng.choice(files)))
    return (name,)


def _pipe(store: Path, other: Path, name: str, files: list[str], rng: np.random.Generator) -> tuple[str, ...]:
    (store / name).unlink()
    os.mkfifo(store / name)
    return (name,)


def _swap(store: Path, other: Path, name: str, files: list[str], rng: np.random.Generator) -> tuple[str, ...]:
    array = name.partition("/c/")[0]
    near = [file for file in files if file.startswith(f"{array}/c/")] if rng.integers(4) else files
    if not near:
        return ()
    twin = str(rng.choice(near))
    one, two = (store / name).read_bytes(), (store / twin).read_bytes()
    (store / name).write_bytes(two)
    (store / twin).write_bytes(one)
    return name, twin


def _from_other(store: Path, other: Path, name: str, files: list[str], rng: np.random.Generator) -> tuple[str, ...]:
    if not (other / name).is_file():
        return ()
    shutil.copyfile(other / name, store / name)
    # With the manifest of another store, all other files differ from those in the manifest.
    return (name, *files) if name in ("zarr.json", "manifest.json") else (name,)


def _array(store: Path, other: Path, name: str, files: list[str], rng: np.random.Generator) -> tuple[str, ...]:
    folder = name.partition("/")[0]
    if folder == name:
        return ()
    shutil.rmtree(store / folder)
    match rng.integers(3):
        case 0:
            shutil.copytree(other / folder, store / folder)
        case 1:
            (store / folder).symlink_to(other / folder)
    return (*(file for file in files if file.startswith(f"{folder}/")), folder)


def _json(store: Path, other: Path, name: str, files: list[str], rng: np.random.Generator) -> tuple[str, ...]:
    texts = [file for file in files if file.endswith(".json")]
    name = str(rng.choice(texts))
    document = json.loads((store / name).read_text())
    if not (places := list(json_places(document))):
        return ()  # checksums of no shard
    change_value(document, places[rng.integers(len(places))], rng)
    (store / name).write_text(json.dumps(document, indent=2))
    return (name,)


def json_places(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the places of all values in a document, inner ones included."""
    if place:
        yield place
    for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield from json_places(value[key], (*place, key))


def change_value(document: Any, place: tuple[Any, ...], rng: np.random.Generator) -> None:
    """Change the value at a place, take it away, or give it another type."""
    *above, last = place
    for key in above:
        document = document[key]
    value = document[last]
    if rng.integers(4) == 0:
        del document[last]
    elif rng.integers(3) == 0:
        others: list[Any] = [None, {}, [], "", "é", 0, -1, 2**62, True, [[[[]]]]]
        document[last] = others[rng.integers(len(others))]
    elif isinstance(value, bool) or value is None:
        document[last] = not value
    elif isinstance(value, int | float):
        document[last] = [value + 1, value - 1, -value, 0, value * 10, float("inf")][rng.integers(5)]
    elif isinstance(value, str):
        at = int(rng.integers(len(value) + 1))
        document[last] = {"uint8": "int8", "float32": "int32", "float64": "int64"}.get(
            value, value[:at] + "x" + value[at + 1 :]
        )
    elif isinstance(value, list):
        document[last] = value[::-1] if rng.integers(2) else value[:-1]
    else:
        document[last] = dict(reversed(value.items())) | {"x": 1}
