"""Incremental SVD with oversampling and merge, in one pass, for any order of samples and any number of workers."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import partial
from types import ModuleType

import numpy as np
from numpy.typing import DTypeLike

from dpca.kernels.algebra import linalg
from dpca.kernels.algebra.dtypes import working_dtype
from dpca.kernels.algebra.integers import is_byte
from dpca.kernels.algebra.namespace import beside, cast, copy_of, dtype_of, namespace
from dpca.kernels.algebra.rounding import gamma, unit_roundoff
from dpca.kernels.algebra.types import Array, even_parts
from dpca.rules.base.basis import StreamingRule
from dpca.rules.base.options import FLAG, count, finite
from dpca.rules.base.rule import check_products
from dpca.rules.base.state import State, StateLayout
from dpca.rules.base.turning import change_of, complete, fix_signs, joint_length, length, products, rotate
from dpca.rules.certificates import certificate
from dpca.rules.incremental import nystrom, scatter_state
from dpca.rules.incremental.rows import ByteRows, FloatRows, exact_kernel, first_rows, whole_rows
from dpca.rules.incremental.scatter_state import n_features_of, orthonormalize, rank_of, safe_rows, weighted_state
from dpca.rules.incremental.truncation import truncate, truncate_bytes

_ROWS = 1024
# Numbers out of range are either scaled or rejected in the end. BLAS may also compute with lanes that it then discards.
_QUIET = np.errstate(over="ignore", under="ignore", invalid="ignore")
# Arrays of a state with a number for each attribute.
_LARGE = ("basis", "mean")


@dataclass(frozen=True)
class IncrementalSVD(StreamingRule):
    """Leading principal components by incremental singular value decomposition: the default rule.

    The state holds the scatter matrix of all samples so far as V^T diag(energy) V of rank q = n_components +
    oversampling (Brand 2002). Up to 2 q samples X are stacked: sqrt(energy) V, the centered X, and a row for the change
    of the mean (Ross et al. 2008). The eigenvectors of the Gram matrix of the stack yield the new basis. Its leading q
    rows are retained. Larger batches are processed by one multiplication with the new scatter matrix, see
    `dpca.rules.incremental.nystrom`, if this discards nothing important. If it could, and products are exact, batches
    of up to 7 q rows are tried, whose discarded part is known. The first samples, and samples that differ from all
    previous ones, are stacked. A merge stacks two bases (Iwen & Ong 2016; Himpe, Leibner & Rave 2018).

    The row for the mean costs nothing here. The samples are centered at a point between the two means,
    a = m_X - sqrt(w_old / w_all) (m_X - m_old). Their scatter about this point already includes the row. Centering is
    therefore exact in one pass. Only the old mean is subtracted from the samples, and the rest from their products.

    Parameters
    ----------
    n_components
        See `StreamingRule`.
    oversampling : int
        Number of additional directions to retain. A value of a sample costs 4 q + 200 operations, so that 60 cost 7 %
        more than 50 for k = 50. The truncation loss of the k components halves with every 10 to 20 more directions.
        With 60, the loss is 7e-7 to 1e-8 of the captured variance for MNIST in random order, and 1e-4 to 5e-6 for MNIST
        sorted by class (k = 50 to 5). ``captured_bound`` is 0.90 to 0.91, and 0.84 to 0.89.
    center : bool
        Subtract the mean. If false, directions and variances are about 0.
    forgetting : float
        A sample has weight ``forgetting**j`` after j further samples, independent of batches. In a merge the second
        state follows the first. 0 < forgetting <= 1; 1 weights all samples equally.
    wide : bool
        Also return all q directions.

    Notes
    -----
    Products of attributes are float32 (float64 for float64 input), or exact for many bytes, see
    `dpca.rules.incremental.rows.ByteRows`. Everything of size q is float64. Directions with less than about 1e-6 of the
    variance of a batch are lost in the rounding of float32. They count as discarded. A step of B rows costs
    (4 q + 200) B d + 3 q^2 d operations. A stack of B rows costs 2 d (q B + B^2 / 2 + q (q + B)) operations and an
    eigenproblem of size q + B. The first batch is a single stack of up to 1,024 rows, but at most max(d, 2 q) rows. The
    result is exact up to this number of samples; that of bytes may miss a millionth of the variance, see
    `dpca.rules.incremental.truncation.iterated`. The state has q (d + 1) numbers. If batches are arrays on an
    accelerator, the basis and the mean move there. LAPACK processes everything of size q.

    Results of ``finish``: those of `StreamingRule` and a certificate, float64. ``kept_energy`` () is the part of
    ``total_variance`` in all q directions. The captured variance is at least ``captured_bound`` () times that of the
    best k components, including rounding errors; see `dpca.rules.certificates.certificate`. Each step discards a
    positive semi-definite part of the scatter matrix. Therefore the components capture at least the sum of their
    energies. The best components capture at most this sum plus either everything discarded or the k largest eigenvalues
    of each discarded part. Variances have the divisor n - 1, or its weighted form with ``forgetting``. With ``wide``,
    further results are ``directions`` (q', d), orthonormal, q' <= q, and in float64 their ``direction_variance`` (q',)
    and ``outside`` (), an upper bound on the variance along any direction orthogonal to all of them. ``outside`` is
    infinity with ``forgetting``, because a second pass weights all samples equally.
    """

    oversampling: int = field(default=60, metadata=count("further directions", least=0))
    forgetting: float = field(
        default=1.0,
        kw_only=True,
        metadata=finite("a weight above 0 and up to 1, which is no forgetting", above=0, most=1),
    )
    wide: bool = field(default=False, kw_only=True, metadata=FLAG)

    mergeable = True
    random_order = False
    spreadable = True
    by_attribute = _LARGE

    @property
    def results_by_attribute(self) -> tuple[str, ...]:
        """Names of the results with attributes along the last axis."""
        return ("components", "mean", "directions") if self.wide else ("components", "mean")

    def _kept(self, n_features: int) -> int:
        return min(self.rank(n_features) + self.oversampling, n_features)

    def _layout(self, n_features: int, dtype: DTypeLike) -> StateLayout:
        q = self._kept(n_features)
        return {
            "basis": ((q, n_features), working_dtype(dtype)),
            "energy": ((q,), float),
            "mean": ((n_features,), float),
            "scatter": ((), float),
            "discarded": ((), float),
            "outside": ((), float),
            # Slack, skew and astray, see `dpca.rules.certificates.certificate`.
            "rounding": ((3,), float),
            # Sums of the samples' weights and of their squares.
            "weights": ((2,), float),
        }

    def _take(self, state: State, batch: Array) -> None:
        state.move_to(batch, _LARGE)
        while batch.shape[0]:
            (rank, d), q = (rank_of(state), n_features_of(state)), len(state.arrays["energy"])
            # Stack the first samples at once if this problem is not larger than that of their attributes.
            few = max(2 * q, 0 if rank else first_rows(d, dtype_of(batch)))
            # Steps of many more samples than half of the previous ones could discard important directions.
            most = max(few, int(state.arrays["weights"][0]) // 2) if rank else max(2 * q, _ROWS)
            part = next(even_parts(batch, min(most, self.batch_rows(dtype_of(batch)))))
            batch = batch[part.shape[0] :, :]
            kernel = None if self.forgetting < 1 else exact_kernel(part, q, state.blocks)
            known, first = rank == q and part.shape[0] > few, not rank and part.shape[0] > q
            sizes = [few]
            if known and kernel is not None:
                sizes = [safe_rows(state, self.rank(d)), whole_rows(q), few]
            elif known or (first and kernel is not None):
                sizes = [part.shape[0], few]
            self._steps(state, part, kernel, sizes)

    def _steps(self, state: State, batch: Array, kernel: ModuleType | None, sizes: list[int]) -> None:
        """Process a batch in the largest steps of these sizes that discard nothing important; the last is of stacks."""
        for rows in even_parts(batch, sizes[0]):
            if len(sizes) == 1:
                self._step(state, rows)
            elif not self._nystrom_step(state, rows, kernel):
                smaller = [size for size in sizes[1:] if size < rows.shape[0]] or sizes[-1:]
                self._steps(state, rows, kernel, smaller)

    @_QUIET
    def _nystrom_step(self, state: State, batch: Array, kernel: ModuleType | None) -> bool:
        """Process a batch without the Gram matrix of its rows. Return False if this is not accurate enough."""
        basis, energy, rounding = (state.arrays[name] for name in ("basis", "energy", "rounding"))
        mean = state.arrays["mean"] if self.center else None
        weights = self._weights(batch.shape[0])
        factor = self.forgetting ** batch.shape[0]
        before = factor * float(state.arrays["weights"][0])
        rows: nystrom.StepRows = (
            FloatRows(batch, mean, weights, before, dtype_of(basis), state.blocks)
            if kernel is None
            else ByteRows(batch, mean, before, len(energy), kernel)
        )
        k, skew = self.rank(n_features_of(state)), factor * float(rounding[1])
        # Only a second pass needs a close bound on the largest of the discarded eigenvalues. First rows need none.
        enough = 0.0 if self.wide else factor * float(energy[k - 1]) or math.inf
        step = nystrom.absorb(basis, factor * energy, rows, k, skew, enough, state.blocks)
        if step is None:
            return False
        self._age(state, batch.shape[0])
        if mean is not None:
            rows.add_mean(rounding, mean)
        rounding[0] += step.slack
        rounding[1] = step.skew
        self._add(state, step.energy, step.added, step.discarded, step.largest)
        self._count(state, weights)
        return True

    @_QUIET
    def _step(self, state: State, batch: Array) -> None:
        xp, n, over = namespace(batch), batch.shape[0], state.blocks
        basis, mean = state.arrays["basis"], state.arrays["mean"]
        weights = self._weights(n)
        self._age(state, n)
        before, own = float(state.arrays["weights"][0]), float(weights.sum())
        dtype, first = dtype_of(basis), state.counts["n_samples"] == 0
        rows, each = linalg.workspace("rows", batch.shape, dtype, batch), beside(weights.astype(dtype), batch)
        apart, moved = [0.0], [0.0]

        def fill(columns: slice) -> None:
            if not self.center:
                linalg.copy_into(rows[:, columns], batch[:, columns])
                return
            if first:
                mean[columns] = xp.sum(batch[:, columns], axis=0, dtype=xp.float64) / n
            near = cast(mean[columns], dtype)
            apart.append(length(near - mean[columns]))
            part = linalg.subtract_into(rows[:, columns], batch[:, columns], near)
            offset = cast(xp.matmul(each, part), np.float64) / own
            moved.append(length(offset))
            mean[columns] += (near - mean[columns] + offset) * (own / (before + own))

        gram = products(rows, rows, fill, over=over)
        gains = np.sqrt(weights)
        if not nystrom.SMALL < gram.diagonal().max() < math.inf:
            # If squares leave the range of float32 (densities in SI units do), scale the largest value to 1, exactly.
            largest = max(over.gathered(float(linalg.largest_magnitude(rows))))
            scale = linalg.bring_to_one(rows, np.asarray(True), np.asarray(largest))
            if scale is not None:
                gains *= float(scale)
                gram = products(rows, rows, over=over)
        if self.center:
            squares = float(gains**2 @ gram.diagonal())
            distances = joint_length(apart, over), joint_length(moved, over)
            g = gamma(n + 4, unit_roundoff(dtype))
            certificate.add_mean(state.arrays["rounding"], (before, own), *distances, squares, g, 0.0)
        # Moved this far towards their mean, rows minus the old mean have the scatter about the new mean.
        pull = (1 - math.sqrt(before / (before + own))) / own if self.center else 0.0
        self._absorb(state, rows, gains, gram, pull * weights)
        self._count(state, weights)

    def weigh(self, state: State, batch: Array, weights: Array) -> State:
        """Process samples with weights, as a stream of their own that is merged."""
        if self.forgetting < 1:
            return super().weigh(state, batch, weights)
        return self.merge(state, weighted_state(replace(self, center=False), batch, weights, center=self.center))

    def of_weighted_rows(self, rows: State, mean: Array, total: float, dtype: DTypeLike) -> State:
        """Return the state of samples with weights from that of rows about 0, see `Covariance`."""
        return scatter_state.of_weights(self.part_of(rows), mean, total)

    @_QUIET
    def merge(self, a: State, b: State) -> State:
        """Return the state of both streams, ``b`` after ``a``."""
        n = b.counts["n_samples"]
        if n == 0:
            return a
        a.move_to(b.arrays["basis"], _LARGE)
        if a.counts["n_samples"] == 0:
            a.arrays.update({name: copy_of(b.arrays[name]) for name in self._layout(a.arrays["basis"].shape[1], float)})
            a.counts["n_samples"] = n
            return a
        self._age(a, n)
        w_a, w_b = (float(s.arrays["weights"][0]) for s in (a, b))
        apart = b.arrays["mean"] - a.arrays["mean"]
        distance = length(apart)
        rows, gains, gram = scatter_state.stacked(b, apart, distance, w_a * w_b / (w_a + w_b))
        slack, skew, astray = map(float, b.arrays["rounding"])
        certificate.add_mean(a.arrays["rounding"], (w_a, w_b), astray, distance, 0.0, 0.0, 0.0)
        a.arrays["rounding"] += [slack, 0.0, astray * w_b / (w_a + w_b)]
        self._absorb(a, rows, gains, gram, np.zeros(len(gram)), skew)
        a.arrays["scatter"] += b.arrays["scatter"] - b.arrays["energy"].sum()
        for name in ("discarded", "outside"):
            a.arrays[name] += b.arrays[name]
        a.arrays["mean"] += apart * (w_b / (w_a + w_b))
        a.arrays["weights"] += b.arrays["weights"]
        a.counts["n_samples"] += n
        return a

    @_QUIET
    def _finish(self, state: State) -> dict[str, Array]:
        orthonormalize(state)
        basis, energy = state.arrays["basis"], state.arrays["energy"]
        k = min(self.rank(n_features_of(state)), math.ceil(state.counts["n_samples"]))
        rows = basis[: max(rank_of(state), k), :]
        for i in range(int(np.count_nonzero(energy[:k])), k):
            complete(rows, i, state.blocks)
        fix_signs(rows[:k, :], state.blocks)
        scatter, kept, leading = float(state.arrays["scatter"]), float(energy.sum()), float(energy[:k].sum())
        beyond = min(float(state.arrays["discarded"]), max(scatter - kept, 0.0))
        # Without scatter, all samples are equal, and nothing was rounded.
        rounding = float(state.arrays["rounding"][0] + k * state.arrays["rounding"][1]) if scatter else 0.0
        total, squares = state.arrays["weights"]
        divisor = (total - squares / total) or 1.0
        result = {
            "mean": copy_of(state.arrays["mean"]),
            "components": copy_of(rows[:k, :]),
            "explained_variance": energy[:k] / divisor,
            "total_variance": np.asarray(scatter / divisor),
            "kept_energy": np.asarray(kept / divisor),
            "captured_bound": np.asarray(certificate.share(leading - rounding, beyond + 2 * rounding)),
        }
        if self.wide:
            result |= {"directions": rows, "direction_variance": energy[: rows.shape[0]] / divisor}
            most = (float(state.arrays["outside"]) + rounding) / divisor
            result["outside"] = np.asarray(most if self.forgetting == 1 else math.inf)
        return {name: beside(array, basis) for name, array in result.items()}

    def components_of(self, state: State) -> Array:
        """Return the leading directions (k', d), k' <= k, which are orthonormal up to the rounding of all steps."""
        return copy_of(state.arrays["basis"][: min(self.rank(n_features_of(state)), rank_of(state)), :])

    def components_bytes(self, n_features: int, dtype: DTypeLike) -> int:
        """Return 0: the directions are copied from the basis."""
        return 0

    def extrapolate(self, state: State, n_samples: int) -> None:
        """Scale the scatter, because steps become larger with it."""
        if self.forgetting == 1 and 0 < (n := state.counts["n_samples"]) < n_samples:
            scatter_state.scale_scatter(state, n_samples / n)
            state.arrays["weights"] *= n_samples / n
            state.counts["n_samples"] = n_samples

    def batch_rows(self, dtype: DTypeLike) -> int:
        """Return the rows of a step. With 1,024 floats, or 3 q, the costs besides the products are small.

        The products of bytes take less time, and the other costs are a larger share of it.
        """
        return max(3 * ((self.n_components or 0) + self.oversampling), 2 * _ROWS if is_byte(dtype) else _ROWS)

    def result_bytes(self, n_features: int, dtype: DTypeLike) -> int:
        """Return the bytes of a result."""
        further = working_dtype(dtype).itemsize * self._kept(n_features) * n_features if self.wide else 0
        return super().result_bytes(n_features, dtype) + further + 24 + 8 * self._kept(n_features)

    def work_bytes(self, n_rows: int, n_features: int, dtype: DTypeLike) -> int:
        """Return the bytes of temporary arrays: rows of a step or merge, a block of the new basis, the eigenproblem."""
        q, working = self._kept(n_features), working_dtype(dtype)
        few = min(n_rows, max(2 * q, min(first_rows(n_features, dtype), _ROWS)))
        rows = max(few, q + 1)
        block = 2 * q * min(n_features, nystrom.COLUMNS) * max(working.itemsize, 8)
        small = 5 * 8 * (q + rows) ** 2 + truncate_bytes(q + rows, q)
        exact = rows * n_features * working.itemsize + 24 * n_features + block
        # A thread keeps its rows and blocks for the next step, but not the matrices of an eigenproblem.
        whole = whole_rows(q) if is_byte(dtype) else 0
        return exact + max(small, nystrom.work_bytes(n_rows, q, n_features, working, whole))

    def summed_bytes(self, n_rows: int, n_features: int) -> int:
        """Return the bytes of sums over blocks of attributes: products of the basis and of rows, or eigenvectors."""
        return 8 * (self._kept(n_features) + n_rows) ** 2

    def _age(self, state: State, n: int) -> None:
        """Reduce the weight of all previous samples for ``n`` further samples."""
        factor = self.forgetting**n
        scatter_state.scale_scatter(state, factor)
        state.arrays["weights"] *= [factor, factor**2]

    def _weights(self, n: int) -> Array:
        """Return the weights of ``n`` consecutive samples."""
        return self.forgetting ** np.arange(n - 1.0, -1.0, -1.0)

    def _count(self, state: State, weights: Array) -> None:
        state.arrays["weights"] += [weights.sum(), (weights**2).sum()]
        state.counts["n_samples"] += len(weights)

    def _add(self, state: State, values: Array, added: float, discarded: float, largest: float) -> None:
        """Set new energies, and add the new scatter and its discarded part."""
        energy = state.arrays["energy"]
        energy[: len(values)], energy[len(values) :] = values, 0
        state.arrays["scatter"] += added
        state.arrays["discarded"] += discarded
        state.arrays["outside"] += largest

    def _absorb(
        self, state: State, rows: Array, gains: Array, gram: Array, pull: Array, skew: float | None = None
    ) -> None:
        """Add the scatter of diag(gains) (I - 1 pull^T) rows, with gram = rows @ rows.T and its error ``skew``.

        If ``skew`` is not given, it is the rounding error of the products.
        """
        basis, energy, rank = state.arrays["basis"], state.arrays["energy"], rank_of(state)
        lengths, d, over = np.sqrt(gram.diagonal()), n_features_of(state), state.blocks
        cross = products(rows, basis[:rank, :], over=over)
        cross -= pull @ cross
        gram -= pull @ gram
        gram -= (gram @ pull)[:, None]
        scale = np.concatenate([np.sqrt(energy[:rank]), gains])
        small = np.zeros((len(scale), len(scale)))
        np.fill_diagonal(small[:rank, :rank], energy[:rank])
        np.multiply(cross, np.outer(gains, scale[:rank]), out=small[rank:, :rank])
        small[:rank, rank:] = small[rank:, :rank].T
        np.multiply(gram, np.outer(gains, gains), out=small[rank:, rank:])
        added = float(np.trace(small[rank:, rank:]))
        check_products(math.isfinite(added))
        k, floor = self.rank(d), 4 * float(np.finfo(dtype_of(basis)).eps) * added
        turn = over.once(partial(truncate, small, basis.shape[0], n_counted=k, floor=floor))
        values, vectors, discarded, largest = turn
        change = change_of((vectors * scale[:, None] / np.sqrt(values)).T, rank)
        change[:, rank:] -= np.outer(change[:, rank:].sum(axis=1), pull)
        rounding, u = state.arrays["rounding"], unit_roundoff(dtype_of(basis))
        g, squares = gamma(min(d, nystrom.COLUMNS) + 3, u), float(np.square(gains) @ np.square(lengths))
        among = certificate.add_stacked(
            rounding,
            certificate.turning(change, energy[:rank], lengths, values, float(rounding[1]), u),
            values,
            old=float(energy.sum()),
            squares=squares,
            skew=g * squares if skew is None else skew,
            g=g,
            u=u,
        )
        rotate(basis, change, rows)
        if few := min(len(scale) - len(values), k):
            discarded, largest = discarded + few * among, largest + among
        self._add(state, values, added, discarded, largest)
