"""One pass that multiplies given vectors by the covariance of a stream, the step of every iterative solver."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

import numpy as np
import scipy.linalg
from numpy.typing import DTypeLike

from dpca.kernels.algebra import linalg
from dpca.kernels.algebra.dtypes import working_dtype
from dpca.kernels.algebra.rounding import eigen_error, unit_roundoff
from dpca.kernels.algebra.types import Array, Region, blocks
from dpca.rules.base.orthonormal import gram, multiply
from dpca.rules.base.rule import Rule
from dpca.rules.base.state import State, StateLayout
from dpca.rules.certificates import certificate
from dpca.rules.covariance.measured import (
    BLOCK_ROWS,
    PassErrors,
    next_iterate,
    rayleigh_ritz,
    relative_errors,
    singular_values,
)
from dpca.rules.incremental.nystrom import COLUMNS

# Largest number of bytes of a batch, and fewest rows that pay for adding a product of all columns.
_BATCH_BYTES, _FEWEST_ROWS = 2**26, 64
# Samples per group: the products of residuals are computed within a group.
_GROUP = 128


@dataclass(frozen=True, eq=False)
class CovarianceProduct(Rule):
    """Multiply rows V (k, d) by the covariance C of a stream without forming C.

    sum y^T (x - mean) with y = (x - mean) V^T is (n - 1) V C. This is a sum over samples: states can be merged, and the
    order of samples does not matter.

    Parameters
    ----------
    components : array (k, d)
        The rows V.
    mean : array (d,), float64
        Mean of the samples, exact or approximate. The remaining difference is subtracted at the end.
    center : bool
        Whether the covariance is about the mean.

    Results of ``finish``, float64: ``mean`` (d,), ``product`` V C (k, d), ``total_variance`` (). Costs 4 n d k
    operations; state k d numbers.
    """

    components: Array
    mean: Array
    center: bool = True

    mergeable = True
    least_samples = 2
    by_attribute: ClassVar[Sequence[str]] = ("image", "sum")
    #: Bases in float64 that ``finish`` holds at a time, besides the state.
    _n_bases: ClassVar[int] = 6

    def of_region(self, sample_shape: Sequence[int], region: Region) -> CovarianceProduct:
        """Return the rule for the attributes of a region of samples."""
        box, rows = tuple(slice(a, b) for a, b in region), len(self.components)
        components = self.components.reshape(rows, *sample_shape)[(slice(None), *box)]
        mean = self.mean.reshape(sample_shape)[box].ravel()
        return replace(self, components=np.ascontiguousarray(components.reshape(rows, -1)), mean=mean)

    def _layout(self, n_features: int, dtype: DTypeLike) -> StateLayout:
        image = (len(self.components), n_features)
        # The sum of squares times the rounding error of the dtype is also a sum over samples.
        numbers = dict.fromkeys(("squares", "rounding"), ((), float))
        return {"image": (image, float), "sum": ((n_features,), float), **numbers}

    def _take(self, state: State, batch: Array) -> None:
        dtype = working_dtype(batch.dtype)
        # BLAS rounds differently for arrays in Fortran order and for unaligned ones, which may arrive on workers.
        mean, components = self.mean.astype(dtype), np.require(self.components, dtype, ["C", "A"])
        over = state.blocks
        for block in (batch[rows] for rows in blocks(len(batch), BLOCK_ROWS)):
            y, ones, squares = np.zeros((len(block), len(components)), dtype), np.ones(len(block), dtype), 0.0
            groups = self._groups(len(block))
            # Columns are centered twice, a block at a time, because this costs less than holding all of them.
            for columns in blocks(batch.shape[1], COLUMNS):
                x = self._centered(block[:, columns], mean[columns])
                y += x @ components[:, columns].T
                state.arrays["sum"][columns] += ones @ x
                squares += float(np.einsum("ij,ij->i", x, x, dtype=dtype).sum(dtype=np.float64))
                for rows, products in groups:
                    products += x[rows] @ x[rows].T
            y, total, *sums = over.summed(y.astype(np.float64), np.asarray(squares), *(sums for _, sums in groups))
            y, squares = y.astype(dtype), float(total)
            for columns in blocks(batch.shape[1], COLUMNS):
                state.arrays["image"][:, columns] += y.T @ self._centered(block[:, columns], mean[columns])
            state.arrays["squares"] += squares
            state.arrays["rounding"] += unit_roundoff(dtype) * squares
            state.counts["n_samples"] += len(block)
            for (rows, _), products in zip(groups, sums, strict=True):
                self._bound_outside(state, products, y[rows])

    def _groups(self, n: int) -> list[tuple[slice, Array]]:
        """Return groups of rows of a block, and an array of zeros for the products of the rows of each group."""
        return []

    def _bound_outside(self, state: State, products: Array, y: Array) -> None:
        """Process the products of the centered rows of a group with each other, and their products with components."""

    def _centered(self, part: Array, mean: Array) -> Array:
        x = linalg.scratch("refined", part.shape, mean.dtype)
        return np.subtract(part, mean if self.center else 0, out=x, dtype=mean.dtype)

    def _finish(self, state: State) -> dict[str, Array]:
        mean, product, total = self._product(state)
        return {"mean": mean, "product": product, "total_variance": np.asarray(total)}

    def _product(self, state: State) -> tuple[Array, Array, float]:
        """Return the exact mean, the product, and the trace of the covariance."""
        n, image, total = state.counts["n_samples"], state.arrays["image"], state.arrays["sum"]
        squares = float(state.arrays["squares"])
        mean = np.array(self.mean)
        if self.center:
            along, own = state.blocks.summed(gram(self.components, total[None])[:, 0], np.asarray(total @ total))
            for columns in blocks(len(total), COLUMNS):
                image[:, columns] -= np.outer(along, total[columns] / n)
            squares -= float(own) / n
            mean += total / n
        image /= n - 1
        return mean, image, max(squares / (n - 1), 0.0)

    def batch_rows(self, dtype: DTypeLike) -> int:
        """Return the rows of a batch of at most 64 MiB, but enough rows to pay for adding their product."""
        row_bytes = int(self.components.shape[1]) * np.dtype(dtype).itemsize
        return min(BLOCK_ROWS, max(_FEWEST_ROWS, _BATCH_BYTES // row_bytes))

    def work_bytes(self, n_rows: int, n_features: int, dtype: DTypeLike) -> int:
        """Return the bytes of temporary arrays: a block of columns, the components, and bases in ``finish``."""
        k, itemsize, columns = len(self.components), working_dtype(dtype).itemsize, min(n_features, COLUMNS)
        product = (min(n_rows, BLOCK_ROWS) * (columns + k) + k * (columns + n_features)) * itemsize
        return product + 8 * self._n_bases * k * n_features


@dataclass(frozen=True, eq=False)
class Refinement(CovarianceProduct):
    """Multiply components V (k, d) by the covariance C of a stream: one step of orthogonal iteration.

    Alakkari 2020, section 2.2.1, and section 3.4.5 for a second pass; Arora 2015, section 5.3. The product of V C with
    V^T yields the Rayleigh-Ritz values of V, exact up to rounding error, and the residuals C v - lambda v. An
    orthonormal basis of V C is the next iterate. It captures at least as much variance.

    Parameters
    ----------
    components : array (k, d), orthonormal rows
    mean, center
        See `CovarianceProduct`.

    Results of ``finish``: ``mean``, ``components`` (the next iterate, in the order of its singular values),
    ``explained_variance`` (k,) of the given components, ``residual_norms`` (k,) and ``total_variance`` ().
    """

    def _finish(self, state: State) -> dict[str, Array]:
        errors = PassErrors.of(state, self.components)
        mean, product, total = self._product(state)
        given = self.components.astype(np.float64)
        skew = float(np.linalg.norm(gram(given) - np.eye(len(given))))
        values, given, product, _ = rayleigh_ritz(given, product)
        residual = np.linalg.norm(product - values[:, None] * given, axis=1)
        rows = next_iterate(product, given)
        captured, total = float(values.sum()), max(total, float(values.sum()))
        # The only known bound on the best components is the total variance.
        each, k = errors.rows.rows(errors.spread), len(given)
        slack = math.sqrt(k) * float(np.linalg.norm(each)) + 2 * skew * captured
        moved = math.sqrt(2 * k) * unit_roundoff(self.components.dtype) * total
        bound = certificate.share(captured - slack, total - captured + errors.total + slack + moved)
        return {
            "mean": mean,
            "components": linalg.fix_signs(rows.astype(self.components.dtype)),
            "explained_variance": values,
            "residual_norms": residual,
            "total_variance": np.asarray(total),
            "captured_bound": np.asarray(bound),
        }


@dataclass(frozen=True, eq=False, kw_only=True)
class RayleighRitz(CovarianceProduct):
    """Rayleigh-Ritz on a basis V (q, d), for the ``n_components`` leading directions in its span.

    Alakkari 2020, section 2.2.1; Parlett 1998, section 11.3. The returned components have exactly the returned
    variances. The components of `Refinement`, in contrast, are one multiplication ahead of its measured variances.

    Let R = C V^T - V^T diag(values). In a basis that begins with V, the covariance is [[diag(values), R^T], [R, F]]. F
    is positive semi-definite, and its trace is the variance that V does not capture. The sum of the k largest
    eigenvalues exceeds neither the total variance nor

        max(v_1 + ... + v_k, v_1 + ... + v_(k-1) + trace F) + (the k largest singular values of R)

    (Ky Fan's inequality for the sum of the block-diagonal and the off-diagonal part).

    Parameters
    ----------
    components : array (q, d), orthonormal rows
    mean, center
        See `CovarianceProduct`.
    n_components : int
        Number of leading directions k, at most q.
    outside : float
        Known upper bound on the largest eigenvalue of F, if any. The trace of F is another bound. The pass measures a
        third one: F is a sum over groups of at most 128 samples. The largest eigenvalue of each group is that of the
        products of its residuals, and the largest eigenvalue of a sum is at most the sum of the largest ones. The sum
        of the k largest eigenvalues is then at most that of [[diag(values), S], [S, outside I]] with S^2 = R^T R. If V
        is nearly invariant and ``outside`` is smaller than v_k, this exceeds v_1 + ... + v_k only by squares of R
        (Parlett 1998, chapter 11).

    Results of ``finish``, float64: ``mean``; ``components`` (q, d), the Ritz vectors; ``product`` (q, d), the Ritz
    vectors times the covariance; ``explained_variance`` (q,), descending; ``residual_norms`` (q,); ``total_variance``
    (); ``coupling`` (), the sum of the singular values of the residuals of the k leading directions. Up to rounding
    error, their captured variance differs by at most ``coupling`` from the sum of some k eigenvalues. Further results
    are the input of the certificates of `dpca.rules.covariance.measured`, including rounding errors.
    """

    n_components: int
    outside: float = math.inf

    def __post_init__(self) -> None:
        if not 1 <= self.n_components <= len(self.components):
            raise ValueError(
                f"n_components is {self.n_components}, but the basis has {len(self.components)} rows: give 1 to "
                f"{len(self.components)}"
            )

    spreadable: ClassVar[bool] = True
    _n_bases: ClassVar[int] = 3

    @property
    def results_by_attribute(self) -> Sequence[str]:
        """Names of the results with attributes along the last axis."""
        return ("components", "mean", "product")

    def _layout(self, n_features: int, dtype: DTypeLike) -> StateLayout:
        return {**super()._layout(n_features, dtype), "outside": ((), float)}

    def _groups(self, n: int) -> list[tuple[slice, Array]]:
        edges = np.linspace(0, n, -(-n // _GROUP) + 1).astype(int)
        return [(slice(a, b), np.zeros((b - a, b - a))) for a, b in itertools.pairwise(edges)]

    def _bound_outside(self, state: State, products: Array, y: Array) -> None:
        trace, size = float(np.trace(products)), math.sqrt(float(np.vdot(products, products)))
        over = state.blocks
        d = over.whole(self.components.shape[1])
        mapped, _, squared = relative_errors(d, len(products), unit_roundoff(y.dtype))
        off = mapped * math.sqrt(len(self.components))
        y = y.astype(np.float64)
        last = len(products) - 1
        (largest,) = over.once(partial(scipy.linalg.eigvalsh, products - y @ y.T, subset_by_index=[last, last]))
        rounding = squared * trace + (2 * math.sqrt(size * trace) + off * trace) * off
        state.arrays["outside"] += max(float(largest), 0.0) + rounding + eigen_error(last + 1, trace)

    def _finish(self, state: State) -> dict[str, Array]:
        n, k, over = state.counts["n_samples"], self.n_components, state.blocks
        given, pass_errors = self.components.astype(np.float64), PassErrors.of(state, self.components)
        seen = float(state.arrays["outside"]) / (n - 1)
        mean, product, total = self._product(state)
        # Orthonormalize the rows in float64, because they are only orthonormal in float32. Transform the products, too.
        lower = over.once(partial(np.linalg.cholesky, gram(given, over=over)))
        skew = float(np.linalg.norm(lower @ lower.T - np.eye(len(given))))
        inverse = scipy.linalg.solve_triangular(lower, np.eye(len(lower)), lower=True)
        given, product = (multiply(inverse, rows, rows) for rows in (given, product))
        values, rows, product, turn = rayleigh_ritz(given, product, over)
        inner, products = gram(product, rows, over), np.zeros_like(lower)
        for columns in blocks(rows.shape[1], COLUMNS):
            residual = product[:, columns] - inner @ rows[:, columns]
            products += residual @ residual.T
        (products,) = over.summed(products)
        squares, turn_root = scipy.linalg.eigh(products)
        root = (turn_root * np.sqrt(np.maximum(squares, 0))) @ turn_root.T
        total = max(total, float(values.sum()))
        lapack = math.sqrt(eigen_error(len(values), float(squares[-1])))
        errors = pass_errors.rows.turned((1 + 2 * skew) * turn)
        errors = errors._replace(added=errors.added + lapack)
        left = total - float(values.sum()) + pass_errors.total + float(errors.rows(pass_errors.spread).sum())
        outside = min(self.outside, left, seen + 2 * skew * pass_errors.spread + pass_errors.total)
        return {
            "mean": mean,
            "components": rows,
            "product": product,
            "explained_variance": values,
            "residual_norms": np.sqrt(np.maximum(products.diagonal(), 0)),
            "total_variance": np.asarray(total),
            "coupling": np.asarray(singular_values(products[:k, :k]).sum()),
            "inner": inner,
            "root": root,
            "projected": errors.projected,
            "added": errors.added,
            "shifted": np.asarray(errors.shifted),
            "outside": np.asarray(outside),
            "left": np.asarray(left),
        }

    def summed_bytes(self, n_rows: int, n_features: int) -> int:
        """Return the bytes of sums over blocks of attributes: products with the basis, and those within groups."""
        q, n = len(self.components), min(n_rows, BLOCK_ROWS)
        return 8 * max(n * (q + _GROUP), q * q)

    def result_bytes(self, n_features: int, dtype: DTypeLike) -> int:
        """Return the bytes of a result."""
        q = len(self.components)
        return 8 * (n_features * (2 * q + 1) + 2 * q * (q + 3))


def refinement(found: dict[str, Array], components: Array, mean: Array, center: bool) -> CovarianceProduct:
    """Return the rule of the next pass, from the result ``found`` of a pass: for all its directions, if it has them."""
    if "directions" not in found:
        return Refinement(components, mean, center)
    outside = float(found["outside"])
    return RayleighRitz(found["directions"], mean, center, n_components=len(components), outside=outside)
