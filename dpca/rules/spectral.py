"""Spectral proper orthogonal decomposition: a singular value decomposition for each frequency, in one pass."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import scipy.fft
import scipy.linalg
from numpy.typing import DTypeLike

from dpca.kernels.dtypes import working_dtype
from dpca.kernels.types import Array
from dpca.rules.rule import Rule, check_count
from dpca.rules.state import Layout, State

# Values of blocks that are transformed at once.
_AT_ONCE = 2**22


@dataclass(frozen=True, eq=False)
class SpectralSVD(Rule):
    """The leading eigenvectors of the cross-spectral density of each frequency, from blocks of a record.

    A sample is a block of ``len(window)`` successive fields of d attributes. Its Fourier coefficients (Towne, Schmidt &
    Colonius 2018, section 3.2) are a row for each frequency, and the rows of all blocks are kept as V^H diag(energy) V
    of rank q = n_modes + oversampling: those of a batch are stacked below the rows that are kept, and the eigenvectors
    of the Gram matrix of the stack give the new ones (Brand 2002; Schmidt & Towne 2019, for one block at a time). To
    merge is to stack the rows of two states. Exact for up to q blocks.

    Parameters
    ----------
    n_modes : int
    window : array (length,), float
        What values of a block are multiplied by.
    frequencies : array (F,), int
        Numbers of the Fourier coefficients, from 0 to length // 2.
    step : float
        Time between two fields.
    mean : array (d,), optional
        What is subtracted; without it, each block's own mean, if ``center``.
    center : bool
    oversampling : int
        Further directions to keep.

    Notes
    -----
    A block costs O(length d log(length)) operations, and 8 F d (q + B) (q + B) / B in batches of B. State: 8 F q d
    bytes for float32.

    Results of ``finish``: ``modes`` (F, k', d), complex, orthonormal; ``energy`` (F, k') and ``total`` (F,), float64:
    one-sided densities of variance along each mode, and of all. k' = min(n_modes, d, blocks).
    """

    n_modes: int
    window: Array
    frequencies: Array
    step: float = 1.0
    mean: Array | None = None
    center: bool = False
    oversampling: int = 10

    mergeable = True

    def __post_init__(self) -> None:
        check_count("n_modes", self.n_modes, "modes")
        check_count("oversampling", self.oversampling, "further directions", least=0)

    def _shape(self, n_features: int) -> tuple[int, int, int]:
        d = n_features // len(self.window)
        return len(self.frequencies), min(self.n_modes + self.oversampling, d), d

    def _layout(self, n_features: int, dtype: DTypeLike) -> Layout:
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
        """Return the Fourier coefficients (F, n, d) of blocks, whose squares are one-sided densities."""
        n, length = len(batch), len(self.window)
        blocks = batch.reshape(n, length, -1)
        d = blocks.shape[2]
        working = np.empty(0, dtype).real.dtype
        weights = (self.window * math.sqrt(self.step / (self.window @ self.window))).astype(working)[:, None]
        # All but the mean and the highest frequency of an even length stand for their negative, too.
        twice = (self.frequencies > 0) & (2 * self.frequencies != length)
        scale = np.where(twice, math.sqrt(2), 1).astype(working)[:, None]
        out = np.empty((len(self.frequencies), n, d), dtype)
        step = max(1, _AT_ONCE // length)
        for i in range(n):
            for start in range(0, d, step):
                columns = slice(start, start + step)
                x = blocks[i, :, columns].astype(working)
                if self.mean is not None:
                    x -= self.mean[columns].astype(working)
                elif self.center:
                    x -= x.mean(axis=0, dtype=np.float64).astype(working)
                out[:, i, columns] = scipy.fft.rfft(x * weights, axis=0)[self.frequencies] * scale
        return out

    def _absorb(self, state: State, f: int, rows: Array) -> float:
        """Add rows^H rows (n, d) of one frequency; return its trace."""
        basis, energy = state.arrays["basis"][f], state.arrays["energy"][f]
        rank = int(np.count_nonzero(energy))
        sizes = np.sqrt(energy[:rank])
        small = np.diag(np.concatenate([energy[:rank], np.zeros(len(rows))])).astype(np.complex128)
        small[rank:, :rank] = (rows @ basis[:rank].conj().T) * sizes
        small[rank:, rank:] = rows @ rows.conj().T
        added = float(np.trace(small[rank:, rank:]).real)
        if not math.isfinite(added):
            raise ValueError("samples are not finite, or too large to square: mask them, or divide them by a constant")
        values, vectors = scipy.linalg.eigh(small, check_finite=False)  # of its lower triangle
        floor = 4 * float(np.finfo(basis.dtype).eps) * float(np.trace(small).real)
        kept = [i for i in range(len(values))[::-1] if values[i] > floor][: len(basis)]
        turn = (vectors[:, kept] / np.sqrt(values[kept])).conj().T
        new = (turn[:, :rank] * sizes).astype(basis.dtype) @ basis[:rank] + turn[:, rank:].astype(basis.dtype) @ rows
        basis[: len(kept)], basis[len(kept) :] = new, 0
        energy[: len(kept)], energy[len(kept) :] = values[kept], 0
        return added

    def merge(self, a: State, b: State) -> State:
        """Return the state of both records together."""
        for f, energy in enumerate(b.arrays["energy"]):
            rank = int(np.count_nonzero(energy))
            basis = b.arrays["basis"][f, :rank]
            self._absorb(a, f, basis * np.sqrt(energy[:rank, None]).astype(basis.real.dtype))
        a.arrays["total"] += b.arrays["total"]
        a.counts["n_samples"] += b.counts["n_samples"]
        return a

    def _finish(self, state: State) -> dict[str, Array]:
        n, k = state.counts["n_samples"], min(self.n_modes, state.arrays["basis"].shape[1], state.counts["n_samples"])
        return {
            "modes": state.arrays["basis"][:, :k].copy(),
            "energy": state.arrays["energy"][:, :k] / n,
            "total": state.arrays["total"] / n,
        }

    def batch_rows(self, dtype: DTypeLike) -> int:
        """Blocks of a batch: neighbors overlap, and are read together."""
        return 4

    def work_bytes(self, n_rows: int, n_features: int, dtype: DTypeLike) -> int:
        """Bytes of temporary arrays: coefficients of a batch, a few of its columns, the stack of one frequency."""
        n_frequencies, q, d = self._shape(n_features)
        itemsize = np.result_type(working_dtype(dtype), np.complex64).itemsize
        stack = (3 * q + n_rows) * d * itemsize + 4 * 16 * (q + n_rows) ** 2
        merged = q * d * itemsize
        return n_frequencies * n_rows * d * itemsize + stack + merged + 4 * _AT_ONCE * itemsize
