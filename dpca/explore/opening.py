"""Opens stores of any kind for the page."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np
import zarr

from dpca.choices import COMPRESSED
from dpca.explore.explorer import Explorer, SourceFacts
from dpca.explore.originals import Originals, SampleNames
from dpca.storage.arrays.reading import array_in, open_node, root_facts
from dpca.storage.errors import DataError, StoreError
from dpca.storage.stack import STACK_KINDS, Stack, open_stack


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
    path: str,
    *,
    stack: str | None = None,
    model: str | None = None,
    data_range: tuple[float, float] | None = None,
) -> Opened:
    """Open a stack, a model, scores or a compressed store for the page.

    Parameters
    ----------
    path : str
    stack : str, optional
        Stack of a model, of scores or of a compressed store.
    model : str, optional
        Model of a stack or of scores; the default is the one inside the scores' store.
    data_range : tuple of float, optional
        Smallest and largest possible value, if the stack does not state them.

    Returns
    -------
    Opened
        Only metadata are read.

    Raises
    ------
    DataError, StoreError
        If a store is missing, damaged, empty or of another kind, or if stores do not belong together.
    """
    node = open_node(path)
    facts = root_facts(node) if isinstance(node, zarr.Group) else {}
    kind = str(facts.get("kind") or "")
    if kind in STACK_KINDS:
        if stack is not None:
            raise DataError(f"'{path}' is already a stack: leave out --stack, or give it with another store")
        explorer = _explorer_of(open_stack(path, data_range=data_range))
        return Opened(explorer, None if model is None else partial(_load_model, explorer, model), model)
    beside = None if stack is None else open_stack(stack, data_range=data_range)
    if kind != COMPRESSED and not kind.endswith("scores"):
        if model is not None:
            raise DataError(f"'{path}' is a {kind} store, not a stack: leave out --model, or give a stack")
        explorer = Explorer(None, None, SampleNames(None, 0)) if beside is None else _explorer_of(beside)
        return Opened(explorer, partial(_load_model, explorer, path), path)
    assert isinstance(node, zarr.Group)  # only groups state a kind
    kept = _kept(path, node, facts, kind)
    if beside is not None and (kept.n_samples, kept.sample_shape) != (beside.n_samples, beside.sample_shape):
        raise DataError(
            f"'{path}' has {kept.n_samples:,} samples of {kept.sample_shape} and the stack '{stack}' has "
            f"{beside.n_samples:,} of {beside.sample_shape}: give the stack that it was made from"
        )
    names = SampleNames(array_in(node, "name") if "name" in node else None, kept.n_samples)
    explorer = Explorer(kept, None if beside is None else Originals(beside), names)
    if kind == COMPRESSED:
        return Opened(explorer, partial(_load_compressed, explorer, path), None)
    return Opened(explorer, partial(_load_scores, explorer, path, model), None)


def _explorer_of(stack: Stack) -> Explorer:
    """Return an explorer of a stack without a model."""
    axes, names = stack.axes[1:], SampleNames(stack.name_array, stack.n_samples)
    facts = SourceFacts(stack.path, stack.n_samples, stack.sample_shape, stack.dtype, axes, stack.data_range)
    return Explorer(facts, Originals(stack), names)


def _kept(path: str, group: zarr.Group, facts: dict[str, Any], kind: str) -> SourceFacts:
    try:
        n = facts["n_samples"] if kind == COMPRESSED else array_in(group, "scores").shape[0]
        shape, axes = tuple(map(int, facts["sample_shape"])), tuple(map(str, facts["axes"]))[1:]
        low, high = map(float, facts["data_range"])
        return SourceFacts(path, int(n), shape, np.dtype(facts["dtype"]), axes, (low, high))
    except (KeyError, TypeError, ValueError) as error:
        raise StoreError(f"'{path}' is not a complete {kind} store (no valid {error}): make it again") from error


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
