"""Components of samples with missing values in one pass: expectation-maximization, one step for each batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import DTypeLike

from dpca.kernels.algebra import linalg
from dpca.kernels.algebra.dtypes import working_dtype
from dpca.kernels.algebra.types import Array, blocks
from dpca.kernels.gaps import BLOCK_ROWS, LowRank, centered_rows, is_present, paired
from dpca.rules.base.basis import StreamingRule
from dpca.rules.base.options import count
from dpca.rules.base.state import State, StateLayout
from dpca.rules.gaps.expectation import (
    GapEM,
    add_expectations,
    given_model,
    regressed,
    standardized,
    value_counts,
)
from dpca.rules.gaps.present import PresentMoments, first_model

# In the sums, sample i has about the weight i^(_GROWTH - 1): expectations of earlier batches follow from worse models.
_GROWTH = 1.5
# Steps on the first batch.
_FIRST_STEPS = 5


@dataclass(frozen=True)
class OnlineEM(StreamingRule):
    """Online expectation-maximization for probabilistic PCA with missing values.

    Each batch adds to the sums of `GapEM` what is expected under the current model, and the next model is that of the
    sums (Cappé & Moulines 2009, equations 11 and 12). The step sizes are c / (t + c - 1) with c = 1.5: later samples
    have more weight. The first batch is processed repeatedly, from its principal components with the mean in the gaps.
    Without the covariances of the scores, these would be the recursive least squares of PETRELS (Chi, Eldar &
    Calderbank 2013).

    Parameters
    ----------
    n_components, center
        See `StreamingRule`. The mean is always subtracted.
    missing : number, optional
        Marks a missing value, in addition to NaN.
    seed : int
        Seed of the random start.

    Results of ``finish``: those of `StreamingRule`, with variances under the model. The mean is NaN, and components are
    0, at attributes without values. If fewer than k attributes have values, there are fewer components. Costs n d k
    (k + 4) operations, and for each batch d k^2 (k / 3 + 4); state (k + 1) (k + 5) d / 2 numbers.
    """

    missing: Any = field(default=None, kw_only=True)
    seed: int = field(default=0, kw_only=True, metadata=count("for the random generator", least=0))
    counts: ClassVar[Sequence[str]] = ("n_samples", "n_used")

    def _layout(self, n_features: int, dtype: DTypeLike) -> StateLayout:
        k = self.rank(n_features)
        layout = dict(GapEM(k)._layout(n_features, dtype))
        del layout["error"], layout["tested"]
        return {**layout, "turn": ((k, k), float), "weight": ((), float)}

    def batch_rows(self, dtype: DTypeLike) -> int:
        """Return the samples of a batch: the larger, the closer is the result to that of several passes."""
        return 1024

    def _take(self, state: State, batch: Array) -> None:
        state.counts["n_samples"] += len(batch)
        here = is_present(batch, self.missing)
        if not (used := here.any(axis=1)).all():
            batch, here = batch[used], here[used]
        if not len(batch):
            return
        arrays, n = state.arrays, len(batch)
        if not state.counts["n_used"]:
            _set_model(state, self._first_model(batch))
            arrays["turn"][...] = np.eye(len(arrays["turn"]))
        state.counts["n_used"] += n
        share, weight = _GROWTH * n / (state.counts["n_used"] + (_GROWTH - 1) * n), float(arrays["weight"])
        kept = n * (1 - share) / (share * weight) if weight else 0.0
        for name in ("moments", "products", "complete", "inner", "squares"):
            arrays[name] *= kept
        arrays["weight"][...] = weight * kept + n
        model = given_model(arrays)
        pairs = paired(model.components)
        for few in blocks(n, BLOCK_ROWS):
            add_expectations(arrays, model, pairs, batch[few], here[few], arrays["turn"])
        loadings, shift, noise = regressed(arrays, np.full(len(model.variances), model.ridge.min()))
        _move_mean(state, shift)
        turn, deviations, components = np.linalg.svd(loadings, full_matrices=False)
        arrays["turn"][...] = turn
        _set_model(state, LowRank(components, deviations**2, arrays["mean"] + shift, noise))

    def _first_model(self, batch: Array) -> LowRank:
        """Return a model of the first batch, by the steps of `GapEM`."""
        d, dtype, k = batch.shape[1], working_dtype(batch.dtype), self.rank(batch.shape[1])
        moments = PresentMoments(self.missing)
        found = moments.finish(moments.update(moments.init(d, batch.dtype), batch))
        model = _nearest(first_model(found, k, dtype, (self.seed,)), batch, is_present(batch, self.missing))
        more = k - len(model.variances)
        rows = np.concatenate([model.components, np.zeros((more, d), dtype)])
        model = model._replace(components=rows, variances=np.append(model.variances, np.zeros(more)))
        for _ in range(_FIRST_STEPS):
            rule = GapEM(k, (model,), self.missing)
            found = rule.finish(rule.update(rule.init(d, batch.dtype), batch))
            model = given_model(found)
        return model

    def _finish(self, state: State) -> dict[str, Array]:
        arrays, n = state.arrays, state.counts["n_samples"]
        if not state.counts["n_used"]:
            raise ValueError("all values are missing: give samples with values")
        model = given_model(arrays)
        loadings = arrays["turn"] @ (np.sqrt(model.variances)[:, None] * model.components)
        model = standardized(loadings, model.mean, arrays["inner"] / float(arrays["weight"]), model.noise)
        result = model.known_at(value_counts(arrays) > 0).result(self.rank(len(model.mean)), n)
        return {**result, "components": result["components"].astype(arrays["components"].dtype)}

    def work_bytes(self, n_rows: int, n_features: int, dtype: DTypeLike) -> int:
        """Return the bytes of temporary arrays in an update and in ``finish``."""
        step, size = GapEM(k := self.rank(n_features)), working_dtype(dtype).itemsize
        own = step.state_bytes(n_features, dtype) + step.result_bytes(n_features, dtype)
        later = step.work_bytes(n_rows, n_features, dtype) + n_rows * n_features + 8 * 4 * k * n_features
        # The start from the principal components of the first batch.
        m = min(n_rows, n_features)
        first = n_rows * n_features * (size + 2) + m**2 * (size + 8) + linalg.eigh_bytes(m, min(k, m))
        return own + max(later, first + 8 * 6 * k * n_features)


def _set_model(state: State, model: LowRank) -> None:
    for name in GapEM.given:
        state.arrays[name][...] = getattr(model, name)


def _nearest(start: LowRank, rows: Array, here: Array) -> LowRank:
    """Return the principal components of rows with the mean in the gaps, completed by those of ``start``."""
    k, (n, d) = len(start.variances), rows.shape
    x = centered_rows(rows, here, start.mean, start.components.dtype)
    values, found = linalg.leading_eigh((x @ x.T if n < d else x.T @ x).astype(np.float64), min(k, n, d))
    known = values > np.finfo(x.dtype).eps * values[0]
    found = (found.astype(x.dtype) @ x if n < d else found)[known]
    basis = np.linalg.qr(np.concatenate([found, start.components]).T)[0].T[:k]
    variances = np.append(values[known] / n, start.variances)[:k]
    # The variance that is left is noise, at least a share of the average.
    noise = max(start.noise - float(variances.sum()) / d, start.noise / 10)
    return start._replace(components=basis, variances=variances, noise=noise)


def _move_mean(state: State, shift: Array) -> None:
    """Convert the sums to deviations from a mean that is moved by ``shift``."""
    arrays = state.arrays
    k = len(arrays["components"])
    last = np.triu_indices(k + 1)[1] == k
    ones = arrays["moments"][last] + arrays["complete"][last, None]
    arrays["squares"] += (shift**2 @ ones[k] - 2 * (shift @ arrays["products"][k])).item()
    arrays["products"] -= shift * ones
