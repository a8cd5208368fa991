"""The second pass: write scores, reconstructions and the quality of every sample to Zarr, shard by shard."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import zarr

from dpca.engine.folds.plan import TASK_OVERHEAD, PlanError
from dpca.engine.sources.joined import JoinedSource
from dpca.engine.sources.sampling import first_samples
from dpca.engine.sources.source import Source, batches
from dpca.jobs.base.shards import ShardPass
from dpca.kernels.algebra.linalg import release_scratch
from dpca.kernels.algebra.types import Array
from dpca.kernels.pixels import Pixels
from dpca.kernels.quality import mse_per_sample, psnr_from_mse, quality_bytes, quality_of
from dpca.models.base.store import stored_basis
from dpca.representation.base import Representation
from dpca.representation.score_layout import score_layout
from dpca.storage.arrays.arrays import Codec, choose_codec, create_array, write_shard
from dpca.storage.arrays.coordinates import BESIDE, UNITS, Coordinates, write_coordinates
from dpca.storage.arrays.layout import SAMPLE, Layout, choose_layout
from dpca.storage.arrays.reading import open_array
from dpca.storage.run import Run
from dpca.storage.transaction.workspace import Workspace

# Bytes of a block of samples in floating point. A block has enough rows for efficient matrix products in each cell.
_BLOCK_BYTES = 48 * 2**20
# Number of samples, and their bytes, that codecs are tried on.
_TRIED = 4
TRIED_BYTES = 4 * 2**20
# Scores are compressed only if this makes them smaller by at least this factor.
_SPARSE = 1.5
#: The mean squared error of each variable of a sample, in squared units of the variable.
VARIABLE_MSE = "variable_mse"
#: Zarr holds the chunks of a shard encoded, then joined, in addition to the values.
SHARD_COPIES = 3


@dataclass(frozen=True)
class WriteJob:
    """The data that all tasks of a pass share; small, since the model is given by its path.

    Parameters
    ----------
    source : Source
        The stack, samples on axis 0.
    model : str
        Path of a stored model of any kind.
    fingerprint : str
        Fingerprint of the model at that path.
    store : str
        Zarr group for the arrays to write.
    axes : tuple of str
        Names of all axes of the stack, "sample" first.
    rows : int
        Samples of a shard, the unit of work, as in `stack_layout`.
    data_range : (float, float)
        Smallest and largest possible value. The unit of the MSE is the square of the difference. Reconstructions are
        clipped to this range.
    reconstruct : bool
        Whether to keep the reconstructions, in the dtype of the stack. Their MSE is measured in any case.
    ssim : bool
        Whether to measure their SSIM too, if samples are large enough: about a millisecond of processor time for a
        photograph of 218 x 178 pixels.
    """

    source: Source
    model: str
    fingerprint: str
    store: str
    axes: tuple[str, ...]
    rows: int
    data_range: tuple[float, float]
    reconstruct: bool
    ssim: bool

    @property
    def n_shards(self) -> int:
        """Number of shards."""
        return math.ceil(self.source.shape[0] / self.rows)

    def span(self, shard: int) -> tuple[int, int]:
        """Return the first sample of a shard, and the one behind the last."""
        return shard * self.rows, min((shard + 1) * self.rows, self.source.shape[0])

    def write(self, shard: int) -> dict[str, Array]:
        """Write one shard; return the quality of its samples."""
        basis = stored_basis(self.model, self.fingerprint)
        start, stop = self.span(shard)
        width = self.data_range[1] - self.data_range[0]
        whole = tuple((0, s) for s in self.source.shape[1:])
        dtype, n_spatial = self.source.dtype, basis.n_spatial(self.axes[1:])
        measures = ("mse", "ssim") if self.ssim else ("mse",)
        scores_out = open_array(os.path.join(self.store, "scores"), mode="r+")
        scores = np.empty((stop - start, *scores_out.shape[1:]), scores_out.dtype)
        pixels = np.empty((stop - start, *self.source.shape[1:]), dtype) if self.reconstruct else None
        quality: list[Mapping[str, Array]] = []
        block = max(1, _BLOCK_BYTES // (4 * math.prod(self.source.shape[1:])))
        for first, samples in batches(self.source, (start, stop), whole, self.rows):
            for row in range(0, len(samples), block):
                x = samples[row : row + block]
                here = slice(first - start + row, first - start + row + len(x))
                scores[here] = basis.encode(x, self.source.name, first + row)
                y = basis.decode(scores[here], "the scores", first + row, pixels=Pixels(dtype, self.data_range))
                if isinstance(self.source, JoinedSource):
                    quality.append({VARIABLE_MSE: self._error_by_variable(x, y, self.source)})
                else:
                    quality.append(quality_of(x, y, data_range=width, n_spatial=n_spatial, measures=measures))
                if pixels is not None:
                    pixels[here] = y
        release_scratch()
        write_shard(scores_out, start, scores)
        if pixels is not None:
            write_shard(open_array(os.path.join(self.store, "reconstructions"), mode="r+"), start, pixels)
        return joined_quality(quality)

    def _error_by_variable(self, x: Array, y: Array, source: JoinedSource) -> Array:
        """Return the mean squared errors (n, variables) of rows with the attributes of several variables."""
        found = [
            mse_per_sample(x[:, start:stop], y[:, start:stop], data_range=1.0)
            for start, stop in itertools.pairwise([0, *source.ends])
        ]
        return np.stack(found, axis=1)


def write_scores(
    job: WriteJob,
    group: zarr.Group,
    coordinates: Coordinates | None = None,
    *,
    work: Workspace,
    run: Run = Run(),
) -> int:
    """Write ``scores``, ``mse``, ``psnr`` and, if requested, ``ssim`` and ``reconstructions`` to a Zarr group.

    Parameters
    ----------
    job : WriteJob
    group : zarr.Group
        The job's store, open.
    coordinates : Coordinates, optional
        Coordinates of the stack. They are written with the centers of cells.
    work : Workspace
        Keeps the done-markers of shards.
    run : Run
        Its progress counts the samples written.

    Returns
    -------
    int
        Peak memory of a process, in bytes.

    Raises
    ------
    PlanError
        If a shard does not fit the memory of a task; nothing is written.
    DataError
        If a value is not finite.
    """
    if job.source.in_process:
        run = run.here()  # the source is in the memory of this process
    basis = stored_basis(job.model, job.fingerprint)
    rows = stack_layout(job.source, basis, job.axes).shards[0]
    require_memory(f"{rows:,} samples", task_bytes(job.source, basis, rows, job.reconstruct), run.task_bytes())
    create_arrays(job, basis, group, coordinates)
    shards = ShardPass("scores", work, run)
    peak = shards.write(job, ((shard,) for shard in range(job.n_shards)))
    dim = coordinates.dims[0] if coordinates else SAMPLE
    write_quality(group, map(shards.quality, range(job.n_shards)), dim)
    return peak


def task_bytes(source: Source, basis: Representation, rows: int, reconstruct: bool) -> int:
    """Bytes that `WriteJob.write` takes at most, in addition to the memory of its process."""
    sample = math.prod(source.shape[1:])
    score = basis.score_bytes(source.dtype)
    block = min(rows, max(1, _BLOCK_BYTES // (4 * sample)))
    values = rows * sample * source.dtype.itemsize
    reading = values + 4 * math.prod(source.chunks) * source.dtype.itemsize
    written = max(rows * score, values if reconstruct else 0)
    writing = rows * score + (values if reconstruct else 0) + SHARD_COPIES * written
    work = basis.work_bytes(block, source.dtype, pixels=True) + quality_bytes(source.shape[1:], source.dtype)
    return reading + writing + work + 3 * basis.nbytes + TASK_OVERHEAD


def require_memory(what: str, need: int, budget: int) -> None:
    """Raise PlanError if a task for a shard of samples, or for a box of them, needs more memory than the budget."""
    if need > budget:
        raise PlanError(
            f"writing a shard of {what} takes {need / 1e6:,.0f} MB but a task may take "
            f"{budget / 1e6:,.0f} MB: allow each worker at least {math.ceil((need - budget) / 1e6):,} MB more"
        )


def stack_layout(source: Source, basis: Representation, axes: Sequence[str]) -> Layout:
    """Return the layout of reconstructions of whole samples. Shards hold the same samples as shards of scores."""
    return choose_layout(source.shape, source.dtype.itemsize, axes, basis.cell_shape, part_bytes=None)


def create_arrays(
    job: WriteJob, basis: Representation, group: zarr.Group, coordinates: Coordinates | None = None
) -> None:
    """Create missing arrays of scores and reconstructions, and write those of coordinates."""
    source, shape = job.source, basis.score_shape
    # Cells or bands with fewer components than others have zero scores, which any sample shows.
    tried = basis.encode(np.random.default_rng(0).integers(0, 2, (_TRIED, *source.shape[1:])).astype(source.dtype))
    found = found_coordinates(job.axes, coordinates)
    write_centers(group, basis, job.axes, found)
    layout = score_layout(job.rows, shape, tried.dtype.itemsize)
    create_scores(group, basis, (source.shape[0], *shape), tried, layout, (job.axes, found))
    if job.reconstruct:
        # The originals show how well reconstructions compress.
        codec = choose_codec(first_samples(source, TRIED_BYTES))
        layout = stack_layout(source, basis, job.axes)
        stated = found.stated
        create_array(
            group, "reconstructions", source.shape, source.dtype, layout, found.dims, codec=codec, attributes=stated
        )


def found_coordinates(axes: tuple[str, ...], coordinates: Coordinates | None) -> Coordinates:
    """Return the coordinates, or the names of the axes without any."""
    return Coordinates(axes, {}, {}) if coordinates is None else coordinates


def write_centers(group: zarr.Group, basis: Representation, axes: tuple[str, ...], found: Coordinates) -> None:
    """Write coordinates, and the centers of cells along them."""
    write_coordinates(group, found.with_centers(basis.score_axes(axes[1:]), basis.score_centers))


def create_scores(
    group: zarr.Group,
    basis: Representation,
    shape: tuple[int, ...],
    tried: Array,
    layout: Layout,
    named: tuple[tuple[str, ...], Coordinates],
) -> zarr.Array[Any]:
    """Create the array of scores, or return that of an interrupted run. ``tried`` are some scores, for their codec."""
    axes, found = named
    stated = {
        name: text for name, text in found.stated.items() if name == BESIDE or (basis.keeps_units and name == UNITS)
    }
    names = (found.dims[0], *basis.score_axes(axes[1:]))
    codec: Codec = "sparse" if np.count_nonzero(tried) * _SPARSE <= tried.size else "raw"
    return create_array(group, "scores", shape, tried.dtype, layout, names, codec=codec, attributes=stated)


def joined_quality(parts: Iterable[Mapping[str, Array]]) -> dict[str, Array]:
    """Return the quality of the samples of several parts, in their order."""
    found: dict[str, list[Array]] = {}
    for part in parts:
        for name, values in part.items():
            found.setdefault(name, []).append(values)
    return {name: np.concatenate(values) for name, values in found.items()}


def write_quality(group: zarr.Group, parts: Iterable[Mapping[str, Array]], dim: str = SAMPLE) -> None:
    """Write the quality of all samples, as one array for each measure, and the PSNR from the MSE."""
    measures = joined_quality(parts)
    if "mse" in measures:
        measures["psnr"] = psnr_from_mse(measures["mse"]).astype(measures["mse"].dtype)
    for name in sorted(measures):
        values = measures[name]
        rows, axes = (min(len(values), 2**18), *values.shape[1:]), (dim, "variable")[: values.ndim]
        layout = Layout(rows, rows)
        array = create_array(
            group, name, values.shape, values.dtype, layout, axes, attributes={"may_be_infinite": name == "psnr"}
        )
        for start in range(0, len(values), layout.shards[0]):
            write_shard(array, start, values[start : start + layout.shards[0]])
