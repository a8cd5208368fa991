"""What a pass has measured of a basis: Rayleigh-Ritz, the step after it, and what both are certain to capture."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import scipy.linalg
from numpy.typing import DTypeLike

from dpca.kernels import linalg
from dpca.kernels.rounding import gamma, unit
from dpca.kernels.types import Array
from dpca.rules import certificate
from dpca.rules.nystrom import COLUMNS
from dpca.rules.orthonormal import gram, orthonormalize
from dpca.rules.state import State

#: Samples of one product.
BLOCK_ROWS = 1024
# Variances below this share of the largest are rounding.
_SMALLEST = 1e-12
# What `refined` needs of a result, as large as all directions, or of no use beside it.
_MEASURED = ("product", "inner", "root", "projected", "added", "shifted", "left")
# No product that underflows is off by more in any type.
_SMALLEST_NORMAL = float(np.finfo(np.float32).tiny)


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
    captured, missed, largest, _ = certified_share(found, k)
    return certificate.share(captured, certificate.moved(missed, largest, certificate.stored(k, dtype)))


def optimum(found: dict[str, Array], k: int) -> float:
    """Return what the best k components capture at most, from the result of `RayleighRitz`."""
    _, missed, largest, _ = certified_share(found, k)
    off = math.sqrt(k) * float(np.linalg.norm(errors_of(found).rows(largest)[:k]))
    return float(found["explained_variance"][:k].sum()) + missed + off


def _refined_bound(found: dict[str, Array], turn: Array, better: Array, k: int, dtype: DTypeLike) -> float:
    """Return the least share that turn (m, q') V C captures, V the leading q' Ritz vectors: more than turn V does."""
    j, q = min(k, len(turn)), len(better)
    rows = np.zeros((j, q))
    rows[:, : turn.shape[1]] = turn[:j]
    whole = scipy.linalg.qr(rows.T)[0].T
    captured, missed, largest, above = certified_share(found, j, whole)
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


class PassErrors(NamedTuple):
    """What a pass rounds at most, in units of the covariance; see `dpca.rules.certificate`."""

    rows: certificate.Errors
    """Of the products with the given rows."""
    spread: float
    """Sum of squares of the samples less what was subtracted."""
    total: float
    """Error of the total variance."""

    @classmethod
    def of(cls, state: State, components: Array) -> PassErrors:
        """Return those of the state of a `CovarianceProduct`, before it is finished, and its rows."""
        n, image, squares = state.counts["n_samples"], state.arrays["image"], float(state.arrays["squares"])
        d, total = image.shape[1], state.arrays["sum"]
        u = float(state.arrays["rounding"]) / squares if squares else 0.0
        exact = gamma(n + d + 8, unit(np.float64))
        mapped, added, squared = (error + exact for error in relative_errors(d, n, u))
        floor = n * d * _SMALLEST_NORMAL if squares else 0.0
        spread = (squares * (1 + squared) + floor) / (n - 1)
        root, shifted = math.sqrt(spread), float(total @ total) / (n * (n - 1))
        along = np.einsum("ij,ij->i", image, components, dtype=np.float64) / (n - 1)
        lengths = np.sqrt(np.maximum(along, 0) + 2 * (mapped + added) * spread)
        centered = (2 * math.sqrt(shifted) + added * root) * added * root + floor
        rows = certificate.Errors(np.full(len(lengths), mapped * root), added * root * lengths + centered, shifted)
        return cls(rows, spread, squared * spread + centered)


def relative_errors(d: int, n: int, u: float) -> tuple[float, float, float]:
    """Return relative errors of a projection of d values, of a sum over n rows, and of one over columns, in blocks."""
    width = min(d, COLUMNS)
    mapped, added, squared = (gamma(m + 6, u) for m in (width + -(-d // COLUMNS), min(n, BLOCK_ROWS), width))
    return mapped, added, squared


def certified_share(found: dict[str, Array], k: int, turn: Array | None = None) -> tuple[float, float, float, float]:
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


def singular_values(products: Array) -> Array:
    """Singular values, descending, of rows whose Gram matrix this is."""
    found: Array = np.sqrt(np.maximum(scipy.linalg.eigvalsh(products)[::-1], 0))
    return found
