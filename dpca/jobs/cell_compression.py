"""The main job: a stack in; scores of its cells or bands, reconstructions, a quality record and its pictures out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dpca.jobs.cell_report import write_job_report
from dpca.jobs.compression import Settings, describe, times
from dpca.models.band_pca import BandPCA
from dpca.models.cell_pca import CellPCA, spatial_cell
from dpca.models.rank_choice import RankChoice
from dpca.partition import Bands, CellGrid
from storage.errors import DataError
from storage.stack import Stack


@dataclass(frozen=True)
class CompressionSettings(Settings):
    """What determines the output, beside the source.

    Parameters
    ----------
    model : mapping
        Parameters of the `CellPCA`, or of the `BandPCA` where ``band_size`` is one of them.
    reconstruct : bool
        Whether to keep the reconstructions.
    color, resize, crop, on_error, key, axes, data_range
        As for `storage.ingest`.
    """

    model: Mapping[str, Any] = field(default_factory=lambda: {"n_components": 20, "cell_shape": 10})

    @property
    def scores_kind(self) -> str:
        """What the store of scores calls itself."""
        return CellGrid.scores_kind if "cell_shape" in self.model else Bands.scores_kind

    @property
    def ssim(self) -> bool:
        """Always measured: it is what the job is for."""
        return True

    def cells(self, axes: Sequence[str]) -> tuple[int, ...] | None:
        """Return the cell length along each spatial axis; bands lie anywhere."""
        try:
            return spatial_cell(self.model["cell_shape"], axes) if "cell_shape" in self.model else None
        except ValueError as error:
            raise DataError(str(error)) from error

    def check(self, n_samples: int) -> None:
        """Refuse two ways to ask for components, and leave the rest to the fit, which knows the cells."""
        partitioned_model(self.model)

    def announce(self, stack: Stack) -> str:
        """Say in a line what will be fitted."""
        cells = self.cells(stack.axes[1:])
        parts = f"bands of {self.model['band_size']:,} attributes" if cells is None else f"{times(cells)} cells"
        return f"fit {parts} to {describe(stack)}"

    def estimator(self) -> CellPCA | BandPCA:
        """Return the model, not fitted."""
        return partitioned_model(self.model)

    def report(
        self, stack: Stack, store: Path, folder: Path, stages: Mapping[str, Mapping[str, Any]], notes: Sequence[str]
    ) -> dict[str, Any]:
        """Write the report of a scores store and return its numbers."""
        return write_job_report(stack, store, folder, stages, notes)


def partitioned_model(parameters: Mapping[str, Any]) -> CellPCA | BandPCA:
    """Return the estimator, not fitted, that has these parameters: bands have a ``band_size``.

    Raises
    ------
    DataError
        If they ask for components in two ways.
    """
    RankChoice.of(parameters)
    return BandPCA(**parameters) if "band_size" in parameters else CellPCA(**parameters)
