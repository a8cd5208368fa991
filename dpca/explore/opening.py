"""Opens stores of any kind for the page."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np
import zarr

from dpca.choices import COMPRESSED
from dpca.explore.explorer import Explorer
from dpca.explore.originals import SampleNames, StackOriginals
from dpca.explore.pictures import SourceFacts
from dpca.explore.sources import ReaderOriginals, names_of
from dpca.storage.arrays.coordinates import BESIDE, CHANNEL_COLOR, coordinates_in
from dpca.storage.arrays.reading import array_in, group_in, open_node, root_facts
from dpca.storage.errors import DataError, StoreError
from dpca.storage.input import open_input
from dpca.storage.readers import Reader
from dpca.storage.readers.opening import is_pattern, is_zarr
from dpca.storage.stack import STACK_KINDS, Stack
from dpca.storage.survey import ReadOptions, survey


@dataclass
class Opened:
    """An open store. Its model is loaded later, because that needs imports of seconds.

    Attributes
    ----------
    explorer : Explorer
    load : callable or None
        Loads the model; None for a stack without a model, to which one can be fitted.
    watched : str or None
        Path of the model, which another program may replace.
    """

    explorer: Explorer
    load: Callable[[], None] | None
    watched: str | None


def open_explorer(
    path: str | Sequence[str],
    *,
    stack: str | None = None,
    model: str | None = None,
    key: str | None = None,
    axes: tuple[str, ...] | None = None,
    reading: ReadOptions = ReadOptions(),
) -> Opened:
    """Open photographs, an array, a stack, a model, scores or a compressed store for the page.

    Parameters
    ----------
    path : str or sequence of str
        A store, or any source of `dpca.storage.ingest`.
    stack : str, optional
        Samples of a model, of scores or of a compressed store: a stack, or any such source.
    model : str, optional
        Model of a stack or of scores; the default is the one inside the scores' store.
    key, axes, reading
        How samples are read, as for `dpca.storage.ingest`. Samples that are not valid are reported when they are
        shown.

    Returns
    -------
    Opened
        Only metadata and a few samples are read.

    Raises
    ------
    DataError, StoreError
        If a store is missing, damaged, empty or of another kind, or if stores do not belong together.
    """
    paths = [path] if isinstance(path, str) else list(path)
    node = open_node(paths[0]) if len(paths) == 1 and not is_pattern(paths[0]) and is_zarr(paths[0]) else None
    facts = root_facts(node) if isinstance(node, zarr.Group) else {}
    kind = str(facts.get("kind") or "")

    def explorer_of(given: Sequence[str]) -> Explorer:
        return _explorer_of(open_input(given, key=key, axes=axes, data_range=reading.data_range), reading)

    if kind in STACK_KINDS:
        explorer = explorer_of(paths)
        if stack is not None:
            raise DataError(f"'{paths[0]}' is already a stack: leave out --stack, or give it with another store")
        return Opened(explorer, None if model is None else partial(_load_model, explorer, model), model)
    beside = None if stack is None else explorer_of([stack])
    where = paths[0]
    if kind != COMPRESSED and not kind.endswith("scores"):
        if model is not None:
            raise DataError(f"'{where}' is a {kind} store, not a stack: leave out --model, or give a stack")
        explorer = beside or Explorer(None, None, SampleNames(None, 0))
        return Opened(explorer, partial(_load_model, explorer, where), where)
    assert isinstance(node, zarr.Group)  # only groups state a kind
    kept = _kept(where, node, facts, kind)
    found = None if beside is None else beside.facts
    if found is not None and (kept.n_samples, kept.sample_shape) != (found.n_samples, found.sample_shape):
        raise DataError(
            f"'{where}' has {kept.n_samples:,} samples of {kept.sample_shape} and the stack '{stack}' has "
            f"{found.n_samples:,} of {found.sample_shape}: give the stack that it was made from"
        )
    names = SampleNames(array_in(node, "name") if "name" in node else None, kept.n_samples)
    explorer = Explorer(kept, None if beside is None else beside.originals, names)
    if kind == COMPRESSED:
        return Opened(explorer, partial(_load_compressed, explorer, where), None)
    return Opened(explorer, partial(_load_scores, explorer, where, model), None)


def _explorer_of(given: Stack | Reader, reading: ReadOptions) -> Explorer:
    """Return an explorer of samples without a model."""
    if isinstance(given, Stack):
        names = SampleNames(given.name_array, given.n_samples)
        facts = SourceFacts(
            given.path, given.n_samples, given.sample_shape, given.dtype, given.axes[1:], given.data_range
        )
        facts = facts.with_coordinates(given.coordinates and given.coordinates.of_one_sample())
        return Explorer(facts, StackOriginals(given), names)
    form = survey(given, replace(reading, on_error="skip"))
    facts = SourceFacts(given.name, len(given), form.sample_shape, form.dtype, form.axes[1:], form.data_range)
    facts = facts.with_coordinates(form.coordinates and form.coordinates.of_one_sample())
    return Explorer(facts, ReaderOriginals(given, form), names_of(given))


def _kept(path: str, group: zarr.Group, facts: dict[str, Any], kind: str) -> SourceFacts:
    try:
        n = facts["n_samples"] if kind == COMPRESSED else array_in(group, "scores").shape[0]
        shape, axes = tuple(map(int, facts["sample_shape"])), tuple(map(str, facts["axes"]))[1:]
        low, high = map(float, facts["data_range"])
        stated = SourceFacts(path, int(n), shape, np.dtype(facts["dtype"]), axes, (low, high))
        dims = tuple(map(str, facts.get("dims") or facts["axes"]))[1:]
    except (KeyError, TypeError, ValueError) as error:
        raise StoreError(f"'{path}' is not a complete {kind} store (no valid {error}): make it again") from error
    beside = group_in(group, BESIDE) if kind == COMPRESSED and BESIDE in group else group
    return stated.with_coordinates(coordinates_in(beside, dims, shape, {BESIDE: CHANNEL_COLOR}))


def _load_model(explorer: Explorer, model: str) -> None:
    import_module("dpca.models")  # registers every estimator
    from dpca.explore.live import describe_progress
    from dpca.jobs.models.live import is_live, read_live
    from dpca.models.base.store import load_any

    if is_live(model):
        progress = read_live(model)
        explorer.use(progress.model)
        explorer.progress = describe_progress(progress)
    else:
        explorer.use(load_any(model))
        explorer.progress = ""


def _load_scores(explorer: Explorer, path: str, model: str | None) -> None:
    from dpca.explore.decoders import OfScores
    from dpca.models import open_scores

    scores = open_scores(path, model=model)
    explorer.use(scores.model, OfScores(scores))


def _load_compressed(explorer: Explorer, path: str) -> None:
    from dpca.explore.decoders import OfCompressed
    from dpca.representation.compressed.compressed import open_compressed

    explorer.use_store(OfCompressed(open_compressed(os.fspath(path))))
