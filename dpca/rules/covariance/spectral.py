"""Spectral proper orthogonal decomposition (SPOD): a singular value decomposition per frequency, in one pass."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import scipy.fft
import scipy.linalg
from numpy.typing import DTypeLike

from dpca.kernels.algebra.dtypes import working_dtype
from dpca.kernels.algebra.types import Array, blocks
from dpca.rules.base.options import count
from dpca.rules.base.rule import Rule, check_products
from dpca.rules.base.state import State, StateLayout

# Values of blocks that are transformed at a time.
_AT_ONCE = 2**22


@dataclass(frozen=True, eq=False)
class SpectralSVD(Rule):
    """Leading eigenvectors of the cross-spectral density of each frequency, from blocks of a record.

    A sample is a block of ``len(window)`` successive fields of d attributes. Its Fourier coefficients (Towne, Schmidt &
    Colonius 2018, section 3.2) are one row per frequency. The state holds the rows of all blocks as V^H diag(energy) V
    of rank q = n_modes + oversampling. The rows of a batch are stacked below the rows of the state. The eigenvectors of
    the Gram matrix of the stack yield the new rows (Brand 2002; Schmidt & Towne 2019, for one block at a time). A merge
    stacks the rows of two states. The result is exact for up to q blocks.

    Parameters
    ----------
    n_modes : int
    window : array (length,), float
        Window function, multiplied with the fields of a block.
    frequencies : array (F,), int
        Numbers of the Fourier coefficients, from 0 to length // 2.
    step : float
        Time between two fields.
    mean : array (d,), optional
        Mean to subtract. Without it, the mean of each block is subtracted if ``center`` is true.
    center : bool
    oversampling : int
        Number of additional directions to retain.

    Notes
    -----
    A block costs O(length d log(length)) operations, and 8 F d (q + B) (q + B) / B in batches of B. State: 8 F q d
    bytes for float32.

    Results of ``finish``: ``modes`` (F, k', d), complex, orthonormal, with a real and positive largest entry;
    ``energy`` (F, k') and ``total`` (F,), float64: one-sided densities of variance along each mode, and in total.
    k' = min(n_modes, d, blocks).
    """

    n_modes: int = field(metadata=count("modes"))
    window: Array
    frequencies: Array
    step: float = 1.0
    mean: Array | None = None
    center: bool = False
    oversampling: int = field(default=10, metadata=count("further directions", least=0))

    mergeable = True

    def _shape(self, n_features: int) -> tuple[int, int, int]:
        d = n_features // len(self.window)
        return len(self.frequencies), min(self.n_modes + self.oversampling, d), d

    def _layout(self, n_features: int, dtype: DTypeLike) -> StateLayout:
        n_frequencies, q, d = self._shape(n_features)
        return {
            "basis": ((n_frequencies, q, d), np.result_type(working_dtype(dtype), np.complex64)),
            "energy": ((n_frequencies, q), float),
            "total": ((n_frequencies,), float),
        }

    def _take(self, state: State, batch: Array) -> None:
        rows = self._transformed(batch, state.arrays["basis"].dtype)
        for f, of_one in enumerate(rows):
            state.arrays["total"][f] += self._absorb(state, f, of_one)
        state.counts["n_samples"] += len(batch)

    def _transformed(self, batch: Array, dtype: np.dtype) -> Array:
        """Return the Fourier coefficients (F, n, d) of blocks. Their squares are one-sided densities."""
        n, length = len(batch), len(self.window)
        fields = batch.reshape(n, length, -1)
        d = fields.shape[2]
        working = np.empty(0, dtype).real.dtype
        weights = (self.window * math.sqrt(self.step / (self.window @ self.window))).astype(working)[:, None]
        # All frequencies represent their negative, too, except 0 and the highest one of an even length.
        twice = (self.frequencies > 0) & (2 * self.frequencies != length)
        scale = np.where(twice, math.sqrt(2), 1).astype(working)[:, None]
        out = np.empty((len(self.frequencies), n, d), dtype)
        for i in range(n):
            for columns in blocks(d, max(1, _AT_ONCE // length)):
                x = fields[i, :, columns].astype(working)
                if self.mean is not None:
                    x -= self.mean[columns].astype(working)
                elif self.center:
                    x -= x.mean(axis=0, dtype=np.float64).astype(working)
                out[:, i, columns] = scipy.fft.rfft(x * weights, axis=0)[self.frequencies] * scale
        return out

    def _absorb(self, state: State, f: int, rows: Array) -> float:
        """Add rows^H rows of the rows (n, d) of one frequency, and return its trace."""
        basis, energy = state.arrays["basis"][f], state.arrays["energy"][f]
        rank = int(np.count_nonzero(energy))
        sizes = np.sqrt(energy[:rank])
        small = np.diag(np.concatenate([energy[:rank], np.zeros(len(rows))])).astype(np.complex128)
        small[rank:, :rank] = (rows @ basis[:rank].conj().T) * sizes
        small[rank:, rank:] = rows @ rows.conj().T
        added = float(np.trace(small[rank:, rank:]).real)
        check_products(math.isfinite(added))
        values, vectors = scipy.linalg.eigh(small, check_finite=False)  # reads the lower triangle
        floor = 4 * float(np.finfo(basis.dtype).eps) * float(np.trace(small).real)
        kept = [i for i in range(len(values))[::-1] if values[i] > floor][: len(basis)]
        turn = (vectors[:, kept] / np.sqrt(values[kept])).conj().T
        new = (turn[:, :rank] * sizes).astype(basis.dtype) @ basis[:rank] + turn[:, rank:].astype(basis.dtype) @ rows
        basis[: len(kept)], basis[len(kept) :] = new, 0
        energy[: len(kept)], energy[len(kept) :] = values[kept], 0
        return added

    def merge(self, a: State, b: State) -> State:
        """Return the state of both records."""
        for f, energy in enumerate(b.arrays["energy"]):
            rank = int(np.count_nonzero(energy))
            basis = b.arrays["basis"][f, :rank]
            self._absorb(a, f, basis * np.sqrt(energy[:rank, None]).astype(basis.real.dtype))
        a.arrays["total"] += b.arrays["total"]
        a.counts["n_samples"] += b.counts["n_samples"]
        return a

    def _finish(self, state: State) -> dict[str, Array]:
        n, k = state.counts["n_samples"], min(self.n_modes, state.arrays["basis"].shape[1], state.counts["n_samples"])
        modes = state.arrays["basis"][:, :k].copy()
        for rows in modes:
            largest = np.take_along_axis(rows, np.abs(rows).argmax(axis=1)[:, None], axis=1)
            size = np.abs(largest)
            rows *= np.divide(largest.conj(), size, out=np.ones_like(largest), where=size > 0)
        return {
            "modes": modes,
            "energy": state.arrays["energy"][:, :k] / n,
            "total": state.arrays["total"] / n,
        }

    def batch_rows(self, dtype: DTypeLike) -> int:
        """Return the number of blocks of a batch. Neighboring blocks overlap and are read together."""
        return 4

    def work_bytes(self, n_rows: int, n_features: int, dtype: DTypeLike) -> int:
        """Return the bytes of temporary arrays: coefficients of a batch, some columns, the stack of one frequency."""
        n_frequencies, q, d = self._shape(n_features)
        itemsize = np.result_type(working_dtype(dtype), np.complex64).itemsize
        stack = (3 * q + n_rows) * d * itemsize + 4 * 16 * (q + n_rows) ** 2
        merged = q * d * itemsize
        return n_frequencies * n_rows * d * itemsize + stack + merged + 4 * min(n_features, _AT_ONCE) * itemsize
