"""Damage of every kind to finished stores, drawn at random, and every public way of reading them.

A way of reading must give what it gave before, or say no in a sentence; `storage.verify` must name the file.
"""

from __future__ import annotations

import importlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

import dpca
from dpca import PCA, CellPCA, StreamingPCA
from dpca.jobs import (
    CompressionSettings,
    compress,
    find_done,
    fit_store,
    open_input,
    reconstruct_store,
    transform_store,
)
from dpca.models.stored_basis import load_any
from storage import ingest, open_stack, verify
from storage.errors import DataError, StoreError
from storage.layout import Layout
from tests.conftest import smooth_images

SHAPE = (40, 24, 20, 3)
SETTINGS = CompressionSettings(CellPCA(2, cell_shape=8))
STORES = (
    "stack.zarr",
    "floats.zarr",
    "cells.zarr",
    "streaming.zarr",
    "exact.zarr",
    "scores.zarr",
    "job.zarr",
    "job.report",
)


def small_shards(shape: Any, itemsize: int, axes: Any, cell_shape: Any = None) -> Layout:
    """Cut a stack into several shards of several chunks, however small it is."""
    return Layout((4, 12, *shape[2:]), (8, 24, *shape[2:]))


def make_stores(folder: Path, client: Any) -> None:
    """Make a store of every kind in ``a``, and others of the same shapes in ``b``."""
    score_write: Any = importlib.import_module("dpca.jobs.score_write")
    ingesting: Any = importlib.import_module("storage.ingest")
    with (
        patch.object(score_write, "choose_layout", small_shards),
        patch.object(ingesting, "choose_layout", small_shards),
    ):
        for turn, name in enumerate("ab"):
            images = smooth_images(SHAPE[0], SHAPE[1:], seed=turn)
            np.savez(folder / f"{name}.npz", images=images, labels=np.arange(SHAPE[0]) % 7 + turn)
            np.save(folder / f"{name}-floats.npy", images.astype(np.float32) / 255)
            here = folder / name
            here.mkdir()
            stack = ingest(folder / f"{name}.npz", here / "stack.zarr", threads=1)
            ingest(folder / f"{name}-floats.npy", here / "floats.zarr", threads=1)
            fit_store(stack, here / "cells.zarr", CellPCA(3, cell_shape=8))
            StreamingPCA(3, random_state=0).fit(stack).save(here / "streaming.zarr")
            PCA(3).fit(stack).save(here / "exact.zarr")
            transform_store(stack, here / "cells.zarr", here / "scores.zarr", reconstruct=True)
            compress(folder / f"{name}.npz", here / "job.zarr", SETTINGS, client=client)


# -- how it is damaged


def draw_damage(store: Path, other: Path, rng: np.random.Generator) -> tuple[str, tuple[str, ...]]:
    """Damage a copy of a store in one way; return what was done and the files of which one must be named.

    ``other`` is a whole store of the same kind and shapes.
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
    while True:
        name, way = str(rng.choice(files)), ways[rng.integers(len(ways))]
        before = {p: (store / p).read_bytes() for p in files}
        named = way(store, other, name, files, rng)
        if named and any(not _same(store / p, content) for p, content in before.items()):
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
    # With another store's manifest, it is all the other files that are not those that were written.
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
    places = list(json_places(document))
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


# -- how it is read

Way = Callable[[Path, Path], Any]


def _stack_parts(path: Path) -> list[Any]:
    stack = open_stack(path)
    facts = [
        stack.axes,
        stack.data_range,
        stack.shape,
        stack.dtype.name,
        stack.source,
        stack.fingerprint,
        stack.rejected,
    ]
    return [*facts, stack.samples[...], stack.samples[3], stack.samples[:, 5:9], stack.names, stack.labels]


def _lazy(lazy: Any, client: Any = None) -> np.ndarray:
    return np.asarray(lazy.compute(scheduler="synchronous") if client is None else client.compute(lazy).result())


def _again(store: Path) -> list[Any]:
    parts = _stack_parts(store)
    return [part for i, part in enumerate(parts) if i not in (4, 5)]  # not the source's name and fingerprint


def _stack_ways(store: str, whole: Path) -> dict[str, Way]:
    models = {name: load_any(whole / f"{name}.zarr") for name in ("cells", "streaming", "exact")}
    return {
        "open_stack": lambda here, out: _stack_parts(here / store),
        "ingest": lambda here, out: _again(ingest(here / store, out / "again.zarr", threads=1).path),
        "ingest the array": lambda here, out: ingest(here / store / "samples", out / "c.zarr", threads=1).samples[...],
        "fit cells": lambda here, out: CellPCA(2, cell_shape=12).fit(here / store).components_,
        "fit whole": lambda here, out: StreamingPCA(2, random_state=0).fit(here / store / "samples").components_,
        "fit array": lambda here, out: PCA(2).fit(open_stack(here / store)).components_,
        "transform": lambda here, out: _lazy(models["cells"].transform(here / store)),
        "transform zarr": lambda here, out: _lazy(models["streaming"].transform(open_stack(here / store).samples)),
        "outliers": lambda here, out: _lazy(models["exact"].score_samples(open_stack(here / store))[2:9]),
        "transform_store": lambda here, out: _scores_of(here / store, whole / "cells.zarr", out / "scores.zarr"),
    }


def _scores_of(stack: Path, model: Path, target: Path) -> list[Any]:
    transform_store(open_stack(stack), model, target)
    return _scores_parts(target, model)


def _scores_parts(path: Path, model: Path | None = None) -> list[Any]:
    scores = dpca.open_scores(path, model=model)
    return [
        _lazy(scores.scores),
        _lazy(scores.stack()),
        _lazy(scores.stack(1)[3:5]),
        scores.n_components,
        scores.pixels,
    ]


def _rebuilt(model: Path, scores: Path, out: Path, k: int | None = None) -> list[Any]:
    reconstruct_store(model, scores, out / "rebuilt.zarr", n_components=k)
    return _again(out / "rebuilt.zarr")


def _job_ways(whole: Path) -> dict[str, Way]:
    source = open_input(whole.parent / "a.npz")

    def known(here: Path, out: Path) -> Any:
        found = find_done(source, here / "job.zarr", SETTINGS)
        # What the stages took is not known any more where a report is made again.
        return None if found is None else {k: v for k, v in found.report.items() if k not in ("stages", "notes")}

    return {
        "open_scores": lambda here, out: _scores_parts(here / "job.zarr"),
        "inner stack": lambda here, out: _stack_parts(here / "job.zarr" / "stack"),
        "inner model": lambda here, out: _model_parts(here / "job.zarr" / "model"),
        "find_done": known,
    }


def _model_parts(path: Path) -> list[Any]:
    model = load_any(path)
    return [model.components_, model.mean_, model.explained_variance_, model.n_samples_seen_, model.get_params()]


def _model_ways(store: str, whole: Path) -> dict[str, Way]:
    x = smooth_images(5, SHAPE[1:], seed=7)
    return {
        "load": lambda here, out: _model_parts(here / store),
        "transform_store": lambda here, out: _scores_of(whole / "stack.zarr", here / store, out / "s.zarr"),
        "transform": lambda here, out: load_any(here / store).transform(x),
    }


def all_ways(whole: Path) -> dict[str, dict[str, Way]]:
    """Return every public way of reading each of the stores in a folder."""
    cells = load_any(whole / "cells.zarr")
    report = {"find_done": _job_ways(whole)["find_done"]}
    return {
        "stack.zarr": _stack_ways("stack.zarr", whole),
        "floats.zarr": _stack_ways("floats.zarr", whole),
        "cells.zarr": {
            **_model_ways("cells.zarr", whole),
            "open_scores": lambda here, out: _scores_parts(whole / "scores.zarr", here / "cells.zarr"),
            "reconstruct": lambda here, out: _rebuilt(here / "cells.zarr", whole / "scores.zarr", out),
        },
        "streaming.zarr": _model_ways("streaming.zarr", whole),
        "exact.zarr": _model_ways("exact.zarr", whole),
        "scores.zarr": {
            "open_scores": lambda here, out: _scores_parts(here / "scores.zarr", whole / "cells.zarr"),
            "reconstruct": lambda here, out: _rebuilt(whole / "cells.zarr", here / "scores.zarr", out),
            "reconstruct 1": lambda here, out: _rebuilt(whole / "cells.zarr", here / "scores.zarr", out, 1),
            "inverse_transform": lambda here, out: _lazy(cells.inverse_transform(here / "scores.zarr" / "scores")),
            "rebuilt images": lambda here, out: open_stack(here / "scores.zarr" / "reconstructions").samples[...],
        },
        "job.zarr": _job_ways(whole),
        "job.report": report,
    }


class Trial:
    """Damages of stores, one after the other, each on a fresh copy.

    Parameters
    ----------
    folder : Path
        Where `make_stores` made them.
    scratch : Path
        For the damaged copies.
    """

    def __init__(self, folder: Path, scratch: Path) -> None:
        self.whole, self.other, self.scratch = folder / "a", folder / "b", scratch
        self.ways = all_ways(self.whole)
        self.expected = {
            store: {way: self._read(read, self.whole) for way, read in ways.items()}
            for store, ways in self.ways.items()
        }

    def run(self, store: str, rng: np.random.Generator) -> list[str]:
        """Damage a store once; return what went wrong about it, which should be nothing."""
        here = self.scratch / "here"
        shutil.rmtree(self.scratch, ignore_errors=True)
        here.mkdir(parents=True)
        for name in {store, "job.zarr", "job.report"} if store.startswith("job") else {store}:
            shutil.copytree(self.whole / name, here / name)
        done, named = draw_damage(here / store, self.other / store, rng)
        return [f"{store}: {done}: {wrong}" for wrong in self._judge(here, store, named)]

    def _judge(self, here: Path, store: str, named: tuple[str, ...]) -> Iterator[str]:
        try:
            problems = verify(here / store)
        except (DataError, StoreError) as error:
            problems = [str(error)]
        if not any(name in problem for problem in problems for name in named):
            yield f"verify does not name it: {problems}"
        for way, read in self.ways[store].items():
            found, expected = self._read(read, here), self.expected[store][way]
            if isinstance(found, Exception):
                if not isinstance(found, DataError | StoreError):
                    yield f"{way} raises {found!r}"
                elif "\n" in str(found):
                    yield f"{way} raises several lines: {found}"
            elif not _equal(found, expected):
                yield f"{way} gives other values in silence"

    def _read(self, read: Way, here: Path) -> Any:
        out = self.scratch / "out"
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir(parents=True)
        try:
            return read(here, out)
        except Exception as error:
            return error


def _equal(found: Any, expected: Any) -> bool:
    if isinstance(found, list | tuple) and not hasattr(found, "_fields"):
        return len(found) == len(expected) and all(map(_equal, found, expected))
    if isinstance(found, np.ndarray):
        return found.dtype == expected.dtype and np.array_equal(found, expected)
    return bool(found == expected)
