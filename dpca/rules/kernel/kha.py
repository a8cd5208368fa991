"""The kernel Hebbian algorithm (KHA). It processes blocks of samples and yields the iterates of single samples."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import DTypeLike

from dpca.kernels.algebra.types import Array
from dpca.rules.base.rule import DivergedError, Rule
from dpca.rules.base.state import State, StateLayout
from dpca.rules.kernel.gains import Gains

# Rows that are longer than expected by this factor have diverged. NaN and infinity appear much later.
_DIVERGED = 1e6
# Samples of one kernel product. With more samples, the matrices that each step updates are too large.
_BLOCK = 64
# Arrays that pass from one pass to the next, besides the number of updates.
_KEPT = ("expansion", "rows", "derivatives", "log_gains")


@dataclass(frozen=True, eq=False)
class KernelHebbian(Rule):
    """One pass of the kernel Hebbian algorithm over l samples.

    Components are sums of samples in feature space, W = A Phi'. For the sample p of a step with kernel row k = K' e_p,
    K' centered, and y = A k (Günter, Schraudolph & Vishwanathan 2007, equations 16 and 31),

        A <- A + diag(exp(rho) eta_t) (y e_p^T - lt(y y^T) A),

    lt(A) is the lower triangle of A with its diagonal. SMD adapts rho with the derivatives B of A with respect to rho
    (algorithm 1, equations 32 and 37).

    Each step combines rows. Over a block of samples with unit vectors E, A_t = M A + N E^T. A step therefore updates
    only M (r, r), N (r, 64) and inner products of rows. Rows over all features are multiplied once per block, and A
    itself once per pass. Up to rounding error, the iterates are those of single steps.

    Parameters
    ----------
    gains : Gains
    order : array (l,) of int
        The sample of each step. Each sample occurs once.
    start : mapping of str to array
        Start of the pass: the result of `begin` or of the previous pass.
    variances : array (m,), optional
        If None, batches (n, l) are rows of K' in this order. Otherwise batches (n, m) are centered features in this
        order that are uncorrelated over the l samples, ``variances`` are the sums of their squares, and K' is their
        Gram matrix.
    each_step : bool
        Estimate eigenvalues before every step ('i' in the source) instead of once per pass ('p'). Once per pass also
        fixes eta_t for the pass.

    Raises
    ------
    DivergedError
        If a row is 1e6 times longer than expected.

    Notes
    -----
    Results of ``finish``, float64, are the start of the next pass: ``expansion`` A (r, l); ``rows`` and ``derivatives``
    (r, m), A and B times K' (m = l) or Phi'; ``log_gains`` rho (r,); ``n_updates`` (). Another result is
    ``eigenvalues`` (r,).

    A step costs O(r (r + 64)) operations, and a block O(64 (r + 64) m). Memory: 4 (l + m) r numbers.
    """

    gains: Gains
    order: Array
    start: dict[str, Array]
    variances: Array | None = None
    each_step: bool = field(default=False, kw_only=True)
    random_order = True
    counts = ("n_samples", "n_updates", "n_turns")

    def _layout(self, n_features: int, dtype: DTypeLike) -> StateLayout:
        r, capacity = len(self.start["expansion"]), len(self.order) // _BLOCK + 1
        squares = dict.fromkeys(("lengths", "products", "cross", "turn"), ((r, r), float))
        own: StateLayout = {
            "eigenvalues": ((r,), float),
            "turns": ((capacity, r, r), float),
            "edges": ((capacity,), int),
        }
        return {**{name: (self.start[name].shape, float) for name in _KEPT}, **squares, **own}

    def _start(self, state: State, dtype: DTypeLike) -> None:
        arrays = state.arrays
        for name in _KEPT:
            arrays[name][...] = self.start[name]
        state.counts["n_updates"] = int(self.start["n_updates"])
        own, rows, derivatives = (arrays[name] for name in ("expansion", "rows", "derivatives"))
        dual = own if self.variances is None else rows
        for name, product in {"lengths": own @ own.T, "products": rows @ dual.T, "cross": derivatives @ dual.T}.items():
            arrays[name][...] = product
        arrays["turn"][...] = np.eye(len(rows))
        arrays["eigenvalues"][...] = self.eigenvalues(self.start)

    def eigenvalues(self, arrays: dict[str, Array]) -> Array:
        """Return |K' a| / |a| of each row a of A (equation 20), shape (r,)."""
        rows = arrays["rows"]
        squares = np.einsum("ij,ij->i", rows if self.variances is None else rows * self.variances, rows)
        return np.sqrt(squares) / np.linalg.norm(arrays["expansion"], axis=1)

    def _take(self, state: State, batch: Array) -> None:
        for begin in range(0, len(batch), _BLOCK):
            self._take_block(state, batch[begin : begin + _BLOCK].astype(np.float64, copy=False))

    @np.errstate(over="ignore", invalid="ignore")
    def _take_block(self, state: State, x: Array) -> None:
        arrays, counts = state.arrays, state.counts
        if counts["n_turns"] == len(arrays["turns"]):
            self._turn(state)
        taken = self.order[counts["n_samples"] : counts["n_samples"] + len(x)]
        columns = arrays["turn"] @ arrays["expansion"][:, taken]
        a, b = self._steps(state, x, taken, columns)
        r = len(a)
        # New rows are combinations of the old rows of A, of B, and of the samples.
        old = np.concatenate([arrays["rows"], arrays["derivatives"], x])
        arrays["rows"][...] = a @ old
        if self.gains.meta > 0:
            arrays["derivatives"][...] = b @ old
        arrays["expansion"][:, taken] = a[:, :r] @ columns + a[:, 2 * r :]
        arrays["turn"][...] = a[:, :r] @ arrays["turn"]
        arrays["turns"][counts["n_turns"]], arrays["edges"][counts["n_turns"]] = a[:, :r], counts["n_samples"]
        counts["n_turns"] += 1
        counts["n_samples"] += len(x)
        largest = arrays["products"].diagonal().max()
        # This form of the condition also rejects NaN.
        if not largest < _DIVERGED**2:
            raise DivergedError(
                f"the kernel Hebbian algorithm diverged at update {counts['n_updates']}: a component has length "
                f"{np.sqrt(largest):.3g} instead of 1; give a smaller eta or meta (see dpca.rules.tune)"
            )

    def _turn(self, state: State) -> None:
        """Apply the updates of blocks to the columns of A of all other samples."""
        arrays, counts = state.arrays, state.counts
        expansion, turns, edges = arrays["expansion"], arrays["turns"], [*arrays["edges"][: counts["n_turns"]]]
        since = np.eye(len(turns[0]))
        for i, (first, last) in enumerate(reversed([*itertools.pairwise([*edges, counts["n_samples"]])])):
            taken = self.order[first:last]
            expansion[:, taken] = since @ expansion[:, taken]
            since = since @ turns[counts["n_turns"] - 1 - i]
        others = np.concatenate([self.order[: edges[0] if edges else 0], self.order[counts["n_samples"] :]])
        expansion[:, others] = since @ expansion[:, others]
        arrays["turn"][...], counts["n_turns"] = np.eye(len(since)), 0

    def _steps(self, state: State, x: Array, taken: Array, columns: Array) -> tuple[Array, Array]:
        """Make the steps of a block.

        Returns the new A and B as coefficients of the old rows of A, of B, and of the samples. Each step requires the
        inner products of these rows with its sample under Q = K'. For eigenvalues at each step, it also requires those
        under Q = K' K' and Q = I. For each Q, ``sides`` holds A Q A^T and, as the last column, A Q e_p. ``cross`` holds
        B K' A^T and B K' e_p.
        """
        from dpca.kernels.hebbian import add_below, add_beside, derive_below

        arrays, gains, r, n = state.arrays, self.gains, len(state.arrays["rows"]), len(x)
        both = np.concatenate([arrays["rows"], arrays["derivatives"], x])
        scaled = both if self.variances is None else both * self.variances
        kernels = both[:, taken] if self.variances is None else both @ x.T
        follows, smd = gains.by_eigenvalue and self.each_step, gains.meta > 0
        grams, products = [arrays["products"]], [kernels]
        if follows:
            grams += [scaled[:r] @ both[:r].T, arrays["lengths"]]
            products += [scaled @ x.T, np.concatenate([columns, np.zeros((r, n)), np.eye(n)])]
        values = np.ascontiguousarray(np.stack(products).transpose(2, 0, 1))
        sides = np.concatenate([np.stack(grams), np.zeros((len(grams), r, 1))], axis=2)
        cross = np.concatenate([arrays["cross"], np.zeros((r, 1))], axis=1)
        news = np.zeros((len(grams), r + 1))
        a, b = np.eye(r, 2 * r + n), np.eye(r, 2 * r + n, r)
        units = np.eye(n, 2 * r + n, 2 * r)
        eta, log_gains = self._eta(state), arrays["log_gains"]
        for j in range(n):
            state.counts["n_updates"] += 1
            if follows:
                squares, lengths = np.einsum("qii->qi", sides[1:, :, :r])
                arrays["eigenvalues"][...] = np.sqrt(squares / lengths)
            step = eta if eta is not None else gains(state.counts["n_updates"], arrays["eigenvalues"])
            news[:, :r] = sides[:, :, r] = values[j] @ a.T
            news[:, r] = values[j, :, 2 * r + j]
            y = news[0, :r]
            if smd:
                z = cross[:, r] = b @ values[j, 0]
                log_gains += gains.meta * y * (z - np.tril(cross[:, :r]) @ y)
                step = step * np.exp(log_gains)
                factors = y, z, step * (y + gains.decay * z), step * gains.decay * y, float(gains.decay)
                derive_below(a, b, *factors, units[j])
                derive_below(sides[0], cross, *factors, news[0])
            weights = step * y
            if smd:
                add_beside(cross, y, weights)
            for side, new in zip(sides, news, strict=True):
                add_below(side, y, weights, new)
                # The same step applies to A Q A^T from the right.
                add_beside(side, y, weights)
            add_below(a, y, weights, units[j])
        arrays["products"][...], arrays["cross"][...] = sides[0, :, :r], cross[:, :r]
        if follows:
            arrays["lengths"][...] = sides[2, :, :r]
        return a, b

    def _eta(self, state: State) -> Array | None:
        """Return the gains of the pass; None if they change at each step."""
        if self.each_step:
            return None
        return self.gains(int(self.start["n_updates"]) + 1, state.arrays["eigenvalues"])

    def _finish(self, state: State) -> dict[str, Array]:
        self._turn(state)
        kept = {name: state.arrays[name] for name in _KEPT}
        return {
            **kept,
            "eigenvalues": self.eigenvalues(kept),
            "n_updates": np.asarray(float(state.counts["n_updates"])),
        }

    def work_bytes(self, n_rows: int, n_features: int, dtype: DTypeLike) -> int:
        """Return the bytes of temporary arrays: the start of the pass, and several copies of rows."""
        r, count = len(self.start["rows"]), min(n_rows, _BLOCK)
        start = sum(array.nbytes for array in self.start.values())
        return start + self.start["expansion"].nbytes + 8 * 6 * (2 * r + count) * (n_features + 2 * r + 4 * count)


def begin(expansion: Array, rows: Array) -> dict[str, Array]:
    """Return the start of the first pass of `KernelHebbian`.

    Parameters
    ----------
    expansion : array (r, l)
        A_1. The source draws it from N(0, 1 / (r l)).
    rows : array (r, m)
        A_1 times K' or Phi'.
    """
    zeros = np.zeros_like(rows, dtype=np.float64)
    return {
        "expansion": expansion,
        "rows": rows,
        "derivatives": zeros,
        "log_gains": zeros[:, 0],
        "n_updates": np.zeros(()),
    }
