"""Eigenimages of a stack of any size: a streaming PCA of whole samples, their scores, and a record of their quality."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpca.jobs.compression import Settings, describe
from dpca.jobs.stream_report import write_stream_report
from dpca.models.streaming_methods import make_rule
from dpca.models.streaming_pca import StreamingPCA
from dpca.partition import Whole
from storage.errors import DataError
from storage.stack import Stack


@dataclass(frozen=True)
class StreamingSettings(Settings):
    """What determines the output, beside the source.

    Parameters
    ----------
    n_components, method, n_passes, batch_size, oversampling, shuffle
        As for `StreamingPCA`.
    seed : int
        Its ``random_state``.
    reconstruct : bool
        Whether to keep the reconstructions; their SSIM is measured only then.
    color, resize, crop, on_error, key, axes, data_range
        As for `storage.ingest`.
    """

    n_components: int = 50
    method: str = "incremental-svd"
    n_passes: int = 1
    batch_size: int | None = None
    oversampling: int | None = None
    shuffle: bool = False
    seed: int = 0

    @property
    def scores_kind(self) -> str:
        """What the store of scores calls itself."""
        return Whole.scores_kind

    @property
    def ssim(self) -> bool:
        """Measured where reconstructions are kept; it costs more than everything else here."""
        return self.reconstruct

    def cells(self, axes: Sequence[str]) -> None:
        """Samples are left whole."""
        return None

    def check(self, n_samples: int) -> None:
        """Refuse more components than samples, and methods and sizes that `StreamingPCA` does not know."""
        k = self.n_components
        make_rule(
            self.method,
            k,
            center=True,
            options={"oversampling": self.oversampling},
            batch_size=self.batch_size,
            seed=self.seed,
        )
        # That there are no samples at all, ingest says better.
        if 0 < n_samples < k:
            raise DataError(f"n_components is {k} but there are only {n_samples} samples: ask for at most that many")

    def announce(self, stack: Stack) -> str:
        """Say in a line what will be fitted."""
        passes = "1 pass" if self.n_passes == 1 else f"{self.n_passes} passes"
        return f"fit {self.n_components} components by {self.method} in {passes} to {describe(stack)}"

    def estimator(self) -> StreamingPCA:
        """Return the model, not fitted."""
        return StreamingPCA(
            self.n_components,
            method=self.method,
            n_passes=self.n_passes,
            batch_size=self.batch_size,
            oversampling=self.oversampling,
            shuffle=self.shuffle,
            random_state=self.seed,
        )

    def report(
        self, stack: Stack, store: Path, folder: Path, stages: Mapping[str, Mapping[str, Any]], notes: Sequence[str]
    ) -> dict[str, Any]:
        """Write the report of a scores store and return its numbers."""
        return write_stream_report(stack, store, folder, stages, notes)
