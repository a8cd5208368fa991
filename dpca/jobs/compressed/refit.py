"""Fit and encode all samples of a compressed store again, together with new ones that its components do not suit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dpca.choices import INFINITE
from dpca.codec.goal import Goal
from dpca.engine.sources.tiled import TiledStack
from dpca.jobs.base.stages import StageCost, StageRecord
from dpca.jobs.compressed.encode import fill_codes
from dpca.jobs.compressed.encode_tiles import divided_as
from dpca.jobs.compressed.verify_quality import verify_quality
from dpca.jobs.models.fit import fit_store
from dpca.models.cells.cell_pca import CellPCA
from dpca.report.record import report_folder
from dpca.representation.compressed.compressed import Compressed
from dpca.storage.errors import DataError
from dpca.storage.ingest import ingest
from dpca.storage.readers.arrays.zarr_array import ZarrReader
from dpca.storage.readers.several import SeveralReader
from dpca.storage.run import Run
from dpca.storage.stack import Stack
from dpca.storage.survey import ReadOptions
from dpca.storage.transaction.workspace import Workspace

# Number of samples that are compared to find out whether a store was made from a stack.
_TRIED = 20
# Factor for the number of components of a cell, which suffices for samples of a new kind.
_MORE = 2


def check_original(before: Compressed, original: Stack) -> None:
    """Reject a stack that a store was not made from. Some samples are decoded and compared.

    Raises
    ------
    DataError
    """
    if problems := verify_quality(before.path, original, sample=_TRIED):
        raise DataError(f"'{before.path}' was not made from '{original.path}' ({problems[0]}): give its original stack")


def refit(
    before: Compressed,
    original: Stack,
    new: Stack,
    work: Workspace,
    facts: Mapping[str, Any],
    report: Mapping[str, Any],
    paths: Sequence[str],
    run: Run,
) -> StageCost:
    """Fit and encode all samples with the goal and the cells of a store; replace the content of a workspace.

    Parameters
    ----------
    before : Compressed
        The store before the append.
    original, new : Stack
        The stack that it was made from, and the appended samples.
    work : Workspace
    facts : mapping
        Further facts for the store to state.
    report : mapping
        Numbers of the report that is written again; empty if there is none.
    paths : sequence of str
        Input files of the new samples.
    run : Run
        As for `dpca.jobs.encode_store`, but nothing is replaced.

    Returns
    -------
    StageCost
        Cost of the encoding.
    """
    folder, record = work.scratch / "again", StageRecord(work)
    grid, goal = before.codec.components.grid, before.facts["goal"]
    name = " and ".join(str(stack.source.get("name", "a stack")) for stack in (original, new))
    both = SeveralReader([ZarrReader(stack.path) for stack in (original, new)], name)
    both.paths = (original.path, *paths)
    both.names = [*original.names.tolist(), *new.names.tolist()]
    known = tuple(before.facts["data_range"])
    reading = ReadOptions(data_range=known, gaps=before.has_gaps, infinite=before.has_infinities)
    stack = ingest(both, folder / "stack", cell_shape=grid.cell_shape, reading=reading, run=run)
    divided = divided_as(before, stack)
    model = _model_like(before)
    if before.has_gaps:
        tiled = isinstance(divided, TiledStack)
        marks = {"missing_value": INFINITE} if before.has_infinities else {}
        model.set_params(**({"gaps": "reject", "shared": True} if tiled else {"gaps": "iterate", **marks}))
    fitted = fit_store(divided, folder / "model", model, run=run)
    record.keep("fit", fitted.cost, report.get("notes", ()))
    kept_facts = {name: value for name, value in before.facts.items() if name in ("job", "settings")}
    noise = before.codec.noise
    wanted = Goal(**goal, sigma=None if noise is None else np.sqrt(noise.variance))
    cost = fill_codes(divided, folder / "model", work, wanted, facts={**kept_facts, **facts}, run=run)
    if report:
        from dpca.jobs.scores.report import write_job_report  # matplotlib takes a second to import

        record.keep("encode", cost)
        where = report_folder(before.path)
        write_job_report(both, stack, work.store, folder / "model", where, record, ssim=True, parts=())
    return cost


def _model_like(before: Compressed) -> CellPCA:
    """Return a model with the settings that a store states, or one with its cells and more components in each."""
    if (asked := before.facts.get("settings", {}).get("model")) is not None:
        given: dict[str, Any] = {name: tuple(one) if isinstance(one, list) else one for name, one in asked.items()}
        return CellPCA(**given)
    components = before.codec.components
    grid, rows = components.grid, components.rows
    return CellPCA(
        min(_MORE * max(1, *map(len, rows)), grid.max_features),
        cell_shape=tuple(grid.cell_shape),
        overlap=int(before.facts["overlap"]),
        shared=len(rows) < grid.n_parts,
        random_state=0,
    )
