"""All samples of a compressed store, and new ones, fitted and encoded again: what it had does not suit the new ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dpca.codec.goal import Goal
from dpca.jobs.encode import fill_codes
from dpca.jobs.fit import fit_store
from dpca.jobs.remeasure import remeasure
from dpca.jobs.stages import StageCost
from dpca.models.cell_pca import CellPCA
from dpca.report.record import report_folder
from dpca.representation.compressed import Compressed
from dpca.storage.errors import DataError
from dpca.storage.ingest import ingest
from dpca.storage.progress import Progress
from dpca.storage.readers.several import SeveralReader
from dpca.storage.readers.zarr_array import ZarrReader
from dpca.storage.stack import Stack
from dpca.storage.workspace import Workspace

# Samples that tell whether a stack is the one that a store was made of.
_TRIED = 20
# So many times the components that a store keeps of a cell are enough for samples of a new kind.
_MORE = 2


def check_original(before: Compressed, original: Stack) -> None:
    """Refuse a stack that a store was not made of; some samples are decoded and compared.

    Raises
    ------
    DataError
    """
    if problems := remeasure(before.path, original, sample=_TRIED):
        raise DataError(f"'{original.path}' is not what '{before.path}' was made of ({problems[0]}): give that stack")


def refit(
    before: Compressed,
    original: Stack,
    new: Stack,
    work: Workspace,
    facts: Mapping[str, Any],
    report: Mapping[str, Any],
    paths: Sequence[str],
    *,
    client: Any | None,
    progress: Progress,
) -> StageCost:
    """Fit and encode all samples in the place of what a workspace holds, with the goal and the cells of a store.

    Parameters
    ----------
    before : Compressed
        The store as it is.
    original, new : Stack
        What it was made of, and what comes behind.
    work : Workspace
    facts : mapping
        What the store is to state beside its own.
    report : mapping
        Numbers of the report that is written again; empty if there is none.
    paths : sequence of str
        Where the new samples came from.
    client, progress
        As for `dpca.jobs.encode_store`.

    Returns
    -------
    StageCost
        Of the encoding.
    """
    folder = work.scratch / "again"
    grid, goal = before.codec.components.grid, before.facts["goal"]
    name = " and ".join(str(stack.source.get("name", "a stack")) for stack in (original, new))
    both = SeveralReader([ZarrReader(stack.path) for stack in (original, new)], name)
    both.paths = (original.path, *paths)
    both.names = [*original.names.tolist(), *new.names.tolist()]
    stated = tuple(before.facts["data_range"])
    run: dict[str, Any] = {"client": client, "progress": progress}
    stack = ingest(both, folder / "stack", cell_shape=grid.cell_shape, data_range=stated, **run)
    fitted = fit_store(stack, folder / "model", _model_like(before), **run)
    kept_facts = {name: value for name, value in before.facts.items() if name in ("job", "settings")}
    wanted = Goal(**goal)
    cost = fill_codes(stack, folder / "model", work, folder / "records", wanted, facts={**kept_facts, **facts}, **run)
    if report:
        from dpca.jobs.report import write_job_report  # matplotlib takes a second to import

        stages = {name: vars(one) for name, one in {"fit": fitted.cost, "encode": cost}.items()}
        record = {"stages": stages, "notes": report["notes"]}
        where = report_folder(before.path)
        write_job_report(both, stack, work.store, folder / "model", where, record, ssim=True, parts=())
    return cost


def _model_like(before: Compressed) -> CellPCA:
    """Return a model of the settings that a store states, or of its cells, with more components of each."""
    if (asked := before.facts.get("settings", {}).get("model")) is not None:
        given: dict[str, Any] = {name: tuple(one) if isinstance(one, list) else one for name, one in asked.items()}
        return CellPCA(**given)
    components = before.codec.components
    grid, rows = components.grid, components.rows
    return CellPCA(
        min(_MORE * max(1, *map(len, rows)), grid.max_features),
        cell_shape=tuple(grid.cell_shape),
        overlap=int(before.facts["overlap"]),
        shared=len(rows) < grid.n_partitions,
        random_state=0,
    )
