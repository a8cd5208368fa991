"""Every public way of reading finished stores, applied to damaged stores.

Each way must return the same values as before, or raise an error; `dpca.storage.verify` must report the file.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import xarray
import zarr

import dpca
from dpca import PCA, CellPCA, StreamingPCA, analysis
from dpca.jobs import find_done, open_input, reconstruct_store, transform_store
from dpca.jobs.compressed.verify_quality import verify_quality
from dpca.models.base.store import load_any
from dpca.storage import ingest, open_stack, verify
from dpca.storage.errors import DataError, StoreError
from dpca.storage.run import Run
from tests.conftest import smooth_images
from tests.trust.damage import SETTINGS, SHAPE, draw_damage

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
        "ingest": lambda here, out: _again(ingest(here / store, out / "again.zarr", run=Run(threads=1)).path),
        "ingest the array": lambda here, out: ingest(
            here / store / "samples", out / "c.zarr", run=Run(threads=1)
        ).samples[...],
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
        # What only the run knew is not known any more where a report is made again.
        forgotten = ("stages", "notes", "fitted_by")
        return None if found is None else {k: v for k, v in found.report.items() if k not in forgotten}

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
        "compressed.zarr": {
            **_compressed_ways("compressed.zarr"),
            "analysis": lambda here, out: _analyzed(dpca.open_compressed(here / "compressed.zarr")),
        },
        "waves.zarr": _compressed_ways("waves.zarr"),
        "rough.zarr": _compressed_ways("rough.zarr"),
    }


def _compressed_ways(name: str) -> dict[str, Way]:
    return {
        "open_compressed": lambda here, out: _decoded(here / name),
        "a preview": lambda here, out: dpca.open_compressed(here / name, level=1)[...],
        "lazily": lambda here, out: _lazy(dpca.open_compressed(here / name).dask()[3:19]),
        "what is promised": lambda here, out: verify_quality(str(here / name), None),
        "as Zarr": lambda here, out: zarr.open_array(f"dpca::{here / name}", mode="r")[2:30],
        "with xarray": lambda here, out: _labelled(f"dpca::{here / name}"),
    }


def _decoded(path: Path) -> list[Any]:
    store = dpca.open_compressed(path)
    told = [store.axes, store.shape, store.dtype.name, store.facts.get("max_error"), store.names.tolist()]
    return [*told, *store.quality.values(), store[...], store[17], store[:, 5:9]]


def _labelled(url: str) -> list[Any]:
    found = xarray.open_zarr(url)
    return [part for name in sorted(found.variables) for part in (name, found[name].dims, found[name].values)]


def _analyzed(store: Any) -> list[Any]:
    some = [analysis.mean(store), analysis.gram(store)]
    return [*some, *analysis.nearest(store, 3, 2), _lazy(analysis.thumbnails(store, (2, 2)))]


class Trial:
    """Damages fresh copies of stores, one after the other.

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
        self.used: dict[str, set[str]] = {store: set() for store in self.ways}
        self.expected = {
            store: {way: self._read(read, self.whole) for way, read in ways.items()}
            for store, ways in self.ways.items()
        }

    def run(self, store: str, rng: np.random.Generator) -> list[str]:
        """Damage a store once; return the faults, which should be none."""
        here = self.scratch / "here"
        shutil.rmtree(self.scratch, ignore_errors=True)
        here.mkdir(parents=True)
        for name in {store, "job.zarr", "job.report"} if store.startswith("job") else {store}:
            shutil.copytree(self.whole / name, here / name)
        done, named = draw_damage(here / store, self.other / store, rng, self.used[store])
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
