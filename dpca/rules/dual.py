"""Exact principal components of few samples with many attributes, from the Gram matrix of the samples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import DTypeLike

from dpca.kernels import linalg
from dpca.kernels.dtypes import working_dtype
from dpca.rules.state import Array, State

# Attributes of one product: longer sums are added up in float64.
_BLOCK_ATTRIBUTES = 1024


@dataclass(frozen=True)
class Dual:
    """Gram matrix of all samples, added up over blocks of attributes (T 2.1, dual form; L 6.1).

    The covariance X^T X of centered samples and their Gram matrix X X^T share the eigenvalues other than 0; with
    eigenvectors u of the latter the components are X^T u / sqrt(eigenvalue). A block holds some attributes of **all**
    samples, so that each can be centered exactly with its own mean; blocks may come, and states merge, in any order.
    Costs n^2 d operations for n samples, and 8 n^2 bytes of state.

    Parameters
    ----------
    n_components : int
        Components wanted.
    center : bool
        Subtract each attribute's mean.

    Notes
    -----
    Products are float32 over at most 1,024 attributes (float64 for float64 input), added up in float64.

    Results of ``finish``, float64: ``weights`` (k, n), with which components = weights @ (X - mean), any attributes of
    them at a time (`dual_components`); ``explained_variance`` (k,), descending; ``total_variance`` (). k is the lesser
    of n_components and the rank that the samples have in the precision of the products.
    """

    n_components: int
    center: bool = True

    mergeable: ClassVar[bool] = True
    random_order: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.n_components < 1:
            raise ValueError(f"n_components is {self.n_components}: ask for at least 1")

    def init(self, n_samples: int, dtype: DTypeLike) -> State:
        """Return the state before any attribute, for blocks of ``dtype``."""
        eps = np.asarray(np.finfo(working_dtype(dtype)).eps, np.float64)
        return State({"gram": np.zeros((n_samples, n_samples)), "precision": eps}, {"n_attributes": 0})

    def update(self, state: State, block: Array) -> State:
        """Take in some attributes of all samples, shape (n_samples, n_attributes), n_attributes >= 0."""
        n = len(block)
        for start in range(0, block.shape[1], _BLOCK_ATTRIBUTES):
            part = block[:, start : start + _BLOCK_ATTRIBUTES]
            rows = linalg.scratch("attributes", part.shape[::-1], working_dtype(block.dtype))
            np.copyto(rows, part.T)
            if self.center:
                rows -= part.mean(axis=0, dtype=np.float64).astype(rows.dtype)[:, None]
            linalg.add_lower(state.arrays["gram"], linalg.gram_lower(rows, linalg.scratch("gram", (n, n), rows.dtype)))
        state.counts["n_attributes"] += block.shape[1]
        return state

    def merge(self, a: State, b: State) -> State:
        """Return the state of the attributes of both."""
        a.arrays["gram"] += b.arrays["gram"]
        a.counts["n_attributes"] += b.counts["n_attributes"]
        return a

    def finish(self, state: State) -> dict[str, Array]:
        """Return the variances, and the weights of the samples in each component; the state is used up."""
        gram = state.arrays["gram"]
        n = len(gram)
        if n < 2:
            raise ValueError(f"{n} sample(s) have no variance: at least 2 are needed")
        total = float(np.trace(gram))
        values, vectors = linalg.leading_eigh(gram, min(self.n_components, n))
        # What is left of the directions without variance is rounding error, and not orthogonal.
        kept = int(np.count_nonzero(values > 4 * float(state.arrays["precision"]) * total))
        return {
            "weights": vectors[:kept] / np.sqrt(values[:kept, None]),
            "explained_variance": values[:kept] / (n - 1),
            "total_variance": np.asarray(total / (n - 1)),
        }

    def state_bytes(self, n_samples: int, dtype: DTypeLike) -> int:
        """Bytes of a state."""
        return 8 * (n_samples**2 + 1)

    def result_bytes(self, n_samples: int, dtype: DTypeLike) -> int:
        """Bytes of a result."""
        return 8 * (self.n_components * (n_samples + 1) + 1)

    def work_bytes(self, n_attributes: int, n_samples: int, dtype: DTypeLike) -> int:
        """Bytes of temporary arrays: one block, its product, and what the eigensolver needs."""
        itemsize = working_dtype(dtype).itemsize
        block = min(n_attributes, _BLOCK_ATTRIBUTES) * (n_samples * itemsize + 16)
        return block + n_samples**2 * itemsize + linalg.eigh_bytes(n_samples, min(self.n_components, n_samples))


def dual_components(weights: Array, block: Array, *, center: bool = True) -> tuple[Array, Array]:
    """Return the mean (m,) and the components (k, m) of m attributes, float64, from the weights of `Dual`.

    Parameters
    ----------
    weights : array (k, n_samples), float64
    block : array (n_samples, m)
        Those attributes of all samples.
    center : bool
        As in `Dual`.
    """
    mean = block.mean(axis=0, dtype=np.float64) if center else np.zeros(block.shape[1])
    components = np.empty((len(weights), block.shape[1]))
    for start in range(0, block.shape[1], _BLOCK_ATTRIBUTES):
        part = slice(start, start + _BLOCK_ATTRIBUTES)
        components[:, part] = weights @ (block[:, part] - mean[part])
    return mean, components


def dual_pca(x: Array, n_components: int, *, center: bool = True) -> dict[str, Array]:
    """Exact principal components of an array (n_samples, n_features) with fewer samples than features.

    Returns ``mean`` (d,), ``components`` (k, d), ``explained_variance`` (k,) and ``total_variance`` (), float64, as
    `dpca.rules.CovariancePCA` does; k is at most the rank of the samples. Costs n^2 d operations, 8 n^2 bytes.
    """
    rule = Dual(n_components, center)
    found = rule.finish(rule.update(rule.init(len(x), x.dtype), x))
    mean, components = dual_components(found.pop("weights"), x, center=center)
    # Products of lower precision leave an error in the weights, which shows most in the last components.
    lengths = np.linalg.norm(components, axis=1, keepdims=True)
    return {"mean": mean, "components": linalg.fix_signs(components / lengths), **found}
