"""The samples of a report: those that are fitted, and those whose reconstructions are measured."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dpca.engine.sources.held_out import RemainingSource
from dpca.engine.sources.sampling import read_samples, spread_samples
from dpca.engine.sources.source import Source, as_source
from dpca.jobs.scores.transform import stated_range
from dpca.kernels.algebra.types import Array
from dpca.kernels.pixels import Pixels, to_pixels
from dpca.kernels.quality import has_ssim, mse_per_sample, ssim_per_sample
from dpca.pipelines.studies.partitions.settings import Design, PartitionSettings, count_cut
from dpca.plots.panels import panel, spread_over, thinned
from dpca.storage.disk import require_free_space, writing_errors
from dpca.storage.remote.memory import thread_count
from dpca.storage.remote.tasks import run_in_order
from dpca.storage.stack import Stack

# Floating-point copies of the samples that are reconstructed at once.
_BLOCK_BYTES = 32 * 2**20
_PICTURED = 4


@dataclass(frozen=True, eq=False)
class Measured:
    """Samples whose reconstructions are measured, copied out of the stack once.

    Attributes
    ----------
    values : array (m, *sample_shape)
        A file on disk that is read as it is needed.
    numbers : array (m,)
        Which samples of the stack they are, ascending.
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
        What estimators are given.
    training, held_out : Measured
        The latter is None where all samples are fitted.
    data_range : tuple of float
        Smallest and largest possible value.
    """

    stack: Stack
    fitted: Stack | RemainingSource
    training: Measured
    held_out: Measured | None
    data_range: tuple[float, float]

    @property
    def axes(self) -> tuple[str, ...]:
        """Names of the axes of one sample."""
        return self.stack.axes[1:]

    @property
    def has_ssim(self) -> bool:
        """Whether the structural similarity of such samples is defined."""
        return has_ssim(self.stack.sample_shape, count_cut(self.axes))

    @property
    def pictured_of(self) -> Measured:
        """The samples that pictures are taken from: those held out, if any."""
        return self.training if self.held_out is None else self.held_out

    @property
    def pictured(self) -> Array:
        """Places, among `pictured_of`, of a few samples from all over them."""
        return np.array(spread_over(len(self.pictured_of.values), _PICTURED))

    def quality(self, basis: Any, measured: Measured) -> dict[str, Array]:
        """Measure reconstructions, on threads of this process.

        Returns
        -------
        dict of array (m,)
            ``mse``, of the reconstructions as they are, in units of the width of ``data_range``; of the pixels that
            they become, rounded and clipped to what the stack can hold, ``pixel_mse``, unless values are
            floating-point, and ``ssim``, where it is defined.
        """
        n_spatial = count_cut(self.axes) if self.has_ssim else 0
        values = measured.values
        rows = max(1, _BLOCK_BYTES // (4 * int(np.prod(values.shape[1:]))))
        blocks = (values[start : start + rows] for start in range(0, len(values), rows))
        calls = ((basis, block, self.data_range, n_spatial) for block in blocks)
        found = list(run_in_order(_quality_of, calls, threads=thread_count()))
        return {name: np.concatenate([part[name] for part in found]) for name in found[0]}

    def pictures(self, basis: Any | None, components: int | None = None) -> Array:
        """Return panels of the pictured samples as a basis gives them back, float32; without one, as they are.

        Parameters
        ----------
        basis : LinearRepresentation, optional
        components : int, optional
            Number of components of every partition to use.
        """
        values = np.asarray(self.pictured_of.values[self.pictured])
        if basis is not None:
            scores = basis.encode(values)
            if components is not None:
                scores[..., components:] = 0
            values = basis.decode(scores, pixels=Pixels(values.dtype, self.data_range))
        return panels(values, self.axes)


def gather(stack: Stack, settings: PartitionSettings, plan: Design, folder: Path) -> ReportSamples:
    """Choose the samples, and copy those that are measured to files in a folder, unless they are there.

    Raises
    ------
    DataError
        If the range of the values is not stated, or a value is not finite.
    StoreError
        If the disk is full.

    Notes
    -----
    Reads the chunks that hold a measured sample, once. Takes the bytes of the measured samples on disk.
    """
    source = as_source(stack)
    everything = np.arange(stack.n_samples)
    fitted: Stack | RemainingSource = stack
    kept, others = everything, everything[:0]
    if plan.n_held_out:
        others = spread_samples(len(everything), plan.n_held_out, np.random.default_rng(settings.seed))
        kept = np.delete(everything, others)
        fitted = RemainingSource(source, others)

    def some(numbers: Array, name: str) -> Measured:
        count = min(len(numbers), settings.evaluate or len(numbers))
        chosen = numbers[spread_samples(len(numbers), count, np.random.default_rng((settings.seed, 1)))]
        return Measured(_copied(source, chosen, folder / f"{name}.npy"), chosen)

    training = some(kept, "training")
    held_out = some(others, "held-out") if len(others) else None
    return ReportSamples(stack, fitted, training, held_out, stated_range(stack))


def panels(samples: Array, axes: tuple[str, ...]) -> Array:
    """Return what a page can show of samples (n, *sample_shape), float32: images, middle slices, or curves."""
    return np.stack([thinned(panel(sample, axes)) for sample in samples]).astype(np.float32)


def _copied(source: Source, numbers: Array, path: Path) -> Array:
    shape = (len(numbers), *source.shape[1:])
    if not path.exists():
        temporary = path.with_name(f".{uuid.uuid4().hex}.tmp")
        with writing_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            require_free_space(path, int(np.prod(shape)) * source.dtype.itemsize, "the samples that are measured")
            try:
                copy = np.lib.format.open_memmap(temporary, mode="w+", dtype=source.dtype, shape=shape)
                for start, block in _runs(source, numbers):
                    copy[start : start + len(block)] = block
                copy.flush()
                os.replace(temporary, path)
            finally:
                temporary.unlink(missing_ok=True)
    found: Array = np.load(path, mmap_mode="r", allow_pickle=False)
    return found


def _runs(source: Source, numbers: Array) -> Iterator[tuple[int, Array]]:
    start = 0
    for block in read_samples(source, numbers):
        yield start, block
        start += len(block)


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
