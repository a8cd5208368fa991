"""Spectral proper orthogonal decomposition (SPOD): a singular value decomposition per frequency, in one pass."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

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
# Attributes of one product of coefficients in complex128.
_COLUMNS = 4096


@dataclass(frozen=True, eq=False)
class Fourier:
    """Fourier coefficients of blocks of successive fields (Towne, Schmidt & Colonius 2018, section 3.2).

    Parameters
    ----------
    window, frequencies, step
        See `SpectralSVD`.
    center : bool
        Subtract the mean of each block.
    """

    window: Array
    frequencies: Array
    step: float
    center: bool

    def rows(self, batch: Array, out: Array, mean: Array | None = None) -> None:
        """Write the coefficients (F, n, d) of blocks (n, length d) into ``out``; their squares are one-sided densities.

        ``mean`` (d,) is subtracted.
        """
        n, length = len(batch), len(self.window)
        fields = batch.reshape(n, length, -1)
        d = fields.shape[2]
        working = np.empty(0, out.dtype).real.dtype
        weights = (self.window * math.sqrt(self.step / (self.window @ self.window))).astype(working)[:, None]
        # All frequencies represent their negative, too, except 0 and the highest one of an even length.
        twice = (self.frequencies > 0) & (2 * self.frequencies != length)
        scale = np.where(twice, math.sqrt(2), 1).astype(working)[:, None]
        for i in range(n):
            for columns in blocks(d, max(1, _AT_ONCE // length)):
                x = fields[i, :, columns].astype(working)
                if mean is not None:
                    x -= mean[columns].astype(working)
                elif self.center:
                    x -= x.mean(axis=0, dtype=np.float64).astype(working)
                out[:, i, columns] = scipy.fft.rfft(x * weights, axis=0)[self.frequencies] * scale

    def dtype(self, dtype: DTypeLike) -> np.dtype[Any]:
        """Return the complex dtype of coefficients of fields of a dtype."""
        return np.result_type(working_dtype(dtype), np.complex64)

    def work_bytes(self, n_features: int, dtype: DTypeLike) -> int:
        """Return the bytes of temporary arrays of `rows`."""
        return 4 * min(n_features, _AT_ONCE) * self.dtype(dtype).itemsize


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

    @property
    def _fourier(self) -> Fourier:
        return Fourier(self.window, self.frequencies, self.step, self.center and self.mean is None)

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
        n_frequencies, _, d = self._shape(batch.shape[1])
        rows = np.empty((n_frequencies, len(batch), d), state.arrays["basis"].dtype)
        self._fourier.rows(batch, rows, self.mean)
        for f, of_one in enumerate(rows):
            state.arrays["total"][f] += self._absorb(state, f, of_one)
        state.counts["n_samples"] += len(batch)

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
            fix_phases(rows)
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
        return n_frequencies * n_rows * d * itemsize + stack + merged + self._fourier.work_bytes(n_features, dtype)


def fix_phases(rows: Array) -> None:
    """Turn complex rows (k, d) in place, so that the largest entry of each is real and positive."""
    largest = np.take_along_axis(rows, np.abs(rows).argmax(axis=1)[:, None], axis=1)
    size = np.abs(largest)
    rows *= np.divide(largest.conj(), size, out=np.ones_like(largest), where=size > 0)


@dataclass(frozen=True, eq=False)
class SpectralGram(Rule):
    """Gram matrices of the Fourier coefficients of all blocks, one for each frequency, over some attributes of a field.

    The sum over all attributes has the nonzero eigenvalues of the cross-spectral density (Towne, Schmidt & Colonius
    2018, section 3.3), see `spectral_weights`. The state holds the coefficients until all blocks have arrived.

    Parameters
    ----------
    fourier : Fourier
    n_blocks : int
        Number of blocks of the whole record.

    Results of ``finish``: ``gram`` (F, n_blocks, n_blocks), complex128. State: 8 F n_blocks d bytes for float32. Costs
    8 F n_blocks^2 operations for each attribute.
    """

    fourier: Fourier
    n_blocks: int

    def _layout(self, n_features: int, dtype: DTypeLike) -> StateLayout:
        shape = len(self.fourier.frequencies), self.n_blocks, n_features // len(self.fourier.window)
        return {"rows": (shape, self.fourier.dtype(dtype))}

    def _take(self, state: State, batch: Array) -> None:
        first = state.counts["n_samples"]
        self.fourier.rows(batch, state.arrays["rows"][:, first : first + len(batch)])
        state.counts["n_samples"] += len(batch)

    def _finish(self, state: State) -> dict[str, Array]:
        rows = state.arrays["rows"]
        gram = np.zeros((len(rows), self.n_blocks, self.n_blocks), np.complex128)
        for one, of_one in zip(gram, rows, strict=True):
            for columns in blocks(rows.shape[2], _COLUMNS):
                some = of_one[:, columns].astype(np.complex128)
                one += some @ some.conj().T
        check_products(np.isfinite(gram).all())
        return {"gram": gram}

    def batch_rows(self, dtype: DTypeLike) -> int:
        """Return the number of blocks of a batch. Neighboring blocks overlap and are read together."""
        return 4

    def result_bytes(self, n_features: int, dtype: DTypeLike) -> int:
        """Return the bytes of a result."""
        return 16 * len(self.fourier.frequencies) * self.n_blocks**2

    def work_bytes(self, n_rows: int, n_features: int, dtype: DTypeLike) -> int:
        """Return the bytes of temporary arrays: of the transform, some attributes, a product, and the result."""
        products = 32 * self.n_blocks * (_COLUMNS + self.n_blocks)
        return self.fourier.work_bytes(n_features, dtype) + products + self.result_bytes(n_features, dtype)


def spectral_weights(gram: Array, n_modes: int, dtype: DTypeLike) -> tuple[Array, Array, Array]:
    """Return the leading eigenvalues of a cross-spectral density from the Gram matrices of blocks.

    Parameters
    ----------
    gram : array (F, n, n), complex128
        Sum of `SpectralGram` over all attributes.
    n_modes : int
    dtype : dtype
        Of the coefficients. Smaller eigenvalues than its rounding errors count as 0.

    Returns
    -------
    weights : array (F, k, n), complex128
        The modes are weights @ coefficients of the blocks; 0 for eigenvalues of 0.
    energy : array (F, k), float64
    total : array (F,), float64
    """
    k, n = min(n_modes, gram.shape[1]), gram.shape[1]
    weights, energy = np.zeros((len(gram), k, n), np.complex128), np.zeros((len(gram), k))
    total = np.einsum("fii->f", gram).real
    for f, one in enumerate(gram):
        values, vectors = scipy.linalg.eigh(one, subset_by_index=(n - k, n - 1), check_finite=False)
        floor = 4 * float(np.finfo(dtype).eps) * float(total[f])
        for i, (value, vector) in enumerate(zip(values[::-1], vectors.T[::-1], strict=True)):
            if value > floor:
                weights[f, i], energy[f, i] = vector.conj() / math.sqrt(value), value
    return weights, energy / n, total / n


@dataclass(frozen=True, eq=False)
class BlockModes(Rule):
    """Modes of some attributes of a field, from the weights of `spectral_weights`; blocks must arrive in order.

    Parameters
    ----------
    fourier : Fourier
    weights : array (F, k, n_blocks), complex

    Results of ``finish``: ``modes`` (F k, d), complex, of any phase. Costs 8 F k operations for each block and
    attribute, and a state of F k d numbers.
    """

    fourier: Fourier
    weights: Array

    def _layout(self, n_features: int, dtype: DTypeLike) -> StateLayout:
        shape = *self.weights.shape[:2], n_features // len(self.fourier.window)
        return {"modes": (shape, self.fourier.dtype(dtype))}

    def _take(self, state: State, batch: Array) -> None:
        first, modes = state.counts["n_samples"], state.arrays["modes"]
        rows = np.empty((len(modes), len(batch), modes.shape[2]), modes.dtype)
        self.fourier.rows(batch, rows)
        for one, of_one, weights in zip(modes, rows, self.weights, strict=True):
            one += weights[:, first : first + len(batch)].astype(modes.dtype) @ of_one
        state.counts["n_samples"] += len(batch)

    def _finish(self, state: State) -> dict[str, Array]:
        modes = state.arrays["modes"]
        return {"modes": modes.reshape(-1, modes.shape[2])}

    def batch_rows(self, dtype: DTypeLike) -> int:
        """Return the number of blocks of a batch. Neighboring blocks overlap and are read together."""
        return 4

    def work_bytes(self, n_rows: int, n_features: int, dtype: DTypeLike) -> int:
        """Return the bytes of temporary arrays: of the transform, its result, and a product."""
        (n_frequencies, k, _), d = self.weights.shape, n_features // len(self.fourier.window)
        rows = (n_frequencies * n_rows + k) * d * self.fourier.dtype(dtype).itemsize
        return rows + self.fourier.work_bytes(n_features, dtype)
