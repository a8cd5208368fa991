"""One pass that multiplies given vectors by the covariance of a stream: the step of every iterative solver."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import scipy.linalg
from numpy.typing import DTypeLike

from dpca.kernels import linalg
from dpca.kernels.dtypes import working_dtype
from dpca.kernels.rounding import eigen_error, gamma, unit
from dpca.kernels.types import Array
from dpca.rules import certificate
from dpca.rules.nystrom import COLUMNS, blocks
from dpca.rules.orthonormal import gram, orthonormalize
from dpca.rules.rule import Rule
from dpca.rules.state import Layout, State

_BLOCK_ROWS = 1024
# A batch takes no more bytes than this, and no fewer rows than pay for adding a product of all columns.
_BATCH_BYTES, _FEWEST_ROWS = 2**26, 64
# Samples whose residuals are compared with each other.
_GROUP = 128
# Variances below this share of the largest are rounding.
_SMALLEST = 1e-12
# What `refined` needs of a result, as large as all directions, or of no use beside it.
_MEASURED = ("product", "inner", "root", "projected", "added", "shifted", "left", "optimum")
# No product that underflows is off by more in any type.
_SMALLEST_NORMAL = float(np.finfo(np.float32).tiny)


@dataclass(frozen=True, eq=False)
class CovarianceProduct(Rule):
    """Multiply rows V (k, d) by the covariance C of a stream, which is never formed.

    sum y^T (x - mean), y = (x - mean) V^T, is (n - 1) V C. A sum over samples: it merges, and order does not matter.

    Parameters
    ----------
    components : array (k, d)
        The rows V.
    mean : array (d,), float64
        Mean of the samples, exact or nearly: what is left of it is subtracted at the end.
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

    def _layout(self, n_features: int, dtype: DTypeLike) -> Layout:
        image = (len(self.components), n_features)
        # The sum of squares times the rounding error of its type is a sum over samples, too.
        numbers = dict.fromkeys(("squares", "rounding"), ((), float))
        return {"image": (image, float), "sum": ((n_features,), float), **numbers}

    def _take(self, state: State, batch: Array) -> None:
        dtype = working_dtype(batch.dtype)
        # BLAS rounds otherwise where an array is in Fortran order, or unaligned, as those that were shipped may be.
        mean, components = self.mean.astype(dtype), np.require(self.components, dtype, ["C", "A"])
        for start in range(0, len(batch), _BLOCK_ROWS):
            block = batch[start : start + _BLOCK_ROWS]
            y, ones, squares = np.zeros((len(block), len(components)), dtype), np.ones(len(block), dtype), 0.0
            groups = self._groups(len(block))
            # Centered twice, some columns at a time: that takes less than to hold all of them.
            for columns in blocks(batch.shape[1]):
                x = self._centered(block[:, columns], mean[columns])
                y += x @ components[:, columns].T
                state.arrays["sum"][columns] += ones @ x
                squares += float(np.einsum("ij,ij->i", x, x, dtype=dtype).sum(dtype=np.float64))
                for rows, products in groups:
                    products += x[rows] @ x[rows].T
            for columns in blocks(batch.shape[1]):
                state.arrays["image"][:, columns] += y.T @ self._centered(block[:, columns], mean[columns])
            state.arrays["squares"] += squares
            state.arrays["rounding"] += unit(dtype) * squares
            state.counts["n_samples"] += len(block)
            for rows, products in groups:
                self._look_outside(state, products, y[rows])

    def _groups(self, n: int) -> list[tuple[slice, Array]]:
        """Return rows of a block whose products among themselves are wanted, and zeros in the place of these."""
        return []

    def _look_outside(self, state: State, products: Array, y: Array) -> None:
        """Take in the products of centered rows among themselves, and those with the components."""

    def _centered(self, part: Array, mean: Array) -> Array:
        x = linalg.scratch("refined", part.shape, mean.dtype)
        centered: Array = np.subtract(part, mean if self.center else 0, out=x, dtype=mean.dtype)
        return centered

    def _finish(self, state: State) -> dict[str, Array]:
        mean, product, total = self._product(state)
        return {"mean": mean, "product": product, "total_variance": np.asarray(total)}

    def _product(self, state: State) -> tuple[Array, Array, float]:
        """Exact mean, product and trace of the covariance."""
        n, image, total = state.counts["n_samples"], state.arrays["image"], state.arrays["sum"]
        squares = float(state.arrays["squares"])
        mean = np.array(self.mean)
        if self.center:
            image -= np.outer(self.components.astype(np.float64) @ total, total / n)
            squares -= float(total @ total) / n
            mean += total / n
        image /= n - 1
        return mean, image, max(squares / (n - 1), 0.0)

    def batch_rows(self, dtype: DTypeLike) -> int:
        """Rows of a batch that takes at most 64 MiB, if these are enough to pay for adding their product."""
        row_bytes = int(self.components.shape[1]) * np.dtype(dtype).itemsize
        return min(_BLOCK_ROWS, max(_FEWEST_ROWS, _BATCH_BYTES // row_bytes))

    def work_bytes(self, n_rows: int, n_features: int, dtype: DTypeLike) -> int:
        """Bytes of temporary arrays: a block of some columns, the components, and six bases in ``finish``."""
        k, itemsize, columns = len(self.components), working_dtype(dtype).itemsize, min(n_features, COLUMNS)
        return (min(n_rows, _BLOCK_ROWS) * (columns + k) + k * (columns + n_features)) * itemsize + 48 * k * n_features


@dataclass(frozen=True, eq=False)
class Refinement(CovarianceProduct):
    """Multiply components V (k, d) by the covariance C of a stream: one step of orthogonal iteration.

    Alakkari 2020, section 2.2.1, and as a second pass section 3.4.5; Arora 2015, section 5.3. The product of V C with
    V^T gives the Rayleigh-Ritz values of V, exact up to rounding, and the residuals C v - lambda v; its own orthonormal
    basis is the next iterate, which captures at least as much.

    Parameters
    ----------
    components : array (k, d), orthonormal rows
    mean, center
        As in `CovarianceProduct`.

    Results of ``finish``: ``mean``, ``components`` (the next iterate, ordered by the variances that it was made from),
    ``explained_variance`` (k,) of the components that were given, ``residual_norms`` (k,) and ``total_variance`` ().
    """

    def _finish(self, state: State) -> dict[str, Array]:
        errors = _PassErrors.of(state, self.components)
        mean, product, total = self._product(state)
        given = self.components.astype(np.float64)
        skew = float(np.linalg.norm(gram(given) - np.eye(len(given))))
        values, given, product, _ = rayleigh_ritz(given, product)
        residual = np.linalg.norm(product - values[:, None] * given, axis=1)
        rows = next_iterate(product, given)
        captured, total = float(values.sum()), max(total, float(values.sum()))
        # No more is known of the best components than that they capture no more than all.
        each, k = errors.rows.rows(errors.spread), len(given)
        slack = math.sqrt(k) * float(np.linalg.norm(each)) + 2 * skew * captured
        moved = math.sqrt(2 * k) * unit(self.components.dtype) * total
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
    """Rayleigh-Ritz on a basis V (q, d), of which ``n_components`` directions are wanted.

    Alakkari 2020, section 2.2.1; Parlett 1998, section 11.3. Unlike `Refinement`, whose components are one
    multiplication further than what it measured, what this returns has exactly the variances that it states.

    With R = C V^T - V^T diag(values) the covariance is, in a basis that begins with V, the matrix [[diag(values), R^T],
    [R, F]] where F is positive semi-definite and its trace is what V does not capture. So the k largest eigenvalues
    together exceed neither the total variance nor

        max(v_1 + ... + v_k, v_1 + ... + v_(k-1) + trace F) + (the k largest singular values of R)

    (Ky Fan's inequality for the sum of the block-diagonal and the off-diagonal part).

    Parameters
    ----------
    components : array (q, d), orthonormal rows
    mean, center
        As in `CovarianceProduct`.
    n_components : int
        Directions wanted, at most q.
    outside : float
        Upper bound on the largest eigenvalue of F, where one is known. Another one is its trace, and a third is
        measured here: F is a sum over groups of at most 128 samples, the largest eigenvalue of each group is that of
        the products of its residuals among themselves, and that of a sum is at most their sum. The k largest
        eigenvalues together are then at most those of [[diag(values), S], [S, outside I]] with S^2 = R^T R: where V is
        nearly invariant and ``outside`` smaller than v_k, they exceed v_1 + ... + v_k by squares of R only (Parlett
        1998, chapter 11).

    Results of ``finish``, float64: ``mean``; ``components`` (q, d), the Ritz vectors, and ``product`` (q, d), these
    times the covariance; ``explained_variance`` (q,), descending; ``residual_norms`` (q,); ``total_variance`` ();
    ``coupling`` (), the sum of the singular values of the wanted directions' residuals: by so much at most does their
    captured variance differ from the sum of some k eigenvalues, up to rounding; ``optimum`` (), a bound on the k
    largest eigenvalues together, rounding counted in; and what `measured_bound` and `refined` make a certificate of.
    """

    n_components: int
    outside: float = math.inf

    def __post_init__(self) -> None:
        if not 1 <= self.n_components <= len(self.components):
            raise ValueError(
                f"n_components is {self.n_components} of a basis of {len(self.components)} rows: ask for 1 to that many"
            )

    def _layout(self, n_features: int, dtype: DTypeLike) -> Layout:
        return {**super()._layout(n_features, dtype), "outside": ((), float)}

    def _groups(self, n: int) -> list[tuple[slice, Array]]:
        edges = np.linspace(0, n, -(-n // _GROUP) + 1).astype(int)
        return [(slice(a, b), np.zeros((b - a, b - a))) for a, b in itertools.pairwise(edges)]

    def _look_outside(self, state: State, products: Array, y: Array) -> None:
        trace, size = float(np.trace(products)), math.sqrt(float(np.vdot(products, products)))
        mapped, _, squared = _relative(self.components.shape[1], len(products), unit(y.dtype))
        off = mapped * math.sqrt(len(self.components))
        y = y.astype(np.float64)
        last = len(products) - 1
        (largest,) = scipy.linalg.eigvalsh(products - y @ y.T, subset_by_index=[last, last])
        rounding = squared * trace + (2 * math.sqrt(size * trace) + off * trace) * off
        state.arrays["outside"] += max(float(largest), 0.0) + rounding + eigen_error(last + 1, trace)

    def _finish(self, state: State) -> dict[str, Array]:
        n, k = state.counts["n_samples"], self.n_components
        given, pass_errors = self.components.astype(np.float64), _PassErrors.of(state, self.components)
        seen = float(state.arrays["outside"]) / (n - 1)
        mean, product, total = self._product(state)
        # Rows that were orthonormal in float32 are made so in float64, their products with the covariance likewise.
        lower = np.linalg.cholesky(gram(given))
        skew = float(np.linalg.norm(lower @ lower.T - np.eye(len(given))))
        given, product = (scipy.linalg.solve_triangular(lower, rows, lower=True) for rows in (given, product))
        values, rows, product, turn = rayleigh_ritz(given, product)
        inner = gram(product, rows)
        residual = product - inner @ rows
        products = gram(residual)
        squares, turn_root = scipy.linalg.eigh(products)
        root = (turn_root * np.sqrt(np.maximum(squares, 0))) @ turn_root.T
        total = max(total, float(values.sum()))
        lapack = math.sqrt(eigen_error(len(values), float(squares[-1])))
        errors = pass_errors.rows.turned((1 + 2 * skew) * turn)
        errors = errors._replace(added=errors.added + lapack)
        left = total - float(values.sum()) + pass_errors.total + float(errors.rows(pass_errors.spread).sum())
        outside = min(self.outside, left, seen + 2 * skew * pass_errors.spread + pass_errors.total)
        found = {
            "mean": mean,
            "components": rows,
            "product": product,
            "explained_variance": values,
            "residual_norms": np.sqrt(np.maximum(products.diagonal(), 0)),
            "total_variance": np.asarray(total),
            "coupling": np.asarray(_singular(products[:k, :k]).sum()),
            "inner": inner,
            "root": root,
            "projected": errors.projected,
            "added": errors.added,
            "shifted": np.asarray(errors.shifted),
            "outside": np.asarray(outside),
            "left": np.asarray(left),
        }
        _, missed, largest, _ = _certified(found, k)
        off = math.sqrt(k) * float(np.linalg.norm(errors.rows(largest)[:k]))
        return {**found, "optimum": np.asarray(min(float(values[:k].sum()) + missed + off, total + pass_errors.total))}

    def result_bytes(self, n_features: int, dtype: DTypeLike) -> int:
        """Bytes of a result."""
        q = len(self.components)
        return 8 * (n_features * (2 * q + 1) + 2 * q * (q + 3))


def refinement(found: dict[str, Array], components: Array, mean: Array, center: bool) -> CovarianceProduct:
    """Return the rule of the pass after one that found these: of all directions, where these are among it."""
    if "directions" not in found:
        return Refinement(components, mean, center)
    outside = float(found["outside"])
    return RayleighRitz(found["directions"], mean, center, n_components=len(components), outside=outside)


def refined(found: dict[str, Array], like: Array) -> dict[str, Array]:
    """Return the components of the next iterate, from the result of `RayleighRitz`; that of `Refinement` has them.

    With Ritz vectors V of values T and their products V C, Rayleigh-Ritz on the span of C^(1/2) V takes no further
    pass: with A = C^(1/2) V^T T^(-1/2), whose columns are orthonormal, A^T C A = T^(-1/2) V C^2 V^T T^(-1/2). Its
    values are at most the eigenvalues of C, and at least those of V; by Cauchy and Schwarz the components U, of C^(1/2)
    times its vectors, capture at least their sum: a^T C^2 a >= (a^T C a)^2 for a of length 1.

    Parameters
    ----------
    like : array (k, d)
        As many components, of the dtype that is wanted.

    Returns
    -------
    dict
        ``components`` (k, d); ``explained_variance`` (k,), the values above; ``directions`` (q, d), the whole iterate,
        of which the components are the first, and ``outside``, infinity: nothing is known of what they leave.
    """
    if "product" not in found:
        return found
    k, values = len(like), found["explained_variance"]
    better, rows, turn = half_step(values, found["components"], found["product"])
    bound = _refined_bound(found, turn, better, k, like.dtype) if len(turn) else measured_bound(found, k, like.dtype)
    kept = {name: array for name, array in found.items() if name not in _MEASURED}
    return {
        **kept,
        "explained_variance": better[:k],
        "residual_norms": found["residual_norms"][:k],
        "components": linalg.fix_signs(rows[:k].astype(like.dtype)),
        "directions": rows.astype(like.dtype),
        "outside": np.asarray(math.inf),
        "captured_bound": np.asarray(bound),
    }


def half_step(values: Array, rows: Array, product: Array) -> tuple[Array, Array, Array]:
    """Take the step of `refined`: return the new values (q,), rows (q, d), and the turn (q', q') that made q' of them.

    They are turn V C of the leading q' Ritz vectors V, which have some variance, and have squared lengths ``values``.
    Changes the product.
    """
    known = int(np.count_nonzero(values > _SMALLEST * values[0])) if values[0] > 0 else 0
    better = np.zeros(len(values))
    if not known:
        return better, rows, np.empty((0, 0))
    roots = np.sqrt(values[:known])
    scaled = product[:known]
    scaled /= roots[:, None]
    squares, turn = scipy.linalg.eigh(gram(scaled))
    better[:known] = np.maximum(squares[::-1], 0)
    turned = turn[:, ::-1].T @ scaled
    # Those without variance stay as given.
    rows = orthonormalize(turned if known == len(values) else np.concatenate([turned, rows])[: len(values)])
    return better, rows, turn[:, ::-1].T / roots


def measured_bound(found: dict[str, Array], k: int, dtype: DTypeLike) -> float:
    """Return the least share that the leading k Ritz vectors capture, once they are stored in a type."""
    captured, missed, largest, _ = _certified(found, k)
    return certificate.share(captured, certificate.moved(missed, largest, certificate.stored(k, dtype)))


def _refined_bound(found: dict[str, Array], turn: Array, better: Array, k: int, dtype: DTypeLike) -> float:
    """Return the least share that turn (m, q') V C captures, V the leading q' Ritz vectors: more than turn V does."""
    j, q = min(k, len(turn)), len(better)
    rows = np.zeros((j, q))
    rows[:, : turn.shape[1]] = turn[:j]
    whole = scipy.linalg.qr(rows.T)[0].T
    captured, missed, largest, above = _certified(found, j, whole)
    # Its rows are at right angles to each other, their squared lengths ``better``.
    errors = np.abs(rows) @ errors_of(found).rows(largest) / np.sqrt(np.maximum(better[:j], np.finfo(float).tiny))
    distance = float(np.linalg.norm(errors)) + certificate.stored(k, dtype)
    # What further ones without variance could capture is missed.
    return certificate.share(captured, certificate.moved(missed + (k - j) * above, largest, distance))


def rayleigh_ritz(given: Array, product: Array) -> tuple[Array, Array, Array, Array]:
    """Return the Ritz values of orthonormal rows, descending, the Ritz vectors, and these times the covariance.

    Last what turns the rows into the Ritz vectors.
    """
    values, turn = scipy.linalg.eigh(given @ product.T)
    values, turn = np.maximum(values[::-1], 0), turn[:, ::-1].T
    return values, turn @ given, turn @ product, turn


class _PassErrors(NamedTuple):
    """What a pass rounds at most, in units of the covariance; see `dpca.rules.certificate`."""

    rows: certificate.Errors
    """Of the products with the given rows."""
    spread: float
    """Sum of squares of the samples less what was subtracted."""
    total: float
    """Error of the total variance."""

    @classmethod
    def of(cls, state: State, components: Array) -> _PassErrors:
        n, image, squares = state.counts["n_samples"], state.arrays["image"], float(state.arrays["squares"])
        d, total = image.shape[1], state.arrays["sum"]
        u = float(state.arrays["rounding"]) / squares if squares else 0.0
        exact = gamma(n + d + 8, unit(np.float64))
        mapped, added, squared = (error + exact for error in _relative(d, n, u))
        floor = n * d * _SMALLEST_NORMAL if squares else 0.0
        spread = (squares * (1 + squared) + floor) / (n - 1)
        root, shifted = math.sqrt(spread), float(total @ total) / (n * (n - 1))
        along = np.einsum("ij,ij->i", image, components, dtype=np.float64) / (n - 1)
        lengths = np.sqrt(np.maximum(along, 0) + 2 * (mapped + added) * spread)
        centered = (2 * math.sqrt(shifted) + added * root) * added * root + floor
        rows = certificate.Errors(np.full(len(lengths), mapped * root), added * root * lengths + centered, shifted)
        return cls(rows, spread, squared * spread + centered)


def _relative(d: int, n: int, u: float) -> tuple[float, float, float]:
    """Return relative errors of a projection of d values, of a sum over n rows, and of one over columns, in blocks."""
    width = min(d, COLUMNS)
    mapped, added, squared = (gamma(m + 6, u) for m in (width + -(-d // COLUMNS), min(n, _BLOCK_ROWS), width))
    return mapped, added, squared


def _certified(found: dict[str, Array], k: int, turn: Array | None = None) -> tuple[float, float, float, float]:
    """Return what k directions capture at least and miss at most, and the largest variances: of all, of what is left.

    The directions are those of `RayleighRitz`, or the leading rows of ``turn`` (q, q), orthonormal, times these.
    """
    inner, root, errors = found["inner"], found["root"], errors_of(found)
    if turn is not None:
        inner, root, errors = turn @ inner @ turn.T, turn @ root @ turn.T, errors.turned(turn)
    missed, largest, above = certificate.missed(inner, root, k, float(found["outside"]), errors)
    values, captured, left = np.linalg.eigvalsh(inner)[::-1], float(np.trace(inner[:k, :k])), float(found["left"])
    each = errors.rows(largest)
    off = math.sqrt(k) * float(np.linalg.norm(each[:k]))
    # Where all that is outside lies in one direction; and all that there is.
    alone = max(float(values[:k].sum()), float(values[: k - 1].sum()) + left)
    alone += float(np.sort(np.abs(np.linalg.eigvalsh(root)))[::-1][:k].sum())
    best = min(alone + 2 * math.sqrt(k) * float(np.linalg.norm(each)), left + float(values.sum()))
    return captured - off, min(missed, max(best - captured, 0.0) + off), largest, above


def errors_of(found: dict[str, Array]) -> certificate.Errors:
    """Return the errors of the products in a result of `RayleighRitz`."""
    return certificate.Errors(found["projected"], found["added"], float(found["shifted"]))


def next_iterate(product: Array, given: Array) -> Array:
    """Orthonormal basis of a product, ordered by its singular values; directions without variance stay as given."""
    _, values, rows = scipy.linalg.svd(product, full_matrices=False)
    found = values > values[0] * 1e-12
    if found.all() or not values[0]:
        kept: Array = rows if values[0] else given
        return kept
    q: Array = scipy.linalg.qr(np.concatenate([rows[found], given]).T, mode="economic")[0].T
    q[: found.sum()] = rows[found]
    return q[: len(given)]


def _singular(products: Array) -> Array:
    """Singular values, descending, of rows whose Gram matrix this is."""
    found: Array = np.sqrt(np.maximum(scipy.linalg.eigvalsh(products)[::-1], 0))
    return found
