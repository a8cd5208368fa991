"""Exact principal components of few samples with many attributes, from the Gram matrix of the samples, in two passes.

The covariance X^T X of centered samples and their Gram matrix X X^T have the same nonzero eigenvalues. For eigenvectors
u of the Gram matrix, the components are X^T u / sqrt(eigenvalue) (Alakkari 2020, section 2.1, dual form; Arora 2015,
section 6.1). `BlockGram` computes the Gram matrix of some attributes of **all** samples, so that each attribute is
centered exactly. The sum over all attributes is the input of `dual_weights`. `DualComponents` is the second pass.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import DTypeLike

from dpca.kernels.algebra import linalg
from dpca.kernels.algebra.bounded_eigh import bounded_eigh
from dpca.kernels.algebra.dtypes import working_dtype
from dpca.kernels.algebra.rounding import gamma, unit_roundoff
from dpca.kernels.algebra.types import Array
from dpca.rules.base.orthonormal import orthonormalize
from dpca.rules.certificates import certificate
from dpca.rules.dual.components import BLOCK_ROWS
from dpca.rules.dual.gram import block_attributes


def dual_weights(gram: Array, n_components: int, dtype: DTypeLike) -> dict[str, Array]:
    """Return the weights of the samples in each component, from their Gram matrix.

    Parameters
    ----------
    gram : array (n, n), float64
        Only the lower triangle is read. The matrix is overwritten.
    n_components : int
        Number of components.
    dtype : dtype
        Dtype of the products.

    Returns
    -------
    dict
        Float64: ``weights`` (k, n), so that components = weights @ (X - mean) for any set of attributes;
        ``explained_variance`` (k,), descending; ``total_variance`` (); ``beyond`` () and ``errors`` (k,), see
        `dpca.kernels.algebra.bounded_eigh`. k is the smaller of n_components and the rank of the samples in the
        precision of the products.
    """
    n = len(gram)
    if n < 2:
        raise ValueError(f"{n} sample(s) have no variance: give at least 2")
    total = float(np.trace(gram))
    precise = working_dtype(dtype) == np.float64
    values, vectors, beyond, errors = bounded_eigh(gram, min(n_components, n), precise=precise)
    # Directions without variance consist of rounding errors and are not orthogonal.
    kept = int(np.count_nonzero(values > 4 * float(np.finfo(working_dtype(dtype)).eps) * total))
    return {
        "weights": vectors[:kept] / np.sqrt(values[:kept, None]),
        "explained_variance": values[:kept] / (n - 1),
        "total_variance": np.asarray(total / (n - 1)),
        "beyond": np.asarray(max(beyond, float(values[kept : kept + 1].sum())) / (n - 1)),
        "errors": errors[:kept] / (n - 1),
    }


def dual_share(
    found: dict[str, Array],
    mean_square: float,
    n_components: int,
    n_attributes: int,
    dtype: DTypeLike,
    *,
    products: DTypeLike,
    deviation: float = 0.0,
) -> float:
    """Return a lower bound on what `DualComponents` captures; see `dpca.rules.certificates.certificate`.

    For centered samples X and eigenvectors U of X X^T, X^T U captures at least tr U^T X X^T U, see (d) there.

    Parameters
    ----------
    found : dict
        Result of `dual_weights`.
    mean_square : float
        Squared length of the mean.
    n_components, n_attributes : int
    dtype, products : dtype
        Dtypes of the components and of the products.
    deviation : float
        Largest deviation of the products of the components from those of orthonormal rows, apart from rounding.
    """
    values, total, beyond = found["explained_variance"], float(found["total_variance"]), float(found["beyond"])
    if not total > 0:
        return 1.0
    n, u = found["weights"].shape[1], unit_roundoff(products)
    g = gamma(block_attributes(products) + 6, u) + gamma(n_attributes + 6, unit_roundoff(np.float64))
    # Attributes are centered by a rounded mean.
    error = g * total / (1 - g) + n / (n - 1) * u**2 * mean_square
    each = gamma(min(n, BLOCK_ROWS) + 8, u) + unit_roundoff(dtype) + gamma(n + 8, unit_roundoff(np.float64))
    # `dual_basis` leaves rows that are orthonormal up to the rounding error of the dtype.
    distance = each * math.sqrt(float((total / values).sum())) + len(values) * (unit_roundoff(dtype) + deviation)
    lost = (n_components - len(values)) * (beyond + error)
    return certificate.exact_share(values, beyond, found["errors"] + error, dtype, distance=distance, lost=lost)


def orthonormal_weights(weights: Array, inner: Array) -> Array:
    """Return the weights of orthonormal components, from those of `DualComponents` and the products of its rows.

    Components are linear in their weights: with the Cholesky factor L of the products, the weights are L^-1 weights.

    Parameters
    ----------
    weights : array (k, n_samples)
    inner : array (k, k)

    Raises
    ------
    ValueError
        If the components are not independent in the precision of the products.
    """
    try:
        factor = np.linalg.cholesky(inner)
    except np.linalg.LinAlgError:
        raise ValueError(
            f"the last of {len(weights)} components consist of rounding errors: use a smaller n_components"
        ) from None
    solved: Array = np.linalg.solve(factor, weights)
    return solved


def dual_basis(image: Array, n_components: int, inner: Array) -> Array:
    """Return orthonormal components from all attributes of the results of `DualComponents`.

    Parameters
    ----------
    image : array (k, d)
        May be overwritten.
    n_components : int
        Number of rows, at least k. Rows beyond the rank of the samples complete the orthonormal basis and capture
        nothing.
    inner : array (k, k)
        The sum of these results of all blocks of attributes.

    Returns
    -------
    array (n_components, d) of the same dtype. If all rows are orthonormal already up to the rounding error of this
    dtype, only signs change. Otherwise it costs n_components^2 d operations and an array of its size, or four if the
    basis must be completed.
    """
    missing = n_components - len(image)
    if missing:
        image = np.concatenate([image, np.zeros((missing, image.shape[1]), image.dtype)])
    if missing or np.abs(inner - np.eye(len(image))).max() > unit_roundoff(image.dtype):
        image = orthonormalize(image)
    for i in range(len(image)):  # one by one, which takes less memory
        linalg.fix_signs(image[i : i + 1])
    return image
