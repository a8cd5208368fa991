"""The main job: photographs in; cell-PCA scores, reconstructions, a quality record and its pictures out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from dpca.jobs.cell_report import write_job_report
from dpca.jobs.compression import Settings, describe, times
from dpca.jobs.fit import fit_store
from dpca.jobs.stages import StageCost
from dpca.models.cell_basis import CellBasis
from dpca.models.cell_pca import spatial_cell
from storage.progress import Progress
from storage.stack import Stack


@dataclass(frozen=True)
class CompressionSettings(Settings):
    """What determines the output, beside the source.

    Parameters
    ----------
    n_components : int or None
        Components of each cell; None keeps all.
    cell_shape : int or tuple of int
        Cell length along each spatial axis.
    reconstruct : bool
        Whether to keep the reconstructions.
    color, resize, crop, on_error, key, axes, data_range
        As for `storage.ingest`.
    """

    n_components: int | None = 20
    cell_shape: int | tuple[int, ...] = 10

    scores_kind: ClassVar[str] = CellBasis.scores_kind

    @property
    def ssim(self) -> bool:
        """Always measured: it is what the job is for."""
        return True

    def cells(self, axes: Sequence[str]) -> tuple[int, ...]:
        """Return the cell length along each spatial axis."""
        return spatial_cell(self.cell_shape, axes)

    def check(self, n_samples: int) -> None:
        """Leave it to the fit, which knows the cells."""

    def announce(self, stack: Stack) -> str:
        """Say in a line what will be fitted."""
        return f"fit {times(self.cells(stack.axes[1:]))} cells to {describe(stack)}"

    def fit(self, stack: Stack, target: Path, client: Any, progress: Progress) -> tuple[StageCost, list[str]]:
        """Fit a `CellPCA` and store it."""
        _, cost = fit_store(
            stack,
            target,
            n_components=self.n_components,
            cell_shape=self.cell_shape,
            client=client,
            progress=progress,
        )
        return cost, []

    def report(
        self, stack: Stack, store: Path, folder: Path, stages: Mapping[str, Mapping[str, Any]], notes: Sequence[str]
    ) -> dict[str, Any]:
        """Write the report of a scores store and return its numbers."""
        return write_job_report(stack, store, folder, stages)
