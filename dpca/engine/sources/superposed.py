"""Frames of a molecule that are superposed when they are read, whole or by blocks of atoms."""

from __future__ import annotations

import copy
from typing import Any, ClassVar

import dask.array as da
import numpy as np

from dpca.engine.folds.boundary import named_errors
from dpca.engine.sources.derived import ComputedSource
from dpca.engine.sources.finite import check_finite
from dpca.engine.sources.lazy_boxes import lazily
from dpca.engine.sources.source import Source
from dpca.kernels.algebra.dtypes import working_dtype
from dpca.kernels.algebra.types import Array, Region, blocks
from dpca.kernels.superposition import Superposition, place, placements, sums_of
from dpca.storage.run import Run

# Atoms of all frames that are converted to float64 together: they stay in the cache of one core.
_BLOCK_ATOMS = 2**15


class SuperposedSource(ComputedSource):
    """Superposed frames (n_frames, n_atoms, 3) of another source, see `Superposition`. Nothing is copied to disk.

    It keeps the weights of the frames.

    Parameters
    ----------
    source : Source
        Frames (n_frames, n_atoms, 3).
    superposition : Superposition
    """

    def __init__(self, source: Source, superposition: Superposition) -> None:
        super().__init__(source, source.shape, working_dtype(source.dtype))
        self.superposition, self.axes, self.weights = superposition, source.axes, source.weights

    def compute(self, values: Array, first: int, samples: tuple[int, int], region: Region, out: Array) -> None:
        """Fill a box of rows. Any box depends on all atoms of its frames."""
        check_finite(values, first, self.name)
        fill = named_errors(self.superposition.rows, self.name, (first, first + len(values)))
        if out.shape[1:] == values.shape[1:]:
            fill(values, out)
            return
        fill(values, rows := np.empty(values.shape, self.dtype))
        np.copyto(out, rows[(slice(None), *(slice(*lengths) for lengths in region))])


class PlacedSource(ComputedSource):
    """As `SuperposedSource`, for frames with known placements: a block of atoms depends on this block only.

    Parameters
    ----------
    source : Source
        Frames (n_frames, n_atoms, 3).
    placed : array (n_frames, 4, 3), float64
        The placement of each frame, see `placements_of`.
    weights : array (n_atoms,), float64
        As in `Superposition`.
    """

    per_sample: ClassVar[tuple[str, ...]] = ("placed",)
    first_atom: int = 0
    """Number of the atom that the first weight belongs to."""

    def __init__(self, source: Source, placed: Array, weights: Array) -> None:
        super().__init__(source, source.shape, working_dtype(source.dtype))
        self.placed, self.axes, self.chunks = placed, source.axes, source.chunks
        self.atom_weights = None if (weights == 1).all() else weights
        self.weights = source.weights

    def compute(self, values: Array, first: int, samples: tuple[int, int], region: Region, out: Array) -> None:
        """Fill a box of rows."""
        check_finite(values, first, self.name)
        weights, (a, b) = self.atom_weights, region[0]
        weights = None if weights is None else weights[a - self.first_atom : b - self.first_atom]
        whole = out if out.shape[2] == 3 else np.empty(values.shape, self.dtype)
        place(values, self.entries_of("placed", samples), weights, whole)
        if whole is not out:
            np.copyto(out, whole[:, :, slice(*region[1])])

    def needed(self, region: Region) -> Region:
        """Return all coordinates of the atoms of a box."""
        return region[0], (0, 3)

    def piece(self, samples: tuple[int, int], region: Region) -> Any:
        """Return this source with the weights of a block, over a piece of the other one."""
        if self.atom_weights is None:
            return super().piece(samples, region)
        cut, (a, b) = copy.copy(self), region[0]
        cut.atom_weights, cut.first_atom = self.atom_weights[a - self.first_atom : b - self.first_atom], a
        return ComputedSource.piece(cut, samples, region)


def placements_of(source: Source, superposition: Superposition, run: Run) -> Array:
    """Return the placements (n, 4, 3) of frames on a reference, from a pass over blocks of atoms."""
    found = _placements(lazily(source), superposition)
    if run.client is not None and not source.in_process:
        return np.asarray(run.client.compute(found).result())
    return np.asarray(found.compute(scheduler="threads", num_workers=run.n_threads))


def superposed_lazily(frames: da.Array, superposition: Superposition) -> da.Array:
    """Return superposed frames (n, atoms, 3) as rows, in the same chunks, each with all coordinates of its atoms."""
    frames = frames.rechunk({2: -1})
    weights = da.from_array(superposition.weights, chunks=frames.chunks[1])
    rows: da.Array = da.blockwise(
        _placed_rows,
        (0, 1, 2),
        frames,
        (0, 1, 2),
        _placements(frames, superposition),
        (0, 3, 4),
        weights,
        (1,),
        concatenate=True,
        dtype=working_dtype(frames.dtype),
        meta=np.empty((0, 0, 0), working_dtype(frames.dtype)),
    )
    return rows


def _placements(frames: da.Array, superposition: Superposition) -> da.Array:
    """Return `placements` lazily, from sums over the chunks of atoms."""
    frames, weights = frames.rechunk({2: -1}), superposition.fit_weights
    reference = da.from_array(superposition.reference, chunks=(frames.chunks[1], (3,)))
    sums = da.blockwise(
        _sums_of_block,
        (0, 1, 3, 2),
        frames,
        (0, 1, 2),
        reference,
        (1, 2),
        da.from_array(weights, chunks=frames.chunks[1]),
        (1,),
        adjust_chunks={1: 1},
        new_axes={3: 4},
        dtype=np.float64,
        meta=np.empty((0, 0, 0, 0)),
    ).sum(axis=1)
    found: da.Array = (sums / weights.sum()).map_blocks(placements, dtype=np.float64, meta=np.empty((0, 0, 0)))
    return found


def _sums_of_block(frames: Array, reference: Array, fit_weights: Array) -> Array:
    check_finite(frames, 0, "a chunk")
    sums = np.zeros((len(frames), 4, 3))
    for atoms in blocks(len(reference), max(1, _BLOCK_ATOMS // len(frames))):
        sums += sums_of(frames[:, atoms].astype(np.float64), reference[atoms], fit_weights[atoms])
    return sums[:, None]


def _placed_rows(frames: Array, placed: Array, weights: Array) -> Array:
    rows = np.empty(frames.shape, working_dtype(frames.dtype))
    place(frames, placed, weights, rows)
    return rows
