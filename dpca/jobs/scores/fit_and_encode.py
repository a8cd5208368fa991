"""The fit of the main job, with the cells and the number of components that a goal takes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from sklearn.base import clone

from dpca.codec.goal import Goal
from dpca.engine.folds.plan import PlanError
from dpca.engine.sources.source import as_source
from dpca.jobs.base.stages import NOTHING, StageCost, StageRecord, stopwatch
from dpca.jobs.compressed.cell_choice import choose_cells
from dpca.jobs.compressed.cell_trial import components_of_each
from dpca.jobs.compressed.encode import fill_codes
from dpca.jobs.models.fit import FitResult, fit_store
from dpca.models.cells.rank import UnmetError
from dpca.storage.remote.memory import peak_resident_bytes
from dpca.storage.remote.objects import Place
from dpca.storage.remote.tasks import one_blas_thread
from dpca.storage.run import Run
from dpca.storage.stack import Stack
from dpca.storage.transaction.workspace import Workspace


def fit_recorded(
    model: Any,
    stack: Stack,
    path: Place,
    record: StageRecord,
    run: Run,
    before: StageCost = NOTHING,
) -> FitResult:
    """Fit a model, store it, and record its cost together with that of earlier fits."""
    run.say(
        f"fit {model.fit_description(stack.axes[1:])} to {stack.n_samples:,} samples of "
        f"{' x '.join(map(str, stack.sample_shape))} {stack.dtype}"
    )
    fitted = fit_store(stack, path, clone(model), run=run)
    if fitted.cost is not NOTHING:
        how = fitted.model.fit_report_.note
        record.keep("fit", fitted.cost + before, fitted.notes, {"how": how} if how else None)
    for note in record.notes("fit"):
        run.say(f"note: {note}")
    return fitted


def fit_and_encode(
    model: Any,
    stack: Stack,
    work: Workspace,
    goal: Goal,
    record: StageRecord,
    run: Run,
    facts: Mapping[str, Any],
) -> Place:
    """Write a compressed store with as many components as its goal takes; return the path of the model."""
    # The compressed store holds its own quantized components, so the model is temporary.
    path, spent = work.scratch / "model", NOTHING
    while True:
        fitted = fit_recorded(model, stack, path, record, run, spent)
        spent += fitted.cost
        run.say(f"encode with {goal.name} {goal.value:g}")
        stated = {**facts, **reached_target(fitted.model)}
        try:
            cost = fill_codes(stack, path, work, goal, facts=stated, run=run)
            break
        except UnmetError as error:
            if (more := _wider(model, stack, error)) is None:
                raise
            run.say(f"note: {error.computed} components of a cell do not reach the goal: fit up to {more}")
            model = clone(model).set_params(**components_of_each(more))
            path = work.scratch / f"model-{more}"
    record.keep("encode", cost)
    return path


def model_with_chosen_cells(
    model: Any,
    stack: Stack,
    goal: Goal,
    work: Workspace,
    record: StageRecord,
    run: Run,
) -> Any:
    """Return an unfitted copy of a model, with the cells that take the fewest bytes."""

    def fits(parameters: Mapping[str, Any]) -> bool:
        try:
            clone(model).set_params(**parameters).plan_fit(as_source(stack), stack.axes[1:], run)
        except PlanError:
            return False
        return True

    if (chosen := record.facts("choose cells")) is None:
        cost = stopwatch()
        with one_blas_thread():  # products of cells are too small for several threads
            choice = choose_cells(stack, model, goal, fits, run=run, kept=work)
        chosen = {"parameters": choice.parameters, "tried": choice.tried}
        record.keep("choose cells", cost(choice.read_bytes, peak_resident_bytes()), choice.words, chosen)
    for note in record.notes("choose cells"):
        run.say(f"note: {note}")
    return clone(model).set_params(**chosen["parameters"])


def reached_target(model: Any) -> dict[str, Any]:
    """Return what the store and the report state about a target of the fit, if there was one."""
    return {"target": reached} if (reached := model.target_numbers()) else {}


def _wider(model: Any, stack: Stack, unmet: UnmetError) -> int | None:
    """Return how many components of each cell to fit after some cells missed a goal, None if there are no more."""
    if unmet.computed is None:
        return None
    cell = model.cell_shape_for(stack.axes[1:])
    most = math.prod((*cell, *stack.sample_shape[len(cell) :]))
    more = min(2 * unmet.computed, most if model.shared else min(most, stack.n_samples))
    return more if more > unmet.computed else None
