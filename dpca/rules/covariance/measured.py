"""Evaluation of a Rayleigh-Ritz pass: the next iterate, and proven bounds on the captured variance."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
import scipy.linalg
from numpy.typing import DTypeLike

from dpca.kernels.algebra.rounding import gamma, unit_roundoff
from dpca.kernels.algebra.types import Array
from dpca.rules.base.orthonormal import gram, multiply, orthonormalize
from dpca.rules.base.rule import Wrapper
from dpca.rules.base.state import ALL, AttributeBlocks, State
from dpca.rules.base.turning import fix_signs
from dpca.rules.certificates import certificate
from dpca.rules.incremental.nystrom import COLUMNS

#: Samples of one product.
BLOCK_ROWS = 1024
# Variances below this share of the largest are rounding errors.
_SMALLEST = 1e-12
# Arrays of a result that only `refined` requires. It removes them, because some are as large as all directions.
_MEASURED = ("product", "inner", "root", "projected", "added", "shifted", "left")
# Bound on the error of a product that underflows, in any dtype.
_SMALLEST_NORMAL = float(np.finfo(np.float32).tiny)


def refined(found: dict[str, Array], k: int, dtype: DTypeLike, over: AttributeBlocks = ALL) -> dict[str, Array]:
    """Return the components of the next iterate, from the result of `RayleighRitz`.

    A result of `Refinement` already has them and is returned as it is.

    Let V be Ritz vectors with values T and products V C. Rayleigh-Ritz on the span of C^(1/2) V needs no further pass:
    A = C^(1/2) V^T T^(-1/2) has orthonormal columns, and A^T C A = T^(-1/2) V C^2 V^T T^(-1/2). Its values are at most
    the eigenvalues of C, and at least those of V. The components U are C^(1/2) times its vectors. They capture at least
    the sum of the values by the Cauchy-Schwarz inequality: a^T C^2 a >= (a^T C a)^2 for |a| = 1.

    Parameters
    ----------
    k : int
        Number of components.
    dtype : dtype
        That of the components.
    over : AttributeBlocks
        The blocks of attributes of the result.

    Returns
    -------
    dict
        ``components`` (k, d); ``explained_variance`` (k,), the values above; ``directions`` (q, d), the whole iterate,
        with the components first; ``outside``, infinity, because the variance outside of the directions is unknown.
    """
    if "product" not in found:
        return found
    values = found["explained_variance"]
    better, rows, turn = half_step(values, found["components"], found["product"], over)
    bound = _refined_bound(found, turn, better, k, dtype) if len(turn) else measured_bound(found, k, dtype)
    components = rows[:k].astype(dtype)
    fix_signs(components, over)
    kept = {name: array for name, array in found.items() if name not in _MEASURED}
    return {
        **kept,
        "explained_variance": better[:k],
        "residual_norms": found["residual_norms"][:k],
        "components": components,
        "directions": rows.astype(dtype),
        "outside": np.asarray(math.inf),
        "captured_bound": np.asarray(bound),
    }


@dataclass(frozen=True)
class NextIterate(Wrapper):
    """`RayleighRitz` with the result of `refined`, so that blocks of attributes return no products.

    Parameters
    ----------
    rule : RayleighRitz
    """

    @property
    def results_by_attribute(self) -> Sequence[str]:
        """Names of the results with attributes along the last axis."""
        return ("components", "mean", "directions")

    def finish(self, state: State) -> dict[str, Array]:
        """Return the next iterate."""
        blocks = state.blocks
        return refined(self.rule.finish(state), self.rule.n_components, self.rule.components.dtype, blocks)

    def result_bytes(self, n_features: int, dtype: DTypeLike) -> int:
        """Return the bytes of a result."""
        q, k, itemsize = len(self.rule.components), self.rule.n_components, self.rule.components.dtype.itemsize
        return n_features * ((q + k) * itemsize + 8) + 16 * q


def half_step(values: Array, rows: Array, product: Array, over: AttributeBlocks = ALL) -> tuple[Array, Array, Array]:
    """Make the step of `refined`, and return the new values (q,), rows (q, d), and the rotation ``turn`` (q', q').

    The first q' rows are the normalized turn V C, for the q' leading Ritz vectors V with positive variance. ``values``
    are the squared lengths of turn V C. The product is overwritten.
    """
    known = int(np.count_nonzero(values > _SMALLEST * values[0])) if values[0] > 0 else 0
    better = np.zeros(len(values))
    if not known:
        return better, rows, np.empty((0, 0))
    roots = np.sqrt(values[:known])
    scaled = product[:known]
    scaled /= roots[:, None]
    squares, turn = over.once(partial(scipy.linalg.eigh, gram(scaled, over=over)))
    better[:known] = np.maximum(squares[::-1], 0)
    turned = multiply(turn[:, ::-1].T, scaled, scaled)
    # Rows without variance do not change.
    whole = turned if known == len(values) else np.concatenate([turned, rows[: len(values) - known]])
    return better, orthonormalize(whole, over), turn[:, ::-1].T / roots


def measured_bound(found: dict[str, Array], k: int, dtype: DTypeLike) -> float:
    """Return a lower bound on the captured share of the leading k Ritz vectors, stored in a dtype."""
    captured, missed, largest, _ = certified_share(found, k)
    return certificate.share(captured, certificate.moved(missed, largest, certificate.stored(k, dtype)))


def _refined_bound(found: dict[str, Array], turn: Array, better: Array, k: int, dtype: DTypeLike) -> float:
    """Return a lower bound on the captured share of turn (m, q') V C, for the q' leading Ritz vectors V.

    The bound is that of turn V, because turn V C captures at least as much.
    """
    j, q = min(k, len(turn)), len(better)
    rows = np.zeros((j, q))
    rows[:, : turn.shape[1]] = turn[:j]
    whole = scipy.linalg.qr(rows.T)[0].T
    captured, missed, largest, above = certified_share(found, j, whole)
    # The rows of turn V C are orthogonal, with squared lengths ``better``.
    errors = np.abs(rows) @ errors_of(found).rows(largest) / np.sqrt(np.maximum(better[:j], np.finfo(float).tiny))
    distance = float(np.linalg.norm(errors)) + certificate.stored(k, dtype)
    # Rows without variance may miss the largest variance outside.
    return certificate.share(captured, certificate.moved(missed + (k - j) * above, largest, distance))


def rayleigh_ritz(given: Array, product: Array, over: AttributeBlocks = ALL) -> tuple[Array, Array, Array, Array]:
    """Return the Ritz values of orthonormal rows, descending, the Ritz vectors, and their products with the covariance.

    The last result is the rotation of the rows to the Ritz vectors. The arrays of rows and products are overwritten.
    """
    values, turn = over.once(partial(scipy.linalg.eigh, gram(given, product, over)))
    values, turn = np.maximum(values[::-1], 0), turn[:, ::-1].T
    return values, multiply(turn, given, given), multiply(turn, product, product), turn


class PassErrors(NamedTuple):
    """Bounds on the rounding errors of a pass, in units of the covariance; see `dpca.rules.certificates`."""

    rows: certificate.Errors
    """Errors of the products with the given rows."""
    spread: float
    """Sum of squares of the shifted samples."""
    total: float
    """Error of the total variance."""

    @classmethod
    def of(cls, state: State, components: Array) -> PassErrors:
        """Return the error bounds for the state of a `CovarianceProduct` before ``finish``, and its rows."""
        n, image, squares = state.counts["n_samples"], state.arrays["image"], float(state.arrays["squares"])
        over, total = state.blocks, state.arrays["sum"]
        d = over.whole(image.shape[1])
        u = float(state.arrays["rounding"]) / squares if squares else 0.0
        exact = gamma(n + d + 8, unit_roundoff(np.float64))
        mapped, added, squared = (error + exact for error in relative_errors(d, n, u))
        floor = n * d * _SMALLEST_NORMAL if squares else 0.0
        spread = (squares * (1 + squared) + floor) / (n - 1)
        along, own = over.summed(np.einsum("ij,ij->i", image, components, dtype=np.float64), np.asarray(total @ total))
        root, shifted, along = math.sqrt(spread), float(own) / (n * (n - 1)), along / (n - 1)
        lengths = np.sqrt(np.maximum(along, 0) + 2 * (mapped + added) * spread)
        centered = (2 * math.sqrt(shifted) + added * root) * added * root + floor
        rows = certificate.Errors(np.full(len(lengths), mapped * root), added * root * lengths + centered, shifted)
        return cls(rows, spread, squared * spread + centered)


def relative_errors(d: int, n: int, u: float) -> tuple[float, float, float]:
    """Return relative errors, in blocks, of a projection of d values, of a sum over n rows, and of one over columns."""
    width = min(d, COLUMNS)
    mapped, added, squared = (gamma(m + 6, u) for m in (width + -(-d // COLUMNS), min(n, BLOCK_ROWS), width))
    return mapped, added, squared


def certified_share(found: dict[str, Array], k: int, turn: Array | None = None) -> tuple[float, float, float, float]:
    """Return bounds for k directions: captured variance, missed variance, largest variance, largest one outside.

    The captured variance is a lower bound, all others are upper bounds. The directions are those of `RayleighRitz`, or
    the leading rows of the orthonormal ``turn`` (q, q) times these.
    """
    inner, root, errors = found["inner"], found["root"], errors_of(found)
    if turn is not None:
        inner, root, errors = turn @ inner @ turn.T, turn @ root @ turn.T, errors.turned(turn)
    missed, largest, above = certificate.missed(inner, root, k, float(found["outside"]), errors)
    values, captured, left = np.linalg.eigvalsh(inner)[::-1], float(np.trace(inner[:k, :k])), float(found["left"])
    each = errors.rows(largest)
    off = math.sqrt(k) * float(np.linalg.norm(each[:k]))
    # Two more bounds on the optimum: all variance outside lies in one direction; and the total variance.
    alone = max(float(values[:k].sum()), float(values[: k - 1].sum()) + left)
    alone += float(np.sort(np.abs(np.linalg.eigvalsh(root)))[::-1][:k].sum())
    best = min(alone + 2 * math.sqrt(k) * float(np.linalg.norm(each)), left + float(values.sum()))
    return captured - off, min(missed, max(best - captured, 0.0) + off), largest, above


def errors_of(found: dict[str, Array]) -> certificate.Errors:
    """Return the errors of the products in a result of `RayleighRitz`."""
    return certificate.Errors(found["projected"], found["added"], float(found["shifted"]))


def next_iterate(product: Array, given: Array) -> Array:
    """Return an orthonormal basis of a product, ordered by singular values. Rows without variance do not change."""
    _, values, rows = scipy.linalg.svd(product, full_matrices=False)
    found = values > values[0] * 1e-12
    if found.all() or not values[0]:
        return rows if values[0] else given
    q: Array = scipy.linalg.qr(np.concatenate([rows[found], given]).T, mode="economic")[0].T
    q[: found.sum()] = rows[found]
    return q[: len(given)]


def singular_values(products: Array) -> Array:
    """Return the singular values of rows, descending, from their Gram matrix."""
    return np.sqrt(np.maximum(scipy.linalg.eigvalsh(products)[::-1], 0))
