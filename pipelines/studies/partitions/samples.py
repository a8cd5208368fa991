"""The samples of a report: those of fits, and those with measured reconstructions."""

from __future__ import annotations

import os
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dpca.engine.sources.held_out import RemainingSource
from dpca.engine.sources.sampling import read_samples, spread_samples
from dpca.engine.sources.source import Source, as_source
from dpca.jobs.scores.transform import stated_range
from dpca.kernels.algebra.types import Array
from dpca.kernels.pixels import Pixels, to_pixels
from dpca.kernels.quality import has_ssim, mse_per_sample, ssim_per_sample
from dpca.pipelines.studies.partitions.settings import Design, PartitionSettings, count_cut
from dpca.plots.overviews import thinned
from dpca.plots.panels import panel, spread_over
from dpca.storage.disk import require_free_space, writing_errors
from dpca.storage.remote.memory import thread_count
from dpca.storage.remote.tasks import run_in_order
from dpca.storage.stack import Stack

# Floating-point copies of the samples that are reconstructed at once.
_BLOCK_BYTES = 32 * 2**20
_PICTURED = 4


class Measured(NamedTuple):
    """Samples with measured reconstructions, copied from the stack once.

    Attributes
    ----------
    values : array (m, *sample_shape)
        A memory-mapped file.
    numbers : array (m,)
        Their numbers in the stack, ascending.
    """

    values: Array
    numbers: Array


@dataclass(frozen=True, eq=False)
class ReportSamples:
    """The samples of a report.

    Attributes
    ----------
    stack : Stack
    fitted : Stack or RemainingSource
        Input of estimators.
    measured : dict of str to Measured
        "training", and "held_out" if samples are held out.
    data_range : tuple of float
        Smallest and largest possible value.
    """

    stack: Stack
    fitted: Stack | RemainingSource
    measured: dict[str, Measured]
    data_range: tuple[float, float]

    @property
    def axes(self) -> tuple[str, ...]:
        """Names of the axes of one sample."""
        return self.stack.axes[1:]

    @property
    def has_ssim(self) -> bool:
        """Whether the structural similarity of the samples is defined."""
        return has_ssim(self.stack.sample_shape, count_cut(self.axes))

    @property
    def pictured_of(self) -> str:
        """Which measured samples are in pictures: the held-out ones, if there are any."""
        return list(self.measured)[-1]

    @property
    def pictured(self) -> Array:
        """Indices of a few of these samples, spread over all."""
        return np.array(spread_over(len(self.measured[self.pictured_of].values), _PICTURED))

    def quality(self, basis: Any, measured: Measured) -> dict[str, Array]:
        """Measure reconstructions, on threads of this process.

        Returns
        -------
        dict of array (m,)
            ``mse`` of the unrounded reconstructions, in units of the squared width of ``data_range``; ``pixel_mse`` of
            the rounded and clipped pixels, unless samples are floating-point; ``ssim`` of the pixels, if it is defined.
        """
        n_spatial = count_cut(self.axes) if self.has_ssim else 0
        values = measured.values
        rows = max(1, _BLOCK_BYTES // (4 * int(np.prod(values.shape[1:]))))
        blocks = (values[start : start + rows] for start in range(0, len(values), rows))
        calls = ((basis, block, self.data_range, n_spatial) for block in blocks)
        found = list(run_in_order(_quality_of, calls, threads=thread_count()))
        return {name: np.concatenate([part[name] for part in found]) for name in found[0]}

    def pictures(self, basis: Any | None, components: int | None = None) -> Array:
        """Return panels, float32, of the pictured samples, or of their reconstructions by a basis.

        Parameters
        ----------
        basis : LinearRepresentation, optional
        components : int, optional
            Number of components of every partition to use.
        """
        values = np.asarray(self.measured[self.pictured_of].values[self.pictured])
        if basis is not None:
            scores = basis.encode(values)
            if components is not None:
                scores[..., components:] = 0
            values = basis.decode(scores, pixels=Pixels(values.dtype, self.data_range))
        return panels(values, self.axes)


def gather(stack: Stack, settings: PartitionSettings, plan: Design, folder: Path) -> ReportSamples:
    """Choose the samples, and copy the measured ones to files in a folder, unless they are there.

    Raises
    ------
    DataError
        If the range of the values is not stated, or a value is not finite.
    StoreError
        If the disk is full.

    Notes
    -----
    Reads each chunk with a measured sample once. Uses the bytes of the measured samples on disk.
    """
    source, seed = as_source(stack), settings.seed
    everything = np.arange(stack.n_samples)
    fitted: Stack | RemainingSource = stack
    sets = {"training": everything}
    if plan.n_held_out:
        others = spread_samples(len(everything), plan.n_held_out, np.random.default_rng(seed))
        sets = {"training": np.delete(everything, others), "held_out": others}
        fitted = RemainingSource(source, others)
    measured = {}
    for name, numbers in sets.items():
        count = min(len(numbers), settings.evaluate or len(numbers))
        chosen = numbers[spread_samples(len(numbers), count, np.random.default_rng((seed, 1)))]
        measured[name] = Measured(_copied(source, chosen, folder / f"{name}.npy"), chosen)
    return ReportSamples(stack, fitted, measured, stated_range(stack))


def panels(samples: Array, axes: tuple[str, ...]) -> Array:
    """Return panels, float32, of samples (n, *sample_shape): images, middle slices, or curves."""
    return np.stack([thinned(panel(sample, axes)) for sample in samples]).astype(np.float32)


def _copied(source: Source, numbers: Array, path: Path) -> Array:
    shape = (len(numbers), *source.shape[1:])
    if not path.exists():
        temporary = path.with_name(f".{uuid.uuid4().hex}.tmp")
        with writing_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            require_free_space(path, int(np.prod(shape)) * source.dtype.itemsize, "the measured samples")
            try:
                copy = np.lib.format.open_memmap(temporary, mode="w+", dtype=source.dtype, shape=shape)
                start = 0
                for block in read_samples(source, numbers):
                    copy[start : start + len(block)] = block
                    start += len(block)
                copy.flush()
                os.replace(temporary, path)
            finally:
                temporary.unlink(missing_ok=True)
    found: Array = np.load(path, mmap_mode="r", allow_pickle=False)
    return found


def _quality_of(basis: Any, block: Array, data_range: tuple[float, float], n_spatial: int) -> dict[str, Array]:
    x, width = np.ascontiguousarray(block), data_range[1] - data_range[0]
    y = basis.decode(basis.encode(x))
    found = {"mse": mse_per_sample(x, y, data_range=width)}
    pixels = to_pixels(y, x.dtype, data_range)
    if x.dtype.kind != "f":
        found["pixel_mse"] = mse_per_sample(x, pixels, data_range=width)
    if n_spatial:
        found["ssim"] = ssim_per_sample(x, pixels, data_range=width, n_spatial=n_spatial)
    return found
