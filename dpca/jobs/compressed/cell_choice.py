"""Choose the cells of a compressed store: own, shared or whole, with or without overlap, by the bytes of the store.

Components are fitted to most of a few hundred samples. The others measure how many bytes the goal takes. The store
holds each component once but scores of every sample. So cells with their own components are best if many samples show
one scene, and shared components are best if every sample is another picture.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from dpca.codec.goal import Goal
from dpca.engine.sources.tiled import TiledStack
from dpca.jobs.compressed.cell_trial import CellTrial, components_of_each
from dpca.models.cells.cell_pca import CellPCA
from dpca.storage.run import Run
from dpca.storage.stack import Stack
from dpca.storage.transaction.markers import DoneMarkers

# From this many axes of space, cells are half as long, so that they hold about as many values as cells of images.
_MANY_AXES = 3


@dataclass(frozen=True)
class CellChoice:
    """The cells that take the fewest bytes.

    Attributes
    ----------
    parameters : dict
        Parameters of a `CellPCA`, JSON-able.
    words : list of str
        Why these, in sentences for the report.
    tried : list of dict
        The cells that were tried, and their bytes: None if they missed the goal.
    read_bytes : int
        Bytes of the samples that were read.
    """

    parameters: dict[str, Any]
    words: list[str]
    tried: list[dict[str, Any]]
    read_bytes: int


def cells_tried(model: CellPCA, sample_shape: Sequence[int], axes: Sequence[str]) -> list[dict[str, Any]]:
    """Return parameters of the cells to try first: shared with overlap, each with its own components, and one cell.

    Parameters
    ----------
    model : CellPCA
        Gives the largest length and the overlap of cells.
    sample_shape, axes
        Of a sample. Cells are no longer than the sample. In volumes they are half as long as in images.
    """
    lengths, overlap = model.cell_shape_for(axes), model.overlap
    if len(lengths) >= _MANY_AXES:
        lengths, overlap = tuple(max(1, length // 2) for length in lengths), overlap // 2
    spatial = tuple(map(int, sample_shape[: len(lengths)]))
    cell = tuple(map(min, lengths, spatial))
    overlap = min(overlap, max(cell) // 2)
    shared = {"cell_shape": list(cell), "overlap": overlap if overlap > 1 and cell != spatial else 0, "shared": True}
    own = {"cell_shape": list(cell), "overlap": 0, "shared": False}
    whole = {"cell_shape": list(spatial), "overlap": 0, "shared": False}
    return [whole] if cell == spatial else [shared, whole, own]


def choose_cells(
    stack: Stack,
    model: CellPCA,
    goal: Goal,
    fits: Callable[[Mapping[str, Any]], bool] = lambda parameters: True,
    *,
    run: Run = Run(),
    kept: DoneMarkers | None = None,
) -> CellChoice:
    """Return the cells with the smallest store at equal error.

    Parameters
    ----------
    stack : Stack
    model : CellPCA
        Not fitted; as for `cells_tried`.
    goal : Goal
    fits : callable, optional
        Returns whether the memory suffices to fit the whole stack with given parameters. The first cells are tried in
        any case.
    run : Run, optional
        Only its progress is used.
    kept : DoneMarkers, optional
        Keeps the cost of each kind of cells, for a run that resumes this one.

    Raises
    ------
    DataError
        If the stack states no data range.

    Notes
    -----
    Reads at least 48 samples and at most 576, within these limits 128 MiB. Up to four kinds of cells are fitted to most
    of them. The first ones are encoded until they meet the goal. The bytes of the others are estimated from their
    scores, with the same squared error. For components that are not shared the estimate is too low, so they are encoded
    once if it is the lowest. If some cells show that it is clearly not the lowest, the others are not fitted.
    Components of whole samples are not fitted to all values if they clearly miss the goal in some of them. Another
    thread fits the second kind of shared cells, and these parts, while this one encodes the first kind. For n
    samples of d values, cells of c values and k components this takes O(n d (c + k)) time. Memory holds the samples, up
    to 128 MiB for a row of cells in floating point, and 2^23 values of components. If the stack has no more samples,
    all are fitted, and some are measured.
    """
    first = cells_tried(model, stack.sample_shape, stack.axes[1:])
    with (
        ThreadPoolExecutor(1) as beside,
        closing(run.progress("choose cells", len(first) + 1, "kinds of cells")) as stage,
        closing(CellTrial(stack, goal, kept, beside)) as trial,
    ):
        if isinstance(stack, TiledStack):
            # A cell at the same place of every tile shows something else in each, so its own components would be
            # useless.
            without = {**first[0], "overlap": 0}
            first = [first[0], *([without] if without != first[0] else [])]
        first = [first[0], *(cells for cells in first[1:] if fits(cells | trial.most_components(cells)))]
        if first[0]["overlap"] and first[1:] and not trial.is_kept(first[0]):
            trial.begin({**first[0], "overlap": 0})  # most photographs need it
            for parameters in first[1:]:
                trial.begin(parameters)
        tried: list[tuple[dict[str, Any], float, int]] = []

        def attempt(parameters: dict[str, Any]) -> None:
            tried.append((parameters, *trial.cost(parameters)))
            stage.advance(1)

        for parameters in first:
            attempt(parameters)
        if len(first) > 1 and not isinstance(stack, TiledStack):
            # The better one of shared and own cells is tried again, with an overlap if it had none and without
            # otherwise.
            small = [one for one in tried if one[0]["cell_shape"] == first[0]["cell_shape"]]
            better = min(small, key=lambda one: one[1])[0]
            other = {**better, "overlap": 0 if better["overlap"] else first[0]["overlap"]}
            if other not in first and fits(other | trial.most_components(other)):
                attempt(other)
    chosen, cost, rank = min(tried, key=lambda one: one[1])
    costs = [parameters | {"bytes": None if math.isinf(spent) else round(spent)} for parameters, spent, _ in tried]
    if math.isinf(cost):
        words = [f"no kind of cells reaches {goal.words} on some samples"]
        return CellChoice(first[0], words, costs, trial.read_bytes)
    words = reasons(chosen, cost, [one[:2] for one in tried], goal, list(stack.sample_shape))
    return CellChoice(chosen | components_of_each(rank), words, costs, trial.read_bytes)


def reasons(
    chosen: dict[str, Any], cost: float, tried: Sequence[tuple[dict[str, Any], float]], goal: Goal, shape: Sequence[int]
) -> list[str]:
    """Return why cells were chosen: by their size, and what whole samples would have taken."""
    found = []
    if len(tried) > 1:
        found.append(f"the smallest store of {len(tried)} kinds that were tried has {cells_in_words(chosen)}")
    for parameters, spent in tried:
        if parameters is not chosen and parameters["cell_shape"] == list(shape[: len(parameters["cell_shape"])]):
            takes = f"would make it about {spent / cost:,.{0 if spent > 10 * cost else 1}f} times larger"
            found.append(f"components of whole samples {f'cannot reach {goal.words}' if math.isinf(spent) else takes}")
    return found


def cells_in_words(parameters: Mapping[str, Any]) -> str:
    """Describe the cells of a `CellPCA` with these parameters."""
    shape = " x ".join(map(str, parameters["cell_shape"]))
    overlap = f", overlap {parameters['overlap']}" if parameters["overlap"] else ""
    return f"cells of {shape}{overlap}, {'shared' if parameters['shared'] else 'own'} components"
