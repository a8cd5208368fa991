"""Inner products in a feature space: kernel functions, and the map of samples to their kernels with fixed points."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from dpca.kernels.algebra import integers, linalg
from dpca.kernels.algebra.dtypes import working_dtype
from dpca.kernels.algebra.namespace import beside, cast, copy_of, dtype_of, is_numpy, namespace
from dpca.kernels.algebra.types import Array, PickledByFields, blocks
from dpca.kernels.byte_points import BytePoints, moments

# Added to degrees, so that no isolated sample divides by 0.
_TINY = float(np.finfo(np.float32).tiny)
# Samples of bytes whose exact products are rounded together, while they are in the second cache.
_BYTE_ROWS = integers.GROUP
# Attributes from which on exact products of bytes take less time than those of floats (measured), and columns of their
# widest panels.
_BYTES_FROM, _PANEL = 256, 48


@dataclass(frozen=True)
class Kernel:
    """A positive semi-definite kernel of rows x and z, as scikit-learn defines it.

    "rbf": exp(-gamma |x - z|^2); "poly": (gamma x.z + coef0)^degree; "linear": x.z; "cosine": x.z / (|x| |z|), 0 for
    a zero row; "precomputed": x holds its kernels with all points.

    Parameters
    ----------
    name : str
        One of `dpca.choices.KERNELS`.
    gamma, degree, coef0 : float, int, float
        Parameters of the kernels that have them: gamma > 0, degree an integer >= 1, coef0 >= 0.
    """

    name: str
    gamma: float = 1.0
    degree: int = 3
    coef0: float = 1.0

    def diagonal(self, x: Array) -> Array:
        """Return k(x, x) (n,), float64, of rows (n, d). "precomputed" is not supported."""
        xp = namespace(x)
        if self.name in ("rbf", "cosine"):
            ones = xp.ones_like(cast(x[:, 0], np.float64))
            return ones if self.name == "rbf" else cast(xp.any(x != 0, axis=1), np.float64)
        if is_numpy(x) and integers.is_byte(x.dtype):
            squares = moments(x)[1]
        else:
            squares = linalg.column_squares(xp.matrix_transpose(cast(x, np.float64)))
        return squares if self.name == "linear" else (self.gamma * squares + self.coef0) ** self.degree

    def of_products(self, products: Array, left: Array, right: Array) -> Array:
        """Return kernels from inner products (n, m), which are overwritten, and squared lengths (n,) and (m,).

        All are float64. Squared distances, for "rbf", are as accurate as the lengths are small.
        """
        if self.name == "rbf":
            products *= 2
            products -= left[:, None]
            products -= right
            products *= self.gamma
            np.minimum(products, 0, out=products)  # rounding must not make a squared distance negative
            return np.exp(products, out=products)
        if self.name == "poly":
            products *= self.gamma
            products += self.coef0
            return np.power(products, self.degree, out=products)
        if self.name == "cosine":
            for lengths in (left[:, None], right):
                roots = np.sqrt(lengths)
                products /= np.where(roots > 0, roots, 1)
        return products


@dataclass(frozen=True, eq=False)
class KernelMap(PickledByFields):
    """Map of samples to their kernels with fixed points.

    Parameters
    ----------
    kernel : Kernel
    points : array (m, d), floating
        For "precomputed" the rows (m, m) of the kernel matrix that belong to the points.
    degrees : array (m,), optional
        Weights w. The product k(x, points) w estimates the degree of x, which is the sum of its kernels with all
        samples. If given, kernels are divided by the square roots of both degrees, as in D^(-1/2) K D^(-1/2)
        (Ng, Jordan & Weiss 2002).
    """

    kernel: Kernel
    points: Array
    degrees: Array | None = None

    def __call__(self, x: Array) -> Array:
        """Return the kernels (n, m) of samples (n, d) with all points.

        The result is float64 if samples or points are, else float32. A numpy result lies in a buffer, which the next
        call in this thread overwrites. Costs one matrix product, 2 n m d operations. If samples are bytes, at
        least 256 each, and the points integers of their range, inner products and squared distances are exact.
        """
        if self.kernel.name == "precomputed":
            return cast(x, np.result_type(working_dtype(dtype_of(x)), self.points.dtype))
        dtype = np.result_type(working_dtype(dtype_of(x)), self.points.dtype)
        roots = None if self.degrees is None else self._root_degrees
        if is_numpy(x) and integers.is_byte(x.dtype) and (points := self._bytes(x.dtype)):
            found = self._of_bytes(x, points, dtype)
        else:
            found = linalg.workspace_product("kernels", self._left(x, dtype), cast(beside(self._right, x), dtype))
        self._shape(found)
        if roots is not None:
            found /= namespace(found).sqrt(self._degrees(found, self.kernel.diagonal(x)))[:, None]
            found /= cast(beside(roots, found), dtype)
        return found

    def diagonal(self, x: Array) -> Array:
        """Return the kernels (n,), float64, of samples with themselves."""
        values = self.kernel.diagonal(x)
        if self.degrees is None:
            return values
        plain = KernelMap(self.kernel, self.points)
        return values / self._degrees(plain(x), values)

    def own(self) -> Array:
        """Return the kernels (m, m) of the points with each other, float64, symmetric."""
        fitting = (kind for kind in ("uint8", "int8") if self._bytes(np.dtype(kind)))
        points = self.points.astype(next(fitting, self.points.dtype), copy=False)
        kernels = np.array(self(points), np.float64)
        return (kernels + kernels.T) / 2

    def scratch_bytes(self, n_rows: int, dtype: Any) -> int:
        """Return the bytes of temporary arrays to map rows of a type, including the result and cached arrays."""
        (m, d), itemsize = self.points.shape, np.result_type(working_dtype(dtype), self.points.dtype).itemsize
        kernels = 2 if self.kernel.name == "poly" and self.kernel.degree > 1 else 1  # powers, and what they are of
        exact = 8 * min(n_rows, _BYTE_ROWS) * m + 2 * _PANEL * d if integers.is_byte(dtype) else 0
        return int(itemsize * (n_rows * (d + 2 + kernels * m) + 2 * m * (d + 2)) + exact)

    @cached_property
    def _shift(self) -> Array:
        """Mean of the points. Distances do not depend on the origin, but their rounding errors do."""
        mean: Array = self.points.mean(axis=0, dtype=np.float64)
        return mean.astype(self.points.dtype)

    @cached_property
    def _right(self) -> Array:
        """Right factor of the product with the samples. For "rbf" the product yields the exponents."""
        z, gamma = self.points, self.kernel.gamma
        if self.kernel.name == "rbf":
            right = np.empty((len(z), z.shape[1] + 2), z.dtype)
            near = np.subtract(z, self._shift, out=right[:, :-2])
            right[:, -2] = -gamma
            right[:, -1] = -gamma * np.einsum("ij,ij->i", near, near, dtype=np.float64)
            near *= 2 * gamma
            return right.T
        if self.kernel.name == "poly":
            return gamma * z.T
        return _directions(z).T if self.kernel.name == "cosine" else z.T

    @cached_property
    def _as_bytes(self) -> dict[np.dtype[Any], BytePoints | None]:
        return {}

    def _bytes(self, dtype: np.dtype[Any]) -> BytePoints | None:
        """Return the points as bytes of this dtype, or None if they are not, or floats take less time."""
        if dtype not in self._as_bytes:
            z, (least, most) = self.points, (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
            able = z.shape[1] >= _BYTES_FROM and least <= z.min() and z.max() <= most and (z == np.rint(z)).all()
            self._as_bytes[dtype] = BytePoints(z.astype(dtype)) if able else None
        return self._as_bytes[dtype]

    def _of_bytes(self, x: Array, points: BytePoints, dtype: np.dtype[Any]) -> Array:
        """Return the product of `_left` and `_right` from exact products."""
        name, found = self.kernel.name, linalg.workspace("kernels", (len(x), len(self.points)), dtype, x)
        scale: Any = {"rbf": 2 * self.kernel.gamma, "poly": self.kernel.gamma}.get(name, 1.0)
        for rows in blocks(len(x), _BYTE_ROWS):
            sums, squares = moments(x[rows])
            products = linalg.scratch("exact products", (len(sums), len(points.sums)), np.float64)
            left, right = (-squares / 2, -points.squares / 2) if name == "rbf" else (0, 0)
            points.multiply(x[rows], sums, left, right, products)
            if name == "cosine":
                lengths = np.sqrt(points.squares)
                products /= np.where(lengths > 0, lengths, 1)
                lengths = np.sqrt(squares)[:, None]
                scale = 1 / np.where(lengths > 0, lengths, 1)
            np.multiply(products, scale, out=found[rows], casting="same_kind")
        return found

    def _left(self, x: Array, dtype: np.dtype[Any]) -> Array:
        if self.kernel.name == "rbf":
            n, d = x.shape
            left = linalg.workspace("beside points", (n, d + 2), dtype, x)
            linalg.copy_into(left[:, :d], x)
            left[:, :d] -= cast(beside(self._shift, x), dtype)
            near = left[:, :d]
            left[:, d] = linalg.column_squares(namespace(near).matrix_transpose(near))
            left[:, d + 1] = 1
            return left
        return _directions(cast(x, dtype)) if self.kernel.name == "cosine" else cast(x, dtype)

    def _shape(self, found: Array) -> None:
        """Turn products into kernels, in place."""
        if self.kernel.name == "rbf" and is_numpy(found):
            # Rounding must not make a squared distance negative.
            np.exp(np.minimum(found, 0, out=found), out=found)
        elif self.kernel.name == "rbf":
            xp = namespace(found)
            found[...] = xp.exp(xp.minimum(found, xp.zeros_like(found)))
        elif self.kernel.name == "poly":
            found += self.kernel.coef0
            factor = copy_of(found) if self.kernel.degree > 1 else found
            for _ in range(self.kernel.degree - 1):
                found *= factor

    def _degrees(self, kernels: Array, own: Array) -> Array:
        """Return the degrees (n,) of samples. They are at least the samples' kernels with themselves (n,)."""
        xp, dtype = namespace(kernels), dtype_of(kernels)
        weights = np.zeros(len(self.points)) if self.degrees is None else self.degrees
        estimated = xp.matmul(kernels, cast(beside(weights, kernels), dtype))
        return xp.maximum(estimated, cast(own, dtype)) + _TINY

    @cached_property
    def _root_degrees(self) -> Array:
        plain = KernelMap(self.kernel, self.points)
        return np.sqrt(self._degrees(plain(self.points), self.kernel.diagonal(self.points)))


def _directions(x: Array) -> Array:
    """Return rows divided by their lengths. Zero rows stay zero."""
    xp = namespace(x)
    lengths = xp.sqrt(xp.sum(x * x, axis=1))[:, None]
    return x / xp.where(lengths > 0, lengths, xp.ones_like(lengths))
