"""Superposes molecular structures onto a reference: rotation and shift of least squared distance (Kabsch 1976)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dpca.kernels.algebra.dtypes import working_dtype
from dpca.kernels.algebra.types import Array, blocks

# Bytes of float64 coordinates that are rotated together: they stay in the cache of one core.
_BLOCK_BYTES = 2**20
# Atoms lie on a line, up to the rounding of float32, if their second extent is below this share of the first.
_LINE = 1e-5


@dataclass(frozen=True, eq=False)
class Superposition:
    """Maps frames to rows that do not depend on the position and orientation of the molecule, and back.

    Parameters
    ----------
    reference : array (n_atoms, 3), float64
        Its center by ``fit_weights`` is at the origin, like that of superposed frames.
    fit_weights : array (n_atoms,), float64
        Weight of each atom's squared distance from the reference. All are at least 0, and three atoms that are not on
        a line have positive weights.
    weights : array (n_atoms,), float64
        Positive. The coordinates of a row are those of a superposed frame, times the square root of the atom's weight.
    """

    reference: Array
    fit_weights: Array
    weights: Array

    def rows(self, frames: Array, out: Array) -> None:
        """Superpose frames (n, n_atoms, 3), any real dtype, into ``out`` of the same shape, which may be ``frames``.

        Computes, in float64, the singular value decomposition of the weighted correlation of each frame with the
        reference (Kabsch 1976; Arun, Huang & Blostein 1987). If it yields a reflection, the axis of the smallest
        singular value is inverted (Umeyama 1991, equation 43). Costs about 60 operations per atom and 10 microseconds
        per frame, and 1 MiB or two frames of memory.
        """
        step = max(1, _BLOCK_BYTES // (24 * len(self.weights)))
        for start in range(0, len(frames), step):
            x = frames[start : start + step].astype(np.float64)
            placed = placements(sums_of(x, self.reference, self.fit_weights) / self.fit_weights.sum())
            _place(x, placed, self._scale, out[start : start + step])

    @property
    def _scale(self) -> Array | None:
        return None if (self.weights == 1).all() else np.sqrt(self.weights)

    def rows_of(self, frames: Array) -> Array:
        """Return the rows of frames, in their working dtype."""
        self.rows(frames, found := np.empty(frames.shape, working_dtype(frames.dtype)))
        return found

    def frames(self, rows: Array) -> Array:
        """Return the superposed frames of rows. ``rows`` may be overwritten."""
        rows /= np.sqrt(self.weights)[:, None].astype(rows.dtype)
        return rows


def sums_of(x: Array, reference: Array, fit_weights: Array) -> Array:
    """Return the sums over some atoms that place frames, (n, 4, 3), of frames (n, atoms, 3) in float64.

    They are the weighted correlation with the reference, and last the weighted positions. The reference of all atoms is
    centered, so that the correlation does not depend on the position of the frame.
    """
    sums: Array = np.vstack([(reference * fit_weights[:, None]).T, fit_weights]) @ x
    return sums


def placements(means: Array) -> Array:
    """Return the rotation and the center of frames (n, 4, 3), from the sums of all atoms over the sum of their weights.

    Raises
    ------
    ValueError
        If a sum is infinite.
    """
    if not np.isfinite(means).all():
        raise ValueError("coordinates are too large for a superposition: divide them by a constant")
    u, _, vt = np.linalg.svd(means[:, :3])
    u[:, :, 2] *= np.sign(np.linalg.det(u) * np.linalg.det(vt))[:, None]
    return np.concatenate([(u @ vt).swapaxes(1, 2), means[:, 3:]], axis=1)


def place(frames: Array, placed: Array, weights: Array | None, out: Array) -> None:
    """Superpose some atoms of frames (n, atoms, 3), any real dtype, by `placements`, times the roots of the weights."""
    scale = None if weights is None else np.sqrt(weights)
    for atoms in blocks(frames.shape[1], max(1, _BLOCK_BYTES // (24 * len(frames)))):
        part = None if scale is None else scale[atoms]
        _place(frames[:, atoms].astype(np.float64), placed, part, out[:, atoms])


def _place(x: Array, placed: Array, scale: Array | None, out: Array) -> None:
    x -= placed[:, 3:]
    if scale is not None:
        x *= scale[:, None]
    np.matmul(x, placed[:, :3], out=out, casting="same_kind")


def centered(structure: Array, weights: Array) -> Array:
    """Return a structure (n_atoms, 3), float64, with its weighted center at the origin."""
    return structure - weights @ structure / weights.sum()


def is_line(structure: Array, weights: Array) -> bool:
    """Return whether the atoms with positive weights lie on one line or in one point.

    The best rotation onto such a structure is not unique.
    """
    extents = np.linalg.svd(centered(structure, weights) * np.sqrt(weights)[:, None], compute_uv=False)
    return len(extents) < 2 or bool(extents[1] <= _LINE * extents[0])
