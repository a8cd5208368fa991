"""Rows that a step of `dpca.rules.incremental.nystrom` adds: floats of any library, or bytes by exact products."""

from __future__ import annotations

import itertools
import math
from types import ModuleType

import numpy as np
import scipy.linalg
from numpy.typing import DTypeLike

from dpca.kernels.algebra import integers, linalg
from dpca.kernels.algebra.namespace import beside, cast, is_numpy, namespace, to_numpy
from dpca.kernels.algebra.rounding import eigen_error, gamma, unit_roundoff
from dpca.kernels.algebra.types import Array, blocks
from dpca.rules.base.state import ALL, AttributeBlocks
from dpca.rules.base.turning import length
from dpca.rules.certificates import certificate
from dpca.rules.incremental.nystrom import COLUMNS, GROUP, outside
from dpca.rules.incremental.truncation import iterated, truncate

# Fewer multiplications take less time than the parts of a step that do not depend on their number.
_PAYS_FROM = 10**8
# Most change of coefficients by rounding to 8 bits, as a share of the squares of the rows.
_ROUNDED = 1e-4
# Most bytes of first rows that are stacked as float32.
_STACK_BYTES = 2**27


class FloatRows:
    """Rows whose products are rounded.

    X is sqrt(weights) times batch - near - pull * (weighted mean of batch - near). ``near`` is the rounded mean.

    Parameters
    ----------
    batch : array (n, d)
    mean : array (d,), float64, or None
        The previous mean; None for 0.
    weights : array (n,), float64
    before : float
        Weight of all previous samples.
    dtype : dtype
        That of the basis.
    over : AttributeBlocks
        The blocks of attributes.
    """

    def __init__(
        self,
        batch: Array,
        mean: Array | None,
        weights: Array,
        before: float,
        dtype: DTypeLike,
        over: AttributeBlocks = ALL,
    ) -> None:
        self._batch, self._weights, self._before, self._over, self._dtype = batch, weights, before, over, dtype
        self._near, self._pull, self._apart = None, 0.0, 0.0
        if mean is not None:
            self._near = cast(mean, dtype)
            self._pull = 1 - math.sqrt(before / (before + float(weights.sum())))
            self._apart = length(self._near - mean, over)
        u = unit_roundoff(dtype)
        self.error = gamma(min(over.whole(batch.shape[1]), COLUMNS) + 3, u)
        self.image_error = 2 * gamma(batch.shape[0] + 6, u)

    def coefficients(
        self, basis: Array, energy: Array, n_counted: int, enough: float = 0.0
    ) -> tuple[Array, float, float]:
        """See `StepRows`."""
        cross, grams = self.products(basis)
        return cross, *outside(cross, grams, n_counted, enough)

    def products(self, basis: Array) -> tuple[Array, list[Array]]:
        """Return C for the basis V, and the Gram matrices of groups of successive rows, float64."""
        (n, d), xp, dtype, weights, pull = (
            self._batch.shape,
            namespace(self._batch),
            self._dtype,
            self._weights,
            self._pull,
        )
        own = float(weights.sum())
        each = beside((weights / own).astype(dtype), self._batch)
        cross, along, moved, *grams = (
            beside(np.zeros(shape), self._batch)
            for shape in ((n, basis.shape[0]), (n,), (d,), *((rows.stop - rows.start,) * 2 for rows in _groups(n)))
        )
        for columns in blocks(d, COLUMNS):
            part = self._part(columns)
            cross += linalg.workspace_product("cross", part, xp.matrix_transpose(basis[:, columns]))
            for gram, rows in zip(grams, _groups(n), strict=True):
                group = part[rows, :]
                gram += linalg.workspace_product("group", group, xp.matrix_transpose(group))
            if self._near is not None:
                mean = xp.matmul(each, part)
                along += xp.matmul(part, mean)
                linalg.copy_into(moved[columns], mean)
        cross, along, moved, *grams = map(to_numpy, (cross, along, moved, *grams))
        cross, along, distance, *grams = self._over.summed(cross, along, moved @ moved, *grams)
        # The pull is subtracted from the products, because the mean is only known after all rows of a block.
        gains, square = np.sqrt(weights), pull**2 * float(distance)
        self.squares = self.added = 0.0
        for gram, rows in zip(grams, _groups(n), strict=True):
            self.squares += float(weights[rows] @ gram.diagonal())
            gram -= pull * np.add.outer(along[rows], along[rows]) - square
            gram *= np.outer(gains[rows], gains[rows])
            self.added += float(np.trace(gram))
        cross -= pull * (weights @ cross / own)
        cross *= gains[:, None]
        self._cross, self._moved = cross, moved
        return cross, grams

    def image(self, basis: Array, energy: Array, scale: Array) -> tuple[Array, Array]:
        """See `StepRows`."""
        batch, dtype = self._batch, self._dtype
        xp, gains = namespace(batch), (scale * self._cross * np.sqrt(self._weights)[:, None]).T
        image = linalg.workspace("image", basis.shape, dtype, basis)
        products = beside(np.zeros((len(energy),) * 2), batch)
        # The offset acts like one more row of the batch.
        sums = beside(-gains.sum(axis=1)[:, None].astype(dtype), batch)
        gains, sizes = (beside(np.ascontiguousarray(x, dtype), batch) for x in (gains, (scale * energy)[:, None]))
        offset = beside((self._pull * self._moved).astype(dtype), batch)
        for columns in blocks(batch.shape[1], COLUMNS):
            block = linalg.workspace_product("image block", gains, self._part(columns))
            block += sizes * basis[:, columns]
            block += sums * offset[columns]
            image[:, columns] = block
            products += linalg.workspace_product("products", block, xp.matrix_transpose(block))
        return image, to_numpy(products)

    def add_mean(self, rounding: Array, mean: Array) -> None:
        """See `StepRows`."""
        near, own, g = self._near, float(self._weights.sum()), gamma(len(self._weights) + 4, unit_roundoff(self._dtype))
        distance = length(self._moved, self._over)
        certificate.add_mean(rounding, (self._before, own), self._apart, distance, self.squares, g, self._pull)
        mean += (near - mean + beside(self._moved, mean)) * (own / (self._before + own))

    def _part(self, columns: slice) -> Array:
        """Return columns of batch - near in a workspace."""
        part = linalg.workspace("part", (self._batch.shape[0], columns.stop - columns.start), self._dtype, self._batch)
        if self._near is None:
            linalg.copy_into(part, self._batch[:, columns])
            return part
        return linalg.subtract_into(part, self._batch[:, columns], self._near[columns])


class ByteRows:
    """Samples of bytes of weight 1, minus a point of 16-bit levels. Their products are exact integers.

    To compute C, the basis is rounded to 16-bit levels. C is then rounded to 8 bits, or to 16 bits if the samples are
    the first ones, or if 8 bits change C by more than a ten-thousandth of the squares of X. `absorb` is valid for any
    C, and the effect of the rounding is known. All other products are exact until their sums are complete.

    Parameters
    ----------
    batch : array (n, d), uint8, int8 or bool
    mean : array (d,), float64, or None
        The previous mean; None for 0.
    before : float
        Number of previous samples. Infinity, if the mean is that of all samples.
    n_kept : int
        Directions in the state.
    kernel : module
        `dpca.kernels.wide_products`.
    """

    def __init__(self, batch: Array, mean: Array | None, before: float, n_kept: int, kernel: ModuleType) -> None:
        n, d = batch.shape
        self._batch, self._before, self._n_kept, self._kernel = batch, before, n_kept, kernel
        center = float(integers.center_of_range(batch.dtype))
        wanted = np.zeros(d)
        self._pull = 0.0
        if mean is not None:
            total = np.zeros(d, np.int32)
            kernel.add_rows(batch, total)
            self._own = total / n
            self._pull = 1 - math.sqrt(before / (before + n)) if before < math.inf else 0.0
            wanted = mean + self._pull * (self._own - mean)
        wanted -= center
        (self._step,) = _steps(wanted[None], kernel.MOST_WIDE)
        self._levels = np.rint(wanted / self._step).astype(np.int16)
        self._point = self._levels * self._step
        self._apart = self._point - wanted
        self.image_error = 2 * gamma(4, unit_roundoff(np.float32))

    def coefficients(
        self, basis: Array, energy: Array, n_counted: int, enough: float = 0.0
    ) -> tuple[Array, float, float]:
        """See `StepRows`."""
        if not energy.any():
            return self._leading(n_counted, exact=not enough)
        n = len(self._batch)
        exact, grams = self.products(basis, n if n <= whole_rows(len(energy)) else group_rows(n_counted))
        cross, (beyond, strongest) = self._rounded(exact.T), outside(exact, grams, n_counted, enough)
        if len(grams) == 1 and strongest > energy[n_counted - 1]:
            # The bound is up to twice as large if many eigenvalues are nearly equal.
            values = scipy.linalg.eigvalsh(grams[0], subset_by_index=[n - 1, n - 1])
            strongest = min(strongest, float(values[0]) + eigen_error(n, self.added))
        # The rounding of C adds the scatter of its changes along the basis, which the rest is orthogonal to.
        moved = (self._distance + self.error * math.sqrt(len(energy) * self.squares)) ** 2
        return cross, beyond + moved, strongest + moved

    def products(self, basis: Array, group: int = integers.GROUP) -> tuple[Array, list[Array]]:
        """Return C before it is rounded, for the basis V, and Gram matrices of groups of successive rows, float64.

        ``group`` is the number of rows of a group, a multiple of `integers.GROUP`.
        """
        kernel, (q, d), n = self._kernel, basis.shape, len(self._batch)
        # Without a copy of the basis, which may be large.
        steps = _steps(basis, kernel.MOST_WIDE)
        scales, sums, along, off = (1 / steps).astype(basis.dtype), np.zeros((q + 1, n)), np.zeros(q), 0.0
        grams = [np.zeros((rows.stop - rows.start,) * 2) for rows in blocks(n, group)]
        for columns in blocks(d, COLUMNS):
            part, point = basis[:, columns], self._point[columns]
            wide = linalg.scratch("levels", (part.shape[1], q + 1), np.int16)
            wide[:, q] = self._levels[columns]
            off += kernel.add_levels(part, scales, steps, point, wide, along)
            kernel.WideColumns(wide, n).add_projected(self._batch[:, columns], sums, grams)
        self._centered(grams, sums[q])
        # The second term exceeds the rounding errors of the sum.
        self.error = math.sqrt(off / q) + 2 * unit_roundoff(basis.dtype) + gamma(4, unit_roundoff(float))
        exact = sums[:q]
        exact -= along[:, None]
        exact *= steps[:, None]
        return exact.T, grams

    def _leading(self, n_counted: int, *, exact: bool) -> tuple[Array, float, float]:
        """Return left singular vectors times singular values, rounded, and bounds on the rest of the scatter.

        If not ``exact``, the vectors may be those of `iterated`.
        """
        kernel, (n, d) = self._kernel, self._batch.shape
        gram, sums = np.zeros((n, n)), np.zeros((1, n))
        for columns in blocks(d, COLUMNS):
            wide = kernel.WideColumns(self._levels[columns, None], n)
            wide.add_projected(self._batch[:, columns], sums, [gram])
        self._centered([gram], sums[0])
        floor = float(np.finfo(np.float32).eps) * self.added
        found = None if exact else iterated(gram, self._n_kept, n_counted=n_counted)
        if found is None or found.values[-1] <= floor:
            found = truncate(gram, self._n_kept, n_counted=n_counted, floor=floor)
        cross = self._rounded((found.vectors * np.sqrt(found.values)).T, first=True)
        self.error = gamma(4, unit_roundoff(float))
        # The rounded C spans what is retained: the root of the rest grows by at most its distance from the exact one.
        error = eigen_error(n, self.added)
        beyond, most = (
            (math.sqrt(value + count * error) + self._distance) ** 2
            for value, count in ((found.discarded, n_counted), (found.largest, 1))
        )
        return cross, beyond, most

    def image(self, basis: Array, energy: Array, scale: Array) -> tuple[Array, Array]:
        """See `StepRows`."""
        kernel, d, q = self._kernel, self._batch.shape[1], len(energy)
        image, products = linalg.scratch("image", (q, d), basis.dtype), np.zeros((q, q))
        columns_of = kernel.WideColumns(self._wide, min(COLUMNS, d))
        gains = scale * self._steps
        offsets = gains * self._wide.sum(axis=0, dtype=np.int64)
        for columns in blocks(d, COLUMNS):
            part = image[:, columns]
            sums = linalg.scratch("sums", part.shape, float)
            sums[:] = 0
            columns_of.add_combined(self._batch[:, columns], sums)
            kernel.combine(sums, gains, offsets, self._point[columns], scale * energy, basis[:, columns], part)
            products += linalg.workspace_product("products", part, part.T)
        return image, products

    def add_mean(self, rounding: Array, mean: Array) -> None:
        """See `StepRows`."""
        (n, d), before = self._batch.shape, self._before
        # Means of bytes are rounded to float64 a few times.
        error = gamma(4, unit_roundoff(float)) * 256 * math.sqrt(d)
        if before:
            # The point is exact for a previous mean that is this far from the stored one.
            apart = float(np.linalg.norm(self._apart)) / (1 - self._pull)
            distance, g = float(np.linalg.norm(self._own - mean)) + apart, error / math.sqrt(self.squares / n)
            certificate.add_mean(rounding, (before, n), apart, distance, self.squares, g, self._pull)
        else:
            rounding[0] += n * (float(np.linalg.norm(self._apart)) + error) ** 2
            rounding[2] = error
        mean += (self._own - mean) * (n / (before + n))

    def _centered(self, grams: list[Array], along: Array) -> None:
        """Turn lower triangles of products of bytes into Gram matrices of X; ``along`` are products with the levels."""
        along, square, first = self._step * along, float(self._point @ self._point), 0
        self.added = 0.0
        for gram in grams:
            self.added += self._kernel.center(gram, along[first : first + len(gram)], square)
            first += len(gram)
        self.squares = self.added

    def _rounded(self, rows: Array, *, first: bool = False) -> Array:
        """Return C, given by its columns as ``rows``, in levels of 8 or 16 bits."""
        limit = 0.0 if first else math.sqrt(_ROUNDED * self.squares)
        for kind, most in ((np.int8, 127), (np.int16, self._kernel.MOST_WIDE)):
            steps = self._steps = _steps(rows, most)
            self._wide = np.empty(rows.T.shape, kind)
            point, along = np.zeros(rows.shape[1]), np.zeros(len(rows))
            self._distance = math.sqrt(self._kernel.add_levels(rows, 1 / steps, steps, point, self._wide, along))
            if self._distance <= limit:
                break
        return self._wide * self._steps


def exact_kernel(batch: Array, n_kept: int, over: AttributeBlocks) -> ModuleType | None:
    """Return the kernel of `ByteRows` if these rows are bytes, and many enough for exact products to take less time."""
    if not (is_numpy(batch) and over.alone and integers.is_byte(batch.dtype)):
        return None
    if batch.size * n_kept < _PAYS_FROM or not batch.flags.c_contiguous or not integers.kernel():
        return None
    from dpca.kernels import wide_products

    return wide_products


def first_rows(n_features: int, dtype: DTypeLike) -> int:
    """Return the most first rows to stack at once. Bytes are rarely stacked, and take four times the memory then."""
    return min(n_features, _STACK_BYTES // (4 * n_features)) if integers.is_byte(dtype) else n_features


def group_rows(n_counted: int) -> int:
    """Return the rows of a group in larger steps, for bounds on so many eigenvalues.

    For many components, bounds of small groups are loose, and exact products of rows cost little.
    """
    return max(1, 2 * n_counted // integers.GROUP) * integers.GROUP


def whole_rows(n_kept: int) -> int:
    """Return the most rows of a step that computes all products of rows, for a basis of so many directions.

    Their scatter outside of the basis is then known, and its bounds are close. Measured for 110 directions of 196,608
    attributes: 3 to 8 rows for each direction take the same time within a quarter.
    """
    return 7 * n_kept


def _steps(rows: Array, most: int) -> Array:
    """Return a step for each row, so that its values are at most ``most`` steps."""
    steps: Array = np.maximum(rows.max(axis=1), -rows.min(axis=1)).astype(float) / most
    steps[steps == 0] = 1
    return steps


def _groups(n: int) -> list[slice]:
    n_groups = -(-n // GROUP)
    return [slice(a, b) for a, b in itertools.pairwise(n * i // n_groups for i in range(n_groups + 1))]
