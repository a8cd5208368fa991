"""Ridge classification from moments in one pass. Cross-validation chooses the penalty."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import DTypeLike
from scipy.linalg import blas, lapack

from dpca.kernels.algebra import linalg
from dpca.kernels.algebra.types import Array, blocks
from dpca.rules.base.codes import DIGITS, read_codes
from dpca.rules.base.rule import DivergedError
from dpca.rules.base.state import State, StateLayout
from dpca.rules.covariance.covariance import BAND_ROWS, QUIET, Covariance
from dpca.rules.covariance.pooled_covariance import SeveralCovariances
from dpca.rules.covariance.shifts import move_shift

# An attribute counts as constant if its standard deviation is below this share of its mean, or of its distance from the
# shift: the differences are then rounding errors of its values, of the shift, or of the sums.
_CONSTANT_VALUES, _CONSTANT_SUMS = 8 * float(np.finfo(np.float64).eps), 1e-7


@dataclass(frozen=True)
class RidgeMoments(SeveralCovariances):
    """Linear classifier by ridge regression on targets of 1 and -1 (Hoerl & Kennard 1970).

    With standardized attributes Z and targets Y, the coefficients are (Z^T Z + alpha I)^-1 Z^T Y. Each sample belongs
    to a fold. The state has the moments of the attributes of each fold, and their sums over each class. The moments of
    all other folds yield the coefficients W and the standardization without a fold. The moments of the fold yield the
    squared error on it,

        sum |y - W^T z|^2 = tr(Y^T Y) - 2 tr(W^T Z^T Y) + tr(W^T Z^T Z W).

    This is the exact error of K-fold cross-validation, for any number of penalties, without a second pass.

    Samples may have weights: all sums are then of their products with the weights, and n is the sum of the weights.

    Batches hold the attributes, with ``weighted`` the weight, then the code (`dpca.rules.base.codes`)
    fold * n_classes + class. Products are those of `dpca.rules.covariance.covariance.Covariance`, which are exact for
    8-bit integers. Other samples should be float64, because a small penalty magnifies rounding errors.

    Parameters
    ----------
    n_classes : int
        At least 2. Two classes have one target, that of the second class.
    alphas : sequence of float
        Penalties, all positive.
    n_folds : int
        Number of folds. Give 1 if there is only one penalty.
    standardize : bool
        Whether attributes are divided by their standard deviations (divisor n). The coefficients of attributes that
        are constant up to rounding are 0 in both cases.
    weighted : bool
        Whether samples have weights.

    Notes
    -----
    Costs O(n d^2) time, and d^3 / 3 for each penalty and fold; 8 d^2 bytes per fold, and 16 d^2 in addition. Results of
    ``finish``, float64: ``coefficients`` (n_targets, d) for attributes before standardization, ``intercept``
    (n_targets,), ``alpha`` () and ``errors`` (n_alphas,), the mean squared errors per target in cross-validation.
    """

    n_classes: int
    alphas: Sequence[float]
    n_folds: int = field(default=1, kw_only=True)
    standardize: bool = field(default=True, kw_only=True)
    weighted: bool = field(default=False, kw_only=True)

    def _layout(self, n_features: int, dtype: DTypeLike) -> StateLayout:
        k, d = self.n_folds, n_features - DIGITS - self.weighted
        return {
            "shift": ((k, d), float),
            "sum": ((k, d), float),
            "cross": ((k, d, d), float),
            "class_sum": ((k, self.n_classes, d), float),
            "class_count": ((k, self.n_classes), np.float64 if self.weighted else np.int64),
        }

    def _take(self, state: State, batch: Array) -> None:
        codes = read_codes(batch[:, -DIGITS:])
        order = np.argsort(codes, kind="stable")
        rows, weights = batch[order, : -DIGITS - self.weighted], None
        if self.weighted:
            weights = batch[order, -DIGITS - 1].astype(np.float64)
        present, starts = np.unique(codes[order], return_index=True)
        ends = np.append(starts, len(rows))
        # These sums take a seventh of the time of reduceat.
        runs = [slice(a, b) for a, b in itertools.pairwise(ends)]
        if weights is None:
            sums = [rows[run].sum(axis=0, dtype=np.float64) for run in runs]
        else:
            sums = [weights[run] @ rows[run] for run in runs]
        of_fold = np.searchsorted(present, np.arange(self.n_folds + 1) * self.n_classes)
        for f, fold in enumerate(self._covariances(state)):
            own = slice(ends[of_fold[f]], ends[of_fold[f + 1]])
            if weights is None:
                Covariance().update(fold, rows[own])
            else:
                Covariance().merge(fold, _weighted_sums(rows[own], weights[own]))
        folds, classes = np.divmod(present, self.n_classes)
        state.arrays["class_sum"][folds, classes] += sums
        counts = np.diff(ends) if weights is None else np.add.reduceat(weights, starts)
        state.arrays["class_count"][folds, classes] += counts
        state.counts["n_samples"] += len(rows)

    def merge(self, a: State, b: State) -> State:
        """Return the state of both streams, with the shifts of the first."""
        merged = super().merge(a, b)
        for name in ("class_sum", "class_count"):
            merged.arrays[name] += b.arrays[name]
        return merged

    def _covariances(self, state: State) -> Iterator[State]:
        counts = state.arrays["class_count"].sum(axis=1)
        for f, n in enumerate(counts.tolist()):
            yield State({name: array[f] for name, array in state.arrays.items()}, {"n_samples": n})

    @QUIET
    def _finish(self, state: State) -> dict[str, Array]:
        folds = [_Moments(**fold.arrays) for fold in self._covariances(state)]
        shift = max(folds, key=lambda fold: fold.n).shift.copy()
        for fold in folds:
            fold.move_to(shift)
        whole = folds[0].plus(folds[1:], 1) if len(folds) > 1 else folds[0]
        squares = linalg.diagonal(whole.cross)
        if not np.isfinite(squares).all():
            raise ValueError("a variance exceeds the range of float64: divide all values by a constant first")
        level = np.sqrt(squares.max() / whole.n) or np.abs(shift).max()
        if 0 < level < np.sqrt(np.finfo(np.float64).tiny):
            raise ValueError(
                f"squares of values of about {level:.0e} underflow in float64: multiply all values by a constant first"
            )
        errors = np.zeros(len(self.alphas))
        best = 0
        if len(folds) > 1 and len(self.alphas) > 1:
            for fold in folds:
                errors += fold.squared_errors(*whole.plus([fold], -1).solutions(self.alphas, self.standardize))
            errors /= whole.n * whole.n_targets
            best = int(errors.argmin())
        alpha = float(self.alphas[best])
        coefficients, intercept = whole.solutions([alpha], self.standardize)
        return {
            "coefficients": coefficients[0],
            "intercept": intercept[0] - coefficients[0] @ shift,
            "alpha": np.asarray(alpha),
            "errors": errors,
        }

    def is_batch_invariant(self, dtype: DTypeLike) -> bool:
        """Return whether sums are exact."""
        return Covariance().is_batch_invariant(dtype)

    def batch_rows(self, dtype: DTypeLike) -> int:
        """Return the best number of samples per update: enough of each fold for a product."""
        return Covariance().batch_rows(dtype) * min(self.n_folds, 4)

    def work_bytes(self, n_rows: int, n_features: int, dtype: DTypeLike) -> int:
        """Return the bytes of temporary arrays: sorted samples, a product, three matrices, and the solutions."""
        d, targets = n_features, self.n_classes * len(self.alphas)
        update = n_rows * d * (np.dtype(dtype).itemsize + 8) + Covariance().work_bytes(n_rows, d, dtype)
        return update + 8 * (3 * d * d + 6 * d * targets + self.n_folds * self.n_classes * d)

    def result_bytes(self, n_features: int, dtype: DTypeLike) -> int:
        """Return the bytes of a result."""
        return 8 * (self.n_classes * (n_features + 1) + len(self.alphas) + 1)


def _weighted_sums(rows: Array, weights: Array) -> State:
    """Return the state of a covariance of rows (n, d) with weights (n,), float64; ``n_samples`` is their sum."""
    total: Any = weights.sum()
    shift = weights @ rows / (total or 1)
    roots = np.sqrt(weights)
    moved = (rows - shift) * roots[:, None]
    return State({"shift": shift, "sum": roots @ moved, "cross": moved.T @ moved}, {"n_samples": total})


@dataclass
class _Moments:
    """Sums over samples, minus a shift: of attributes, of their products, and of the attributes of each class."""

    shift: Array
    sum: Array
    cross: Array
    class_sum: Array
    class_count: Array

    @property
    def n(self) -> float:
        found: float = self.class_count.sum().item()
        return found

    @property
    def n_targets(self) -> int:
        return 1 if len(self.class_count) == 2 else len(self.class_count)

    def plus(self, folds: Sequence[_Moments], sign: int) -> _Moments:
        """Return the moments with those of some folds added, or subtracted. All moments must have one shift."""
        whole = _Moments(**{name: array.copy() for name, array in vars(self).items()})
        for fold in folds:
            for name in ("sum", "cross", "class_sum", "class_count"):
                total = getattr(whole, name)
                total += sign * getattr(fold, name)
        return whole

    def move_to(self, shift: Array) -> None:
        """Change the shift of all sums. Sums over classes have no shift before."""
        self.class_sum -= self.class_count[:, None] * shift
        sums = {"shift": self.shift, "sum": self.sum, "cross": self.cross}
        counts: Any = {"n_samples": self.n}  # a sum of weights is no integer
        move_shift(State(sums, counts), shift)

    def targets(self) -> tuple[Array, Array]:
        """Return sums over samples: of targets (n_targets,), and of targets times attributes (n_targets, d)."""
        some = slice(-self.n_targets, None)
        return 2.0 * self.class_count[some] - self.n, 2 * self.class_sum[some] - self.sum

    def solutions(self, alphas: Sequence[float], standardize: bool) -> tuple[Array, Array]:
        """Return coefficients (n_alphas, n_targets, d) and intercepts (n_alphas, n_targets) for shifted attributes.

        The products are overwritten.
        """
        n, total, cross = self.n or 1, self.sum, self.cross
        targets, products = self.targets()
        squares, mean = linalg.diagonal(cross) / n, total / n
        variances = squares - mean**2
        level = np.maximum(_CONSTANT_VALUES * np.abs(mean + self.shift), _CONSTANT_SUMS * np.sqrt(squares))
        varies = variances > level**2
        # An infinite scale sets all products with a constant attribute to 0, and so its coefficient.
        scale = np.where(varies, np.sqrt(np.where(varies, variances, 1)) if standardize else 1.0, np.inf)
        # In bands of rows of the lower triangle, to avoid a second matrix.
        for band in blocks(len(cross), BAND_ROWS):
            rows = cross[band, : band.stop]
            rows -= np.outer(total[band], mean[: band.stop])
            rows /= scale[band, None]
            rows /= scale[: band.stop]
        gram, right = cross, ((products - np.outer(targets, mean)) / scale).T
        found = []
        for i, alpha in enumerate(alphas, 1):
            # Fortran reads the transpose: our lower triangle is its upper one.
            factor = gram.T if i == len(alphas) else np.array(gram.T, order="F")
            np.einsum("ii->i", factor)[...] += alpha
            factor, wrong = lapack.dpotrf(factor, lower=0, clean=0, overwrite_a=1)
            if wrong:
                raise DivergedError(
                    f"alpha is {alpha:g}, too small compared with the products of these attributes: give a larger alpha"
                )
            solved, _ = lapack.dpotrs(factor, right, lower=0)
            found.append(solved.T / scale)
        coefficients = np.stack(found)
        return coefficients, targets / n - coefficients @ mean

    def squared_errors(self, coefficients: Array, intercepts: Array) -> Array:
        """Return the sums of squared errors (n_alphas,) on these samples."""
        n, total, cross = self.n, self.sum, self.cross
        targets, products = self.targets()
        rows = coefficients.reshape(-1, len(total))
        moved = blas.dsymm(1.0, cross.T, rows.T, lower=0).T.reshape(coefficients.shape)
        squares = (coefficients * moved).sum(axis=(1, 2)) + n * (intercepts**2).sum(axis=1)
        squares += 2 * (intercepts * (coefficients @ total)).sum(axis=1)
        fitted = (coefficients * products).sum(axis=(1, 2)) + intercepts @ targets
        return n * self.n_targets - 2 * fitted + squares
